"""Spark was killed while it wrote the plan of its first batch; the next start plans it again.

Spark writes ``offsets/0`` under another name first. Where it has no plan it refuses each file that
it finds in that folder, its own half-written one too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver
from tests.auditor.reader import read_committed


@pytest.mark.parametrize("log", ["offsets", "commits", "state/0/0"])
def test_what_a_kill_in_the_first_batch_leaves_stops_no_later_start(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    checkpoint: str,
    log: str,
):
    source, sink = topic(name="in"), topic(name="out")
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(source, b"waiting")
    assert producer.flush(30) == 0
    folder = Path(checkpoint) / "spark" / log
    folder.mkdir(parents=True)
    (folder / ".0.76915d7c-a22b-46b3-a9f8-97a488836147.tmp").write_text("v1")
    driver = StreamingDriver(
        spark, app_id=application_id, checkpoint=checkpoint, trigger="available-now"
    )
    frame = driver.read(
        KafkaSource(bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest")
    )
    driver.write(
        frame.selectExpr("key", "value"), KafkaSink(bootstrap_servers=bootstrap, topic=sink)
    )
    driver.run()
    assert [record.value for record in read_committed(bootstrap, sink)] == [b"waiting"]
