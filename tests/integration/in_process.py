"""Pipelines in the process of the test: one Spark session for many drivers, one after the other.

For stories that need no SIGKILL of the driver; those that do use `pipeline_process`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver
from tests.auditor.reader import Record
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend
from transactions.log_state import LogState

AVAILABLE_NOW = "available-now"
CONTINUOUS = "0 seconds"
Branch = Callable[[DataFrame], DataFrame]


def copy(rows: DataFrame) -> DataFrame:
    """Leave the partition to the key."""
    return rows.select("key", "value")


def copy_in_place(rows: DataFrame) -> DataFrame:
    """Keep each record in its partition, so that order can be checked."""
    return rows.select("key", "value", "partition")


@dataclass(frozen=True)
class Copying:
    """One pipeline of one test; every driver of it is a run of its own.

    Attributes:
        spark: the session.
        bootstrap: the broker.
        app: application id.
        checkpoint: a folder.
        source: topics.
        branches: output topic -> what is written there.
        options: of `KafkaSource`.
    """

    spark: SparkSession
    bootstrap: str
    app: str
    checkpoint: Path
    source: str
    branches: dict[str, Branch]
    options: dict[str, Any] = field(default_factory=dict)

    def reading(self, **options: Any) -> Copying:
        """Return the same pipeline with other options of its source."""
        return replace(self, options={**self.options, **options})

    def driver(self, *, trigger: str = AVAILABLE_NOW, **options: Any) -> StreamingDriver:
        """Make a driver that has not started."""
        options = {"restart_strategy": "none", **options}
        made = StreamingDriver(
            self.spark, app_id=self.app, checkpoint=self.checkpoint, trigger=trigger, **options
        )
        reading = {"starting_offsets": "earliest", **self.options}
        source = KafkaSource(bootstrap_servers=self.bootstrap, subscribe=self.source, **reading)
        rows = made.read(source)
        for topic, branch in self.branches.items():
            made.write(branch(rows), KafkaSink(bootstrap_servers=self.bootstrap, topic=topic))
        return made

    def run(self, **options: Any) -> StreamingDriver:
        """Run a driver to the end of what is there."""
        made = self.driver(**options)
        made.run()
        return made

    def log(self) -> LogState:
        """Return what the decision log says."""
        return read_log(LocalFileBackend(self.checkpoint / "decisions"))


def stop(*drivers: StreamingDriver) -> None:
    """Stop as SIGTERM does: between two checkpoints."""
    for driver in drivers:
        driver.stop()
        driver.wait()


def send(
    bootstrap: str,
    topic: str,
    numbers: Iterable[int],
    *,
    partition: int | None = None,
    key: bytes = b"",
) -> None:
    """Produce records: the value is the number; one of five keys where none is given."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    place = {} if partition is None else {"partition": partition}
    for number in numbers:
        producer.produce(topic, b"%06d" % number, key or b"key-%d" % (number % 5), **place)
    assert producer.flush(30) == 0


def values(records: Iterable[Record]) -> list[int]:
    """Return the numbers, in the order of the records."""
    return [int(record.value or b"-1") for record in records]


def per_key(records: Iterable[Record]) -> dict[bytes | None, list[bytes | None]]:
    """Return each key's values in their order."""
    lists = defaultdict(list)
    for record in records:
        lists[record.key].append(record.value)
    return dict(lists)
