"""What a continuous stage carries to its tasks; frozen data, pickled once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pyarrow as pa

from connectors.continuous.contract_writer import ContractWriter
from connectors.kafka.sink.kafka_stage_writer import KafkaStageWriter
from connectors.kafka.sink.kafka_writer import KafkaWriter
from connectors.kafka.sink.plain_stage_writer import PlainStageWriter
from connectors.kafka.sink.plain_writer import KafkaPlainWriter
from connectors.kafka.source.partition_reader import PartitionReader
from connectors.native.chosen_path import plain_producer_kind, producer_kind, reader_kind
from connectors.options.kafka_source import KafkaSource
from connectors.records.arrow_transform import ArrowFunction
from transactions.sink import AnyWriter


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTask:
    """See `connectors.continuous.stage_task.Task`.

    Attributes:
        address: of the driver's control channel.
        key: the stage's secret.
        stage: its random name.
        source: what the task reads.
        transform: the user's Arrow function, or its ``module:name``.
        writer: of the sink.
        carries_offsets: the sink's transactions contain the source's offsets.
        schema: of the rows for a sink that is not Kafka's.
        native: whether records may move as pointers into Arrow buffers.
        timeout_s: how long making producers may take.
        parallelism: how many tasks the stage has.
    """

    address: tuple[str, int]
    key: bytes = dataclasses.field(repr=False)
    stage: str
    source: KafkaSource
    transform: str | ArrowFunction
    writer: AnyWriter
    carries_offsets: bool
    schema: pa.Schema | None
    native: bool
    timeout_s: float
    parallelism: int

    def reader(self, offsets: Mapping[str, int]) -> PartitionReader:
        """Make what the task reads from."""
        return reader_kind(native=self.native)(self.source, offsets)

    def stage_writer(self) -> KafkaStageWriter | PlainStageWriter | ContractWriter:
        """Make what the task writes with, as the sink's kind and guarantee say."""
        if isinstance(self.writer, KafkaPlainWriter):
            kind = plain_producer_kind(native=self.native)
            return PlainStageWriter(self.writer, producer_kind=kind)
        if not isinstance(self.writer, KafkaWriter):
            assert self.schema is not None, "the driver has told it to the sink"
            return ContractWriter(self.writer, self.schema)
        transactional = producer_kind(native=self.native)
        return KafkaStageWriter(
            self.writer,
            carries_offsets=self.carries_offsets,
            producer_kind=transactional,
            parallelism=self.parallelism,
        )
