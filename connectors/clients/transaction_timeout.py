"""How long a transaction may live, and how long one request of its producer may take.

librdkafka derives the second from the first where nobody says it: `socket.timeout.ms` becomes the
transaction's timeout less 100 ms (rdkafka_conf.c). For 15 minutes that is a broker's silence nobody
notices for 15 minutes; above 2,147,483 ms its microseconds do not fit into an int, and every
request that takes a second counts as timed out. So each producer with transactions is told both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from transactions.errors import ConfigurationError

#: The longest transaction: librdkafka adds 100 to it, in 32 bits. It is 24.8 days.
MOST_TIMEOUT_MS: Final = 2_147_483_547
#: Longer than the 30 s after which a broker itself gives up on its replicas, so that it can say so;
#: shorter than the minute that a barrier of the continuous mode may take.
REQUEST_TIMEOUT_MS: Final = 45_000

#: What the user may say instead. librdkafka takes no more; a shorter one takes every slow answer
#: for a lost one, and a producer that met a doubt is replaced.
_LEAST_REQUEST_MS, _MOST_REQUEST_MS = 1_000, 300_000
#: Java's name, and librdkafka's.
_REQUEST_NAMES: Final = ("request.timeout.ms", "socket.timeout.ms")


def request_timeout_ms(timeout_ms: int) -> int:
    """Return `socket.timeout.ms` for a producer whose user does not say it."""
    return min(REQUEST_TIMEOUT_MS, timeout_ms)


def check_request_timeout(kafka: Mapping[str, str], timeout_ms: int, *, where: str) -> None:
    """Check what the user says about the time of a request, if anything. On the driver.

    Args:
        kafka: the user's settings.
        timeout_ms: of the transactions.
        where: the sink, for the error.

    Raises:
        ConfigurationError: requests would be given up while they are answered, or after their
            transaction.
    """
    most = min(_MOST_REQUEST_MS, timeout_ms)
    for name in _REQUEST_NAMES:
        value = kafka.get(name, str(REQUEST_TIMEOUT_MS))
        if not value.strip().isdecimal() or int(value) < _LEAST_REQUEST_MS:
            why = "a slow answer would count as a lost one, and its producer as in doubt"
        elif name in kafka and int(value) > most:
            why = "a silent broker would hold a checkpoint for longer than its transaction lives"
        else:
            continue
        raise ConfigurationError(
            f"A request of a producer with transactions may take {_LEAST_REQUEST_MS} to {most} ms.",
            where=where,
            cause=why,
            option=f"kafka.{name}={value} (without it: {request_timeout_ms(timeout_ms)})",
        )
