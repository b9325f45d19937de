"""The data source `kafka-exactly-once`, for reads and writes of streams and batches; no logic here.

Options, columns and types are those of Spark's own Kafka source and sink. The stream reader runs in
a process of its own beside the driver; `read` and `write` run in Spark's Python workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from connectors.kafka.source.offsets import OffsetRange
from connectors.kafka.source.range_reader import read_range
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.kafka.source.source_stream import SourceStream
from connectors.options.java_settings import tell_elsewhere
from connectors.options.kafka_source import PLACE, KafkaSource
from connectors.records.message_schema import SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS
from connectors.spark.batch_size import SIZE_FILE_OPTION, read_size
from connectors.spark.range_rows import RANGES_OPTION, RANGES_SCHEMA, range_row
from connectors.spark.start_file import START_FILE_OPTION, read_start
from connectors.spark.worker_daemon import keep_quiet
from connectors.spark.worker_heap import settle_worker_heap
from transactions.errors import ConfigurationError

NAME = "kafka-exactly-once"

keep_quiet()  # each of Spark's workers that deals with a source loads this module


def register(spark: SparkSession) -> None:
    """Make the data source known to a session; a second call is harmless.

    PySpark finds the source of an installed package by itself (`pyspark_sparkonce.py`).
    """
    spark.dataSource.register(KafkaExactlyOnceSource)


class KafkaExactlyOnceSource(DataSource):  # type: ignore[misc]
    """The data source; see the module."""

    _is_copy = False

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return NAME

    def schema(self) -> StructType:
        """Return Spark's Kafka columns; called first, so all options are checked here."""
        source = self._source(is_first=START_FILE_OPTION not in self.options)
        if self._gives_ranges():
            return from_arrow_schema(RANGES_SCHEMA)
        return from_arrow_schema(
            SOURCE_SCHEMA_WITH_HEADERS if source.include_headers else SOURCE_SCHEMA
        )

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return the batch reader."""
        source = self._source()
        source.check_batch()
        return KafkaBatchReader(source)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the stream reader."""
        source = self._source()
        source.check_stream()
        files = self._file(START_FILE_OPTION), self._file(SIZE_FILE_OPTION)
        return KafkaStreamReader(source, *files, gives_ranges=self._gives_ranges())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        """Return the writer of a streaming query: where Spark plans a batch, with the plan of its
        tasks; where Spark commits one, without.
        """
        # Imported here, and below: a worker that only reads loads nothing of this (0.1 s).
        from connectors.spark.query_options import QueryOptions  # noqa: PLC0415
        from connectors.spark.query_writer import KafkaStreamWriter, planned  # noqa: PLC0415

        options = QueryOptions.of_query(self.options)
        return KafkaStreamWriter(options, None if self._is_copy else planned(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch job, with the plan of its tasks."""
        from connectors.spark.query_options import QueryOptions  # noqa: PLC0415
        from connectors.spark.query_writer import KafkaJobWriter, planned  # noqa: PLC0415

        options = QueryOptions.of_job(self.options)
        if overwrite:
            raise ConfigurationError(
                "A topic cannot be overwritten.",
                where=f"sink {options.sink.name!r}",
                cause="Kafka only appends",
                option='mode("append")',
            )
        return KafkaJobWriter(options, planned(options, schema))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Note that this is a copy: PySpark makes the source where it plans a write, and sends it
        to where it commits.
        """
        self.__dict__.update(state, _is_copy=True)

    def _source(self, *, is_first: bool = False) -> KafkaSource:
        """Parse the options, in each process that Spark makes the source in.

        Args:
            is_first: nobody has parsed them yet, so this process names those without effect. For a
                driver, the driver did.
        """
        if not is_first:
            tell_elsewhere(PLACE)
        options = dict(self.options)
        for ours in (START_FILE_OPTION, SIZE_FILE_OPTION, RANGES_OPTION):
            options.pop(ours, None)
        return KafkaSource.from_options(options)

    def _gives_ranges(self) -> bool:
        return RANGES_OPTION in self.options

    def _file(self, option: str) -> Path | None:
        name = self.options.get(option)
        return None if name is None else Path(name)


class KafkaPartition(InputPartition):  # type: ignore[misc]
    """One range of offsets, read by one task."""

    def __init__(self, value: OffsetRange) -> None:
        super().__init__(value)


class KafkaBatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads from `startingOffsets` (earliest) to `endingOffsets` (latest), once."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the whole read."""
        ranges = SourcePlanner(self._source).plan_batch()
        return [KafkaPartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range in a worker."""
        return _read(self._source, partition)


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans micro-batches with admission control."""

    def __init__(
        self,
        source: KafkaSource,
        start_file: Path | None,
        size_file: Path | None,
        *,
        gives_ranges: bool = False,
    ) -> None:
        self._source = source
        self._gives_ranges = gives_ranges
        self._start_file = start_file
        self._size_file = size_file
        self._planned: SourceStream | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Send the workers only what `read` needs; clients stay in this process."""
        return {"_source": self._source, "_gives_ranges": self._gives_ranges}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins. Spark asks once for each use of the source, and expects
        the same answer each time.
        """
        return self._stream().initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return `maxOffsetsPerTrigger` as Spark's read limit."""
        limit = self._source.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the run at the offsets that exist now."""
        self._stream().stop_at_latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._size_file is not None:
            size = read_size(self._size_file)
            most = size if most is None else min(most, size)
        return self._stream().next_end(start, most)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest offsets, for the query's progress and lag."""
        return self._stream().latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of a micro-batch; a replay gets the same ranges."""
        return [KafkaPartition(each) for each in self._stream().plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range in a worker, or hand it on."""
        if self._gives_ranges:
            return iter([] if partition.value is None else [range_row(partition.value)])
        return _read(self._source, partition)

    def stop(self) -> None:
        """End this process silently when Spark has closed the connection: the query has ended.

        PySpark would write the traceback of the broken connection to stderr.
        """
        if isinstance(sys.exception(), (EOFError, ConnectionError)):
            os._exit(0)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark may call it twice, or never. The transactions carry the offsets."""

    def _stream(self) -> SourceStream:
        if self._planned is None:
            planner = SourcePlanner(self._source)
            self._planned = SourceStream(planner, read_start(self._start_file))
        return self._planned


def _read(source: KafkaSource, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition. Spark makes one that holds None when we planned none."""
    if partition.value is not None:
        yield from read_range(source, partition.value)
    settle_worker_heap()
