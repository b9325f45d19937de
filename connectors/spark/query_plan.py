"""The plan of a driver's query: where it reads, and its branches. Lives on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.options.kafka_source import KafkaSource
from connectors.records.arrow_transform import ArrowFunction
from connectors.spark.batch_size import SIZE_FILE_OPTION, BatchSize
from connectors.spark.branches import (
    Branch,
    make_branch,
    make_fused_branch,
    places_of_sources,
    unite,
)
from connectors.spark.checkpoint_files import SPARK
from connectors.spark.data_source import NAME
from connectors.spark.range_rows import RANGES_OPTION
from connectors.spark.sink_stage import COMMITTABLE_DDL, SinkStage
from connectors.spark.start_file import START_FILE_OPTION, start_file, write_start
from transactions.errors import ConfigurationError
from transactions.sink import Sink

RunBatch: TypeAlias = Callable[[DataFrame, int], None]


class QueryPlan:
    """Sources and branches, in the order in which the user names them.

    Args:
        spark: the session.
        checkpoint: the checkpoint folder, where each source finds its start.
        size: adapts the size of batches; None if they have no target.

    Attributes:
        sources: what is read.
        branches: what is written.
    """

    def __init__(self, spark: SparkSession, checkpoint: Path, size: BatchSize | None) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._size = size
        self.sources: list[KafkaSource] = []
        self.branches: list[Branch] = []

    def read(self, source: KafkaSource, *, as_ranges: bool = False) -> DataFrame:
        """Return the records of a source, or the ranges of each batch (`RANGES_SCHEMA`).

        Raises:
            ConfigurationError: an option is wrong.
        """
        source.check_stream()
        options = source.to_options()
        options[START_FILE_OPTION] = str(start_file(self._checkpoint, len(self.sources)))
        if self._size is not None:
            options[SIZE_FILE_OPTION] = str(self._size.file)
        if as_ranges:
            options[RANGES_OPTION] = "true"
        self.sources.append(source)
        return self._spark.readStream.format(NAME).options(**options).load()

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
        ranges = self.read(source, as_ranges=True)
        self.branches.append(
            make_fused_branch(ranges, sink, source=source, transform=transform, columns=columns)
        )

    def places(self) -> int:
        """Return how many sources Spark counts in the plan."""
        return places_of_sources(unite(self.branches))

    def begin_at(self, starts: Iterable[str]) -> None:
        """Tell each source where it begins: see `connectors.spark.start_file`."""
        for number, start in enumerate(starts):
            write_start(start_file(self._checkpoint, number), start)

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
        writer = writer.option("checkpointLocation", str(self._checkpoint / SPARK))
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
        if self.branches and (alone or self.branches[0].reading is not None):
            raise ConfigurationError(
                "A pipe is the only branch of its driver.",
                where=f"sink {sink.name!r}",
                cause="pipe() reads, transforms and writes in one stage, so that no DataFrame is "
                "there for another branch",
                option="read() and write(), for each branch",
            )
