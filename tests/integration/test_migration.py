"""A migrated pipeline under its driver: each source begins at its own offset, and records that the
topic no longer has are data loss.

Checkpoints of Spark's own connector are in `journeys/test_from_sparks_own_source.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from connectors import KafkaSink, KafkaSource
from connectors.pipeline.migration import migrate
from connectors.spark import StreamingDriver
from connectors.testing.auditor.reader import read_committed
from tests.parity.query import produce
from tests.tiers import long
from tests.unit.spark_checkpoints import batch, make
from transactions.errors import DataLossError

Run = Callable[..., list[int]]


@pytest.fixture
def run(spark, bootstrap, topic, application_id, tmp_path: Path) -> Run:
    """Start the migrated pipeline, let it read what is there, and return what came out, sorted."""
    output = topic(1, "out")

    def start(*topics: str, **options: object) -> list[int]:
        driver = StreamingDriver(
            spark,
            app_id=application_id,
            checkpoint=tmp_path / "new",
            trigger="available-now",
            restart_strategy="none",
        )
        frames = [
            driver.read(KafkaSource(bootstrap_servers=bootstrap, subscribe=one, **options))
            for one in topics
        ]
        both = frames[0].select("value")
        for frame in frames[1:]:
            both = both.union(frame.select("value"))
        driver.write(both, KafkaSink(bootstrap_servers=bootstrap, topic=output))
        driver.run()
        return sorted(int(record.value) for record in read_committed(bootstrap, output))

    return start


@pytest.fixture
def migrated(tmp_path: Path, application_id: str) -> Callable[..., None]:
    def begin_at(*sources: str, version: str = "v1") -> None:
        make(tmp_path / "old", {0: batch(*sources, version=version)}, range(1))
        migrate(tmp_path / "old", app_id=application_id, checkpoint=tmp_path / "new")

    return begin_at


@long
def test_each_source_begins_at_its_own_offset_and_a_second_start_goes_on(
    run: Run, migrated, topic, bootstrap: str
):
    flights, airports = topic(1, "flights"), topic(1, "airports")
    produce(bootstrap, flights, range(10))
    produce(bootstrap, airports, range(20))
    migrated(f'1:{{"{airports}":{{"0":15}}}}', f'0:{{"{flights}":{{"0":7}}}}', version="v2")

    assert run(flights, airports) == [7, 8, 9, 15, 16, 17, 18, 19]
    produce(bootstrap, flights, range(100, 102))
    assert run(flights, airports) == [7, 8, 9, 15, 16, 17, 18, 19, 100, 101]


@long
def test_records_that_retention_has_removed_are_data_loss(
    run: Run, migrated, topic, bootstrap: str
):
    flights = topic(1, "flights")
    produce(bootstrap, flights, range(10))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ((_, removed),) = admin.delete_records([TopicPartition(flights, 0, 6)]).items()
    removed.result(30)
    migrated(f'{{"{flights}":{{"0":4}}}}')

    with pytest.raises(DataLossError, match="the partition begins at 6"):
        run(flights)
    assert run(flights, fail_on_data_loss=False) == [6, 7, 8, 9]


def test_a_topic_that_ends_before_the_offset_is_data_loss(
    run: Run, migrated, topic, bootstrap: str
):
    """It was deleted and made anew; Spark's checkpoint has no id of it."""
    flights = topic(1, "flights")
    produce(bootstrap, flights, range(3))
    migrated(f'{{"{flights}":{{"0":4}}}}')

    with pytest.raises(DataLossError, match=f"{flights}-0 ends at 3"):
        run(flights)
