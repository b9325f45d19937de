"""What the guarantee needs of a session is there when the query starts, whoever set another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver
from connectors.spark.session import prepare_session
from tests.auditor.reader import read_committed

OTHERS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming"
    ".state.HDFSBackedStateStoreProvider",
}


def test_a_builder_in_the_users_module_changes_none_of_it(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    checkpoint: str,
):
    """A module is imported between the driver and its start; `getOrCreate` sets on the session."""
    source, sink = topic(name="in"), topic(name="out")
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(source, b"waiting")
    assert producer.flush(30) == 0
    driver = StreamingDriver(
        spark, app_id=application_id, checkpoint=checkpoint, trigger="available-now"
    )
    frame = driver.read(
        KafkaSource(bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest")
    )
    assert SparkSession.builder.config(map=OTHERS).getOrCreate() is spark
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    driver.write(frame.select("key", "value"), KafkaSink(bootstrap_servers=bootstrap, topic=sink))
    driver.run()
    assert [record.value for record in read_committed(bootstrap, sink)] == [b"waiting"]
    # What Spark has noted of the query's settings, and what later ones of the session get.
    noted = json.loads((Path(checkpoint) / "spark/offsets/0").read_text().splitlines()[1])["conf"]
    assert "RocksDB" in noted["spark.sql.streaming.stateStore.providerClass"]
    assert {name: spark.conf.get(name) for name in OTHERS}.items().isdisjoint(OTHERS.items())


def test_a_checkpoint_at_an_address_takes_nothing_from_one_in_a_folder(spark: SparkSession):
    """One session has both, one after the other. A manager for folders renames without the check
    that HDFS has, and says nothing of a rename that a store refused.
    """
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    prepare_session(spark, local_checkpoint=True)
    assert spark.conf.get(manager, None) is not None
    prepare_session(spark, local_checkpoint=False)
    assert spark.conf.get(manager, None) is None
    spark.conf.set(manager, "the.user.s.Own")
    prepare_session(spark, local_checkpoint=False)
    assert spark.conf.get(manager, None) == "the.user.s.Own"
    spark.conf.unset(manager)
