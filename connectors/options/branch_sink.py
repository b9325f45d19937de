"""What a branch can be written to: Kafka, or any other user of the two-phase contract.

The Kafka sinks know brokers, clusters and offsets, and the driver asks them about these. Of every
other sink the driver needs only this: its name, what makes it the same sink at a restart, whether
it can carry the branch's columns, and the live sink itself.
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
        """Release what the driver's side holds; a second call is harmless. On the driver, at the
        end of each run, also of a failed one.
        """


class OtherSink(Protocol):
    """What a user says about a sink that is not Kafka: plain data, checked when it is made."""

    @property
    def name(self) -> str:
        """The name, unique in the driver and the same at every restart; ``[A-Za-z0-9_-]``."""

    def identity(self) -> Mapping[str, str]:
        """Return ``kind`` and all else that must be the same at every restart on one checkpoint."""

    def check_columns(self, schema: pa.Schema) -> None:
        """Check that the sink can carry a branch. On the driver, before it starts.

        Raises:
            ConfigurationError: the sink cannot carry it; the text names the column.
        """

    def open_sink(self, *, checkpoint_timeout_s: float, schema: pa.Schema) -> OpenSink:
        """Return the live sink. On the driver, once per run, before its Fence.

        Args:
            checkpoint_timeout_s: how long any one task may take.
            schema: of the branch, so that a target with columns of its own can be checked now.

        Raises:
            SparkOnceError: the target cannot be used.
        """


BranchSink = KafkaSink | OtherSink


def is_kafka_transactional(sink: BranchSink) -> bool:
    """Return whether a sink writes Kafka transactions, which can carry the source's offsets."""
    return isinstance(sink, KafkaSink) and sink.is_transactional


def kafka_sinks(sinks: Sequence[BranchSink]) -> list[KafkaSink]:
    """Return the Kafka sinks: a broker can be asked about them."""
    return [each for each in sinks if isinstance(each, KafkaSink)]


def identity_of(sinks: Sequence[BranchSink]) -> str:
    """Return the sinks as a JSON object; a checkpoint is bound to it."""
    found = {
        each.name: {"kind": "kafka", "topic": each.topic}
        if isinstance(each, KafkaSink)
        else dict(each.identity())
        for each in sinks
    }
    return orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()
