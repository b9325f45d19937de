"""What librdkafka has to say, as records of `logging`: each client of ours gets these settings.

By default only what is critical is shown: our errors name the cause once, where librdkafka repeats
it for each connection, up to 20 times a second. Who wants to read more gives the logger a level of
its own before the clients are made: in the driver, and for workers in the module of a function.

    logging.getLogger("connectors.kafka.librdkafka").setLevel(logging.INFO)

The lines of a debug context (``kafka.debug``) come at the level DEBUG.
"""

from __future__ import annotations

import logging
from typing import Any, Final

LIBRDKAFKA: Final = logging.getLogger("connectors.kafka.librdkafka")

#: The level of `logging` -> the last of syslog's that is shown with it, as confluent-kafka maps.
_SYSLOG: Final = ((logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3))
_CRITICAL: Final = 2


def least_level() -> int:
    """Return the level from which lines are shown, where no debug context is asked for."""
    return LIBRDKAFKA.level or logging.CRITICAL


def log_settings() -> dict[str, Any]:
    """Return the settings of a client whose lines go to `LIBRDKAFKA`, each at its level.

    Lines that nobody wants are not made: a client that is not polled would keep them for ever.
    """
    shown = least_level()
    level = next((syslog for ours, syslog in _SYSLOG if shown <= ours), _CRITICAL)
    return {"log_level": level, "logger": LIBRDKAFKA}
