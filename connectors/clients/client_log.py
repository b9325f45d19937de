"""librdkafka's log lines as records of `logging`; each client of ours gets these settings.

By default only critical lines are shown. Our errors name the cause once, while librdkafka repeats
it for each connection, up to 20 times a second. To see more, give the logger a level of its own
before the clients are made: in the driver, and for workers in the module of a function.

    logging.getLogger("connectors.kafka.librdkafka").setLevel(logging.INFO)

The lines of a debug context (``kafka.debug``) come at the level DEBUG.
"""

from __future__ import annotations

import logging
from typing import Any, Final

LIBRDKAFKA: Final = logging.getLogger("connectors.kafka.librdkafka")

#: Level of `logging` -> the highest syslog level that it shows, as confluent-kafka maps them.
_SYSLOG: Final = ((logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3))
_CRITICAL: Final = 2


def least_level() -> int:
    """Return the lowest level that is shown if the user asks for no debug context."""
    return LIBRDKAFKA.level or logging.CRITICAL


def log_settings() -> dict[str, Any]:
    """Return the settings of a client that sends its lines to `LIBRDKAFKA`, each at its level.

    Lines below the level are never made: a client that is not polled would keep them for ever.
    """
    shown = least_level()
    level = next((syslog for ours, syslog in _SYSLOG if shown <= ours), _CRITICAL)
    return {"log_level": level, "logger": LIBRDKAFKA}
