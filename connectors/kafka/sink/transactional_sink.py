"""The Kafka sink of the two-phase contract: one object with both of its halves.

A closure takes the writer's half to the workers; the committer's connections stay on the driver.
"""

from __future__ import annotations

from typing import Any

from connectors.kafka.sink.kafka_committer import KafkaCommitter
from connectors.kafka.sink.kafka_writer import KafkaWriter
from connectors.kafka.sink.retired_ids import RetiredIds
from connectors.options.kafka_sink import KafkaSink


class KafkaTransactionalSink(KafkaWriter, KafkaCommitter):
    """See `KafkaWriter` for a task's calls, and `KafkaCommitter` for the driver's calls.

    Args:
        options: the user's options.
        timeout_ms: the transaction timeout, which the driver checked against the broker.
        checkpoint_timeout_s: how long any one task may take.
    """

    def __init__(self, options: KafkaSink, *, timeout_ms: int, checkpoint_timeout_s: float) -> None:
        KafkaWriter.__init__(
            self, options, timeout_ms=timeout_ms, checkpoint_timeout_s=checkpoint_timeout_s
        )
        KafkaCommitter.__init__(self, options, timeout_ms=timeout_ms)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the driver's connections out when a closure takes the sink to a worker."""
        live: dict[str, Any] = {"_wire": None, "_visibility": None, "ownership": None}
        return {**super().__getstate__(), **live, "_retired": RetiredIds()}
