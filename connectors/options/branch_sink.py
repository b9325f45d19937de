"""What a branch can be written to: Kafka, or any other user of the two-phase contract.

The Kafka sinks know brokers, clusters and offsets, which the driver asks them about. Of every other
sink it needs only this: what it is called, what makes it the same sink at a restart, whether it can
carry the branch's columns, and the live sink itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson
import pyarrow as pa

from connectors.options.kafka_sink import KafkaSink
from transactions.sink import TwoPhaseCommitSink


class OpenSink(TwoPhaseCommitSink[Any, pa.RecordBatch], Protocol):
    """A live sink in the driver; pickled, it travels to the tasks."""

    def close(self) -> None:
        """Let go of what the driver's side holds; again is harmless. On the driver, at the end of
        each run, also of one that failed.
        """


class OtherSink(Protocol):
    """What a user says about a sink that is not Kafka: plain data, checked when it was made."""

    @property
    def name(self) -> str:
        """Unique in the driver and the same at every restart; ``[A-Za-z0-9_-]``."""

    def identity(self) -> Mapping[str, str]:
        """Return ``kind`` and what else must be the same at every restart on one checkpoint."""

    def check_columns(self, schema: pa.Schema) -> None:
        """Check that the sink can carry a branch. On the driver, before it starts.

        Raises:
            ConfigurationError: it cannot; the text names the column.
        """

    def open_sink(self, *, checkpoint_timeout_s: float, schema: pa.Schema) -> OpenSink:
        """Return the live sink. On the driver, once per run, before its Fence.

        Args:
            checkpoint_timeout_s: how long any one task may take.
            schema: of the branch, so that a target with columns of its own can be asked now.

        Raises:
            SparkOnceError: the target cannot be used.
        """


BranchSink = KafkaSink | OtherSink


def is_kafka_transactional(sink: BranchSink) -> bool:
    """Tell whether it writes Kafka transactions, which can carry the source's offsets."""
    return isinstance(sink, KafkaSink) and sink.is_transactional


def kafka_sinks(sinks: Sequence[BranchSink]) -> list[KafkaSink]:
    """Return those that a broker can be asked about."""
    return [each for each in sinks if isinstance(each, KafkaSink)]


def identity_of(sinks: Sequence[BranchSink]) -> str:
    """Return the JSON object of all sinks that a checkpoint is bound to."""
    found = {
        each.name: {"kind": "kafka", "topic": each.topic}
        if isinstance(each, KafkaSink)
        else dict(each.identity())
        for each in sinks
    }
    return orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()
