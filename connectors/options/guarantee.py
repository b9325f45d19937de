"""What a sink promises about a record after a failure (Flink's `DeliveryGuarantee`)."""

from __future__ import annotations

from typing import Final

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
NO_GUARANTEE: Final = "none"
#: The default first.
GUARANTEES: Final = (EXACTLY_ONCE, AT_LEAST_ONCE, NO_GUARANTEE)
