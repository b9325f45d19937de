"""Both halves of a sink in one object: a test plays task and driver in one process.

The product never has such an object: only a `Committable` passes from a writer to a committer.
"""

from __future__ import annotations

from typing import Any

from connectors.kafka.sink.kafka_committer import KafkaCommitter
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.kafka_writer import KafkaWriter
from connectors.kafka.sink.plain_writer import KafkaPlainWriter
from connectors.kafka.sink.retired_ids import RetiredIds
from transactions.sink import OpenSink, Sink, SinkContext


class KafkaBothHalves(KafkaWriter, KafkaCommitter):
    """`KafkaWriter` and `KafkaCommitter`."""

    def __init__(self, options: KafkaSink, *, timeout_ms: int, checkpoint_timeout_s: float) -> None:
        KafkaCommitter.__init__(self, options.name, options.settings)
        KafkaWriter.__init__(
            self,
            options.name,
            options.topic,
            options.settings,
            timeout_ms=timeout_ms,
            checkpoint_timeout_s=checkpoint_timeout_s,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the driver's connections out, as if a closure took the writer to a worker."""
        live: dict[str, Any] = {"_wire": None, "_visibility": None, "ownership": None}
        return {**super().__getstate__(), **live, "_retired": RetiredIds()}


def plain_writer(options: KafkaSink, *, checkpoint_timeout_s: float) -> KafkaPlainWriter:
    """Return the writer of a sink without transactions."""
    return KafkaPlainWriter(
        options.name,
        options.topic,
        options.settings,
        waits=options.guarantee == "at-least-once",
        checkpoint_timeout_s=checkpoint_timeout_s,
    )


class BothHalves:
    """Any sink that a run has opened: a call goes to the half that has the method.

    Attributes:
        options: what the user said about the sink.
    """

    def __init__(self, options: Any, opened: OpenSink) -> None:
        self.options = options
        self._writer = opened.writer
        self._committer = opened.committer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in {"_writer", "_committer"}:  # while it is unpickled
            raise AttributeError(name)
        half = self._writer if hasattr(self._writer, name) else self._committer
        return getattr(half, name)


def both_halves(sink: Sink, checkpoint_timeout_s: float = 30.0, **context: Any) -> Any:
    """Open a sink as a run does."""
    opened = sink.open(SinkContext(checkpoint_timeout_s=checkpoint_timeout_s, **context))
    return BothHalves(sink, opened)
