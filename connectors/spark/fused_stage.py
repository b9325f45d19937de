"""Read, transform and write in one task, for a pipeline that is one Arrow function.

Spark runs a Python source, a Python function and a Python sink as three stages of a task. Between
two of them the JVM turns each record into a row and back into Arrow. Here the source hands on only
the ranges of a batch, one row for each, and the sink's stage reads the records of its range itself.
So no record enters the JVM. The offsets of a batch, its tasks and its output stay the same: a batch
that was planned with three stages is replayed with one, and the other way round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from connectors.kafka.source.range_reader import read_range
from connectors.options.kafka_source import KafkaSource
from connectors.records.arrow_transform import ArrowFunction, complete, load_function, normalised
from connectors.spark.range_rows import ranges_in
from connectors.spark.sink_stage import SinkStage

#: A batch may keep this many times what it shows, and this much more.
_SLACK: Final = 2
_SMALL_BYTES: Final = 65_536


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadingStage:
    """Turns ranges into their records, for a sink. In a worker.

    Attributes:
        source: what is read.
        transform: the user's function, or its ``module:name``.
        declared: the columns that the function may return; a missing one is null.
        written: those of them that the sink gets, with the types that a row of Spark's has.
    """

    source: KafkaSource
    transform: str | ArrowFunction
    declared: pa.Schema
    written: pa.Schema

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read and transform.

        Args:
            rows: of `RANGES_SCHEMA`.

        Raises:
            SparkOnceError: see `read_range`.
            ConfigurationError: see `normalised` and `complete`.
        """
        function = load_function(self.transform)
        for batch in rows:
            for wanted in ranges_in(batch):
                for records in read_range(self.source, wanted):
                    made = complete(normalised(function(records)), self.declared)
                    made = complete(made.select(self.written.names), self.written)
                    yield compact(made)


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch that keeps no more memory than it shows. A function can return a small slice
    of what it got, and a sink that collects rows counts the slice, not all that it holds alive.
    """
    if batch.get_total_buffer_size() <= _SLACK * batch.nbytes + _SMALL_BYTES:
        return batch
    return batch.take(pa.array(range(batch.num_rows), pa.int64()))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FusedStage:
    """The function of the only Python stage; see the module.

    Attributes:
        reading: gives the records.
        sink: writes them, under the order of their batch.
    """

    reading: ReadingStage
    sink: SinkStage

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task: see `SinkStage`."""
        return self.sink(rows, self.reading)
