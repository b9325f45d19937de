"""How long a transaction may live, and how long one request of its producer may take.

If nobody sets the second, librdkafka derives it from the first: `socket.timeout.ms` becomes the
transaction's timeout less 100 ms (rdkafka_conf.c). With 15 minutes, nobody notices a silent broker
for 15 minutes. Above 2,147,483 ms its microseconds do not fit into an int, and every request that
takes a second counts as timed out. So each producer with transactions gets both settings from us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from transactions.errors import ConfigurationError

#: The longest transaction: librdkafka adds 100 to it in 32 bits. This is 24.8 days.
MOST_TIMEOUT_MS: Final = 2_147_483_547
#: Longer than the 30 s after which a broker gives up on its replicas, so that it can still answer;
#: shorter than the minute that a barrier of the continuous mode may take.
REQUEST_TIMEOUT_MS: Final = 45_000

#: The range for the user's own value. librdkafka allows no more. A shorter value would count slow
#: answers as lost, and a producer that met a doubt is replaced.
_LEAST_REQUEST_MS, _MOST_REQUEST_MS = 1_000, 300_000
#: Java's name, and librdkafka's.
_REQUEST_NAMES: Final = ("request.timeout.ms", "socket.timeout.ms")


def request_timeout_ms(timeout_ms: int) -> int:
    """Return `socket.timeout.ms` for a producer if the user sets none."""
    return min(REQUEST_TIMEOUT_MS, timeout_ms)


def check_request_timeout(kafka: Mapping[str, str], timeout_ms: int, *, where: str) -> None:
    """Check the user's time limit of a request, if there is one. On the driver.

    Args:
        kafka: the user's settings.
        timeout_ms: of the transactions.
        where: the sink, for the error.

    Raises:
        ConfigurationError: the client would give up requests that are still being answered, or
            only after their transaction has timed out.
    """
    most = min(_MOST_REQUEST_MS, timeout_ms)
    for name in _REQUEST_NAMES:
        value = kafka.get(name, str(REQUEST_TIMEOUT_MS))
        if not value.strip().isdecimal() or int(value) < _LEAST_REQUEST_MS:
            why = "a slow answer would count as lost, and its producer would be in doubt"
        elif name in kafka and int(value) > most:
            why = "a silent broker would block a checkpoint for longer than its transaction timeout"
        else:
            continue
        raise ConfigurationError(
            f"The request timeout of this producer must be {_LEAST_REQUEST_MS} to {most} ms.",
            where=where,
            cause=why,
            option=f"kafka.{name}={value} (without it: {request_timeout_ms(timeout_ms)})",
        )
