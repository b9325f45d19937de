"""The readers of the source `kafka-exactly-once`.

`KafkaStreamReader` runs in a process of its own beside the driver; `read` runs in Spark's Python
workers. Apart from the data source: Spark makes a process for each look at its options and columns,
and none of these needs Arrow or a client of Kafka.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from connectors.kafka.source.offsets import OffsetRange
from connectors.kafka.source.range_reader import read_range
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.kafka.source.source_stream import SourceStream
from connectors.options.kafka_source import KafkaSource
from connectors.spark.batch_size import read_size
from connectors.spark.range_rows import range_row
from connectors.spark.start_file import read_start
from connectors.spark.worker_daemon import keep_quiet
from connectors.spark.worker_heap import settle_worker_heap

keep_quiet()  # each of Spark's workers that reads loads this module


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
