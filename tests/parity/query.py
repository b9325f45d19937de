"""A query that a test runs to its end, or follows, and the rows that it gave."""

from __future__ import annotations

import threading
import time
from typing import Any, Self

from confluent_kafka import KafkaError, Message, Producer
from pyspark.sql import DataFrame

Rows = list[tuple[str, int, int]]
_PATIENCE_S = 120.0
_AN_HOUR_AGO = int(time.time() * 1000) - 3_600_000


def at(offset: int) -> int:
    """Return the time of an offset, in milliseconds; old records would be deleted by retention."""
    return _AN_HOUR_AGO + offset


def produce(bootstrap: str, topic: str, *offsets: range) -> None:
    """Write a range of offsets to each partition; the value is the offset, the time is `at(it)`.

    Args:
        bootstrap: the broker.
        topic: the topic.
        offsets: of partition 0, 1, ...; the next ones that the partition has.
    """
    producer = Producer({"bootstrap.servers": bootstrap})
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for partition, numbers in enumerate(offsets):
        for number in numbers:
            place = {"partition": partition, "timestamp": at(number)}
            producer.produce(topic, b"%d" % number, on_delivery=delivered, **place)
    assert producer.flush(30) == 0
    assert failures == []


def rows_of(frame: DataFrame) -> Rows:
    """Return topic, partition and offset of all rows; each value must be the offset."""
    found = frame.select("topic", "partition", "offset", "value").collect()
    assert all(row["offset"] == int(row["value"]) for row in found)
    return sorted((row["topic"], row["partition"], row["offset"]) for row in found)


def expected(topic: str, *offsets: range) -> Rows:
    """Return what `rows_of` gives for these offsets of partition 0, 1, ..."""
    return [(topic, partition, n) for partition, numbers in enumerate(offsets) for n in numbers]


class Query:
    """A streaming query into foreachBatch; runs while it is entered."""

    def __init__(self, frame: DataFrame, checkpoint: str, **trigger: Any) -> None:
        self.batches: dict[int, Rows] = {}
        self._arrived = threading.Condition()
        self._writer = (
            frame.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", checkpoint)
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
        )

    def __enter__(self) -> Self:
        self.query = self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()

    def _take(self, batch: DataFrame, number: int) -> None:
        found = rows_of(batch)
        with self._arrived:
            self.batches[number] = found
            self._arrived.notify_all()

    @property
    def rows(self) -> Rows:
        """All rows so far."""
        return sorted(row for batch in self.batches.values() for row in batch)

    def until(self, rows: int) -> Rows:
        """Wait until there are so many rows, and return them."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.rows) >= rows, _PATIENCE_S), self.rows
            return self.rows

    def until_it_has_begun(self) -> None:
        """Wait until the query knows where it begins: Spark tells progress after its first look."""
        while self.query.lastProgress is None:
            assert not self.query.awaitTermination(0.05), "the query ended"


def run_to_its_end(frame: DataFrame, checkpoint: str) -> Query:
    """Run a query with the trigger available-now."""
    query = Query(frame, checkpoint, availableNow=True)
    with query:
        assert query.query.awaitTermination(_PATIENCE_S), "the query did not end"
    return query
