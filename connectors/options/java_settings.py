"""Settings of Kafka's Java clients that have no effect here: people bring them along from Spark.

They are accepted, because nothing is lost without them, and named once in the log. A setting that
would break the guarantee is refused instead (`connectors.clients.client_settings`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

_TIME: Final = "librdkafka has no such bound; see kafkaConsumer.pollTimeoutMs, checkpoint_timeout"
_METRICS: Final = "it is about metrics of Java's clients; see metrics_port"
_TLS: Final = "it chooses a part of Java's TLS; OpenSSL is used"
_PARTITIONER: Final = "a key goes where Java's default partitioner puts it; or name the partition"
_TOKENS: Final = "a token is renewed after 80 % of its life; librdkafka has its own times"
_READS: Final = "each task reads its own range of offsets"

#: Name, and why it has no effect.
WITHOUT_EFFECT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "default.api.timeout.ms": _TIME,
        "max.block.ms": _TIME,
        "partitioner.class": _PARTITIONER,
        "partitioner.ignore.keys": _PARTITIONER,
        "partitioner.adaptive.partitioning.enable": _PARTITIONER,
        "partitioner.availability.timeout.ms": _PARTITIONER,
        "max.poll.records": _READS,
        "exclude.internal.topics": _READS,
        "metric.reporters": _METRICS,
        "metrics.num.samples": _METRICS,
        "metrics.recording.level": _METRICS,
        "metrics.sample.window.ms": _METRICS,
        "auto.include.jmx.reporter": _METRICS,
        "ssl.provider": _TLS,
        "ssl.protocol": _TLS,
        "ssl.enabled.protocols": _TLS,
        "ssl.keymanager.algorithm": _TLS,
        "ssl.trustmanager.algorithm": _TLS,
        "ssl.secure.random.implementation": _TLS,
        "security.providers": _TLS,
        **{
            f"sasl.login.{name}": _TOKENS
            for name in (
                "refresh.window.factor",
                "refresh.window.jitter",
                "refresh.min.period.seconds",
                "refresh.buffer.seconds",
                "connect.timeout.ms",
                "read.timeout.ms",
                "retry.backoff.ms",
                "retry.backoff.max.ms",
            )
        },
        "metadata.max.idle.ms": "librdkafka keeps the metadata of topics that are in use",
        "socket.connection.setup.timeout.max.ms": "see socket.connection.setup.timeout.ms",
    }
)

logger = logging.getLogger(__name__)
_told: set[str] = set()


def tell_without_effect(place: str, found: Iterable[tuple[str, str]]) -> None:
    """Log options that have no effect, once in a process: a pipeline parses its options often.

    Args:
        place: where they were given.
        found: name and reason.
    """
    if place in _told:
        return
    news = [(name, why) for name, why in found if f"{place}.{name}" not in _told]
    _told.update(f"{place}.{name}" for name, _ in news)
    if news:
        reasons = "; ".join(f"{name} ({why})" for name, why in news)
        logger.warning("%s: no effect: %s", place, reasons)


def tell_elsewhere(place: str) -> None:
    """Leave it to another process to name them: each of Spark's workers would name them again."""
    _told.add(place)
