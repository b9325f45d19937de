"""The plan of a driver's query: where it reads, and its branches. Lives on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.options.kafka_source import KafkaSource
from connectors.records.arrow_transform import ArrowFunction
from connectors.spark.batch_size import SIZE_FILE_OPTION, BatchSize
from connectors.spark.branches import (
    Branch,
    make_branch,
    make_reading,
    places_of_sources,
    unite,
)
from connectors.spark.data_source import NAME
from connectors.spark.query_files import QueryFiles
from connectors.spark.sink_stage import COMMITTABLE_DDL, SinkStage
from connectors.spark.source_columns import RANGES_OPTION
from connectors.spark.start_file import START_FILE_OPTION, start_file, write_start
from transactions.errors import ConfigurationError
from transactions.sink import Sink

RunBatch: TypeAlias = Callable[[DataFrame, int], None]


class QueryPlan:
    """Sources and branches, in the order in which the user names them.

    Args:
        spark: the session.
        files: Spark's part of the checkpoint; its notes say where each source begins.
        size: adapts the size of batches; None if they have no target.

    Attributes:
        sources: what is read.
        branches: what is written.
    """

    def __init__(self, spark: SparkSession, files: QueryFiles, size: BatchSize | None) -> None:
        self._spark = spark
        self._files = files
        self._size = size
        self.sources: list[KafkaSource] = []
        self.branches: list[Branch] = []

    def read(self, source: KafkaSource) -> DataFrame:
        """Return the records of a source: see `StreamingDriver.read`."""
        self._check_no_pipe(", ".join(source.reads))
        return self._load(source, {})

    def _load(self, source: KafkaSource, ours: dict[str, str]) -> DataFrame:
        source.check_stream()
        options = {**source.to_options(), **ours}
        options[START_FILE_OPTION] = str(start_file(self._files.notes, len(self.sources)))
        if self._size is not None:
            options[SIZE_FILE_OPTION] = str(self._size.file)
        frame = self._spark.readStream.format(NAME).options(**options).load()
        self.sources.append(source)
        return frame

    def write(self, frame: DataFrame, sink: Sink) -> None:
        """Add a branch: see `StreamingDriver.write`."""
        self._check_fits(sink, alone=False)
        self.branches.append(make_branch(frame, sink))

    def pipe(
        self,
        source: KafkaSource,
        sink: Sink,
        transform: str | ArrowFunction,
        columns: Sequence[str] | None,
    ) -> None:
        """Add the only branch: see `StreamingDriver.pipe`."""
        self._check_fits(sink, alone=True)
        reading = make_reading(self._spark, source, sink, transform, columns)
        ranges = self._load(source, {RANGES_OPTION: "true"})
        self.branches.append(Branch(ranges, sink, reading))

    def places(self) -> int:
        """Return how many sources Spark counts in the plan."""
        return places_of_sources(unite(self.branches))

    def begin_at(self, starts: Iterable[str]) -> None:
        """Tell each source where it begins: see `connectors.spark.start_file`."""
        for number, start in enumerate(starts):
            write_start(start_file(self._files.notes, number), start)

    def start(
        self, stage: SinkStage, name: str, run_batch: RunBatch, trigger_ms: int | None
    ) -> StreamingQuery:
        """Start the query.

        Args:
            stage: the stage that writes.
            name: of the query.
            run_batch: called for each batch with rows of `COMMITTABLE_SCHEMA`.
            trigger_ms: the time between two batches; None: read what exists now, then stop.
        """
        last = self.branches[0].last_stage(stage)
        written = unite(self.branches).mapInArrow(last, COMMITTABLE_DDL)
        writer = written.writeStream.queryName(name)
        writer = writer.option("checkpointLocation", self._files.address)
        writer = writer.outputMode("update").foreachBatch(run_batch)
        if trigger_ms is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{trigger_ms} milliseconds").start()

    def _check_fits(self, sink: Sink, *, alone: bool) -> None:
        if any(branch.sink.name == sink.name for branch in self.branches):
            raise ConfigurationError(
                "Two sinks of one driver have the same name.",
                cause="a sink without a name has the name of its target",
                option=f"name={sink.name}",
            )
        self._check_no_pipe(f"sink {sink.name!r}")
        if alone and (self.branches or self.sources):
            raise self._not_alone(f"sink {sink.name!r}")

    def _check_no_pipe(self, where: str) -> None:
        if self.branches and self.branches[0].reading is not None:
            raise self._not_alone(where)

    def _not_alone(self, where: str) -> ConfigurationError:
        return ConfigurationError(
            "A pipe is the only branch of its driver.",
            where=where,
            cause="pipe() reads, transforms and writes in one step, so that no DataFrame is there "
            "for another branch",
            option="read() and write(), for each branch",
        )
