"""The brokers behind the fixture `kafka_cluster`: those of `connectors.testing`, by a variable."""

from __future__ import annotations

import os

from connectors.testing.brokers import Broker, running_broker
from connectors.testing.containers import IMAGE

__all__ = ["IMAGE", "Broker", "running_broker", "selected_kinds"]

KINDS = {
    "embedded": ("embedded",),
    "testcontainers": ("testcontainers",),
    "both": ("embedded", "testcontainers"),
}


def selected_kinds() -> tuple[str, ...]:
    selected = os.environ.get("SPARKONCE_TEST_BROKER", "embedded")
    if selected not in KINDS:
        raise ValueError(f"SPARKONCE_TEST_BROKER={selected}: one of {', '.join(KINDS)}")
    return KINDS[selected]
