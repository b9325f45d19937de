"""librdkafka's log lines as records of `logging`; each client of ours gets these settings.

By default only critical lines are shown. Our errors name the cause once, while librdkafka repeats
it for each connection, up to 20 times a second. To see more, give the logger a level of its own
before the clients are made: in the driver, and for workers in the module of a function.

    logging.getLogger("connectors.kafka.librdkafka").setLevel(logging.INFO)

The lines of a debug context (``kafka.debug``) come at the level DEBUG.

kafka-python logs by itself, below the logger ``kafka``; what logs in is taken out of its lines.
"""

from __future__ import annotations

import logging
from typing import Any, Final

LIBRDKAFKA: Final = logging.getLogger("connectors.kafka.librdkafka")

#: Level of `logging` -> the highest syslog level that it shows, as confluent-kafka maps them.
_SYSLOG: Final = ((logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3))
_CRITICAL: Final = 2
#: Where kafka-python logs requests and their bytes, at DEBUG.
_WIRE: Final = ("kafka.net.connection", "kafka.protocol.parser")


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


def hide_logins() -> None:
    """Keep passwords and tokens out of kafka-python's log, from now on in this process."""
    for name in _WIRE:
        logging.getLogger(name).addFilter(_without_login)


def _without_login(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_shown, record.args))
    return True


def _shown(argument: object) -> object:
    """Return the name of a request that logs in, and the size of bytes, which can hold one."""
    if isinstance(argument, bytes | bytearray | memoryview):
        return f"{len(argument)} bytes"
    name = type(argument).__name__
    return name if name.startswith("SaslAuthenticate") else argument
