"""A continuous pipeline that a test runs to its end, or follows, and the rows that it read.

It has the methods of `tests.parity.query.Query`. Its function writes down which record it got, and
the rows are what an independent reader finds in the output topic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.records.arrow_transform import ArrowFunction
from connectors.records.message_schema import SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS
from connectors.spark.continuous_driver import ContinuousDriver
from connectors.testing.auditor.reader import Follower, Record
from tests.parity.query import Rows
from tests.waiting import until

_PATIENCE_S = 120.0
_BETWEEN = b"/"


def place_and_value(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the place of each record, and its value, as one value."""
    names = ("topic", "partition", "offset", "value")
    texts = [records[name].cast(pa.string()).cast(pa.binary()) for name in names]
    joined = pc.binary_join_element_wise(*texts, pa.scalar(_BETWEEN, pa.binary()))
    return pa.record_batch({"value": joined})


def row_of(record: Record) -> tuple[str, int, int]:
    """Return what `place_and_value` wrote; each value must be the offset."""
    topic, partition, offset, value = (record.value or b"").split(_BETWEEN)
    assert offset == value
    return topic.decode(), int(partition), int(offset)


class ContinuousQuery:
    """One run of a pipeline; it runs while it is entered.

    Args:
        spark: the session.
        source: what is read.
        sink: the output; its topic has one partition.
        app: the application id; also the name of its folder.
        checkpoint: the checkpoint folder.
        follower: reads the output from its beginning, over all runs.
        trigger: of the driver.
        transform: writes down the records; or another function that ends with it.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: KafkaSource,
        sink: KafkaSink,
        *,
        app: str,
        checkpoint: str,
        follower: Follower,
        trigger: str | None = None,
        transform: ArrowFunction = place_and_value,
    ) -> None:
        self.driver = ContinuousDriver(
            spark,
            app_id=app,
            checkpoint=checkpoint,
            source=source,
            sink=sink,
            transform=transform,
            restart_strategy="none",
            **({} if trigger is None else {"trigger": trigger}),
        )
        self._follower = follower
        self._before = len(follower.drain())

    def __enter__(self) -> Self:
        self.driver.start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self.driver.request_stop()
        if failed is None:
            self.driver.wait()
            self._follower.drain()
        else:
            self.driver.stop()

    @property
    def rows(self) -> Rows:
        """All rows of this run so far."""
        return sorted(map(row_of, self._follower.records[self._before :]))

    def until(self, rows: int) -> Rows:
        """Wait until there are so many rows, and return them."""
        wanted = self._before + rows
        self._follower.until(lambda seen: len(seen) >= wanted, timeout=_PATIENCE_S)
        return self.rows

    def fails(self) -> str:
        """Wait until it has failed, and return what it said."""
        try:
            assert self.driver.await_termination(_PATIENCE_S), "it does not end"
        except Exception as error:
            return str(error)
        raise AssertionError("it ended well")

    def runs_to_its_end(self) -> Rows:
        """Run it with the trigger available-now, and return its rows."""
        with self:
            assert self.driver.await_termination(_PATIENCE_S), "it does not end"
            assert self.driver.await_termination(0), "a second question has another answer"
        return self.rows


def checked(records: pa.RecordBatch, with_headers: bool) -> pa.RecordBatch:
    """Do the same; the columns are exactly those of Spark's source."""
    wanted = SOURCE_SCHEMA_WITH_HEADERS if with_headers else SOURCE_SCHEMA
    assert records.schema == wanted, records.schema
    return place_and_value(records)


def after_a_file(records: pa.RecordBatch, folder: str) -> pa.RecordBatch:
    """Do the same, when the file `go` is there; the file `came` says that a task waits."""
    (Path(folder) / "came").touch()
    until((Path(folder) / "go").exists, _PATIENCE_S)
    return place_and_value(records)


def one_column_more(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the values, and a column for which a Kafka record has no place."""
    return pa.record_batch({"value": records["value"], "colour": records["value"]})


def no_value(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the keys only."""
    return records.select(["key"])


def with_topics(records: pa.RecordBatch, topics: list[str | None]) -> pa.RecordBatch:
    """Return the values, each with the topic that its offset chooses."""
    chosen = [topics[offset % len(topics)] for offset in records["offset"].to_pylist()]
    return pa.record_batch({"value": records["value"], "topic": pa.array(chosen, pa.string())})


def with_partitions(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the values with one key; the first three offsets choose partition 2, others none."""
    chosen = [2 if offset < 3 else None for offset in records["offset"].to_pylist()]
    keys = pa.array([b"k"] * len(chosen), pa.binary())
    columns = {"key": keys, "value": records["value"], "partition": pa.array(chosen, pa.int32())}
    return pa.record_batch(columns)


def made_large(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return each value 300,000 times."""
    values = [value * 300_000 for value in records["value"].to_pylist()]
    return pa.record_batch({"value": pa.array(values, pa.binary())})
