"""Topics that a broker makes at their first use, which is Kafka's default.

The marker is the first operation of a transaction, and names a partition of the first record's
topic where the task has no source offsets (`kafka_writer._send_marker`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from connectors.cluster.local_cluster import LocalCluster
from connectors.kafka.sink.kafka_sink import KafkaSink
from tests.auditor.reader import read_committed
from tests.both_halves import KafkaBothHalves
from transactions.clock import Deadline
from transactions.committable import Outcome
from transactions.errors import DeliveryError
from transactions.sink import Attempt, Owner


@pytest.fixture(scope="module")
def creating() -> Iterator[str]:
    """A broker that makes topics, and has made those of its coordinators."""
    with LocalCluster(properties={"auto.create.topics.enable": "true"}) as cluster:
        first = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "w"})
        first.init_transactions(60)
        first.begin_transaction()
        first.produce("first", b"")
        first.flush(60)
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "first"}
        consumer = Consumer(settings)
        group = consumer.consumer_group_metadata()
        first.send_offsets_to_transaction([TopicPartition("first", 0, 1)], group, 60)
        first.commit_transaction(60)
        consumer.close()
        yield cluster.bootstrap_servers


def written(bootstrap: str, topic: str) -> list[bytes | None]:
    """Write a record to a topic that only its row names, and commit it."""
    options = KafkaSink(bootstrap_servers=bootstrap, topic=None, name="out")
    sink = KafkaBothHalves(options, timeout_ms=60_000, checkpoint_timeout_s=30)
    try:
        owner = Owner(application_id=f"app-{uuid.uuid4().hex[:8]}", log_id="a1b2c3d4", run_epoch=1)
        attempt = Attempt(owner=owner, checkpoint_id=0, subtask=0, attempt_id="1.0")
        transaction = sink.begin_transaction(attempt)
        sink.invoke(transaction, pa.record_batch({"value": [b"one"], "topic": [topic]}))
        committable = sink.pre_commit(transaction)
        assert committable is not None
        checked = sink.check_prepared([committable], Deadline(10))
        outcomes = sink.commit(checked, Deadline(10))
        assert list(outcomes.values()) == [Outcome.COMMITTED]
    finally:
        sink.close()
    return [record.value for record in read_committed(bootstrap, topic)]


def test_a_topic_that_a_row_names_is_made_at_its_first_record(creating: str):
    assert written(creating, "fresh") == [b"one"]


def test_a_broker_that_makes_none_refuses_the_batch(bootstrap: str):
    with pytest.raises(DeliveryError, match="does not exist"):
        written(bootstrap, f"none-{uuid.uuid4().hex[:8]}")
