"""A pipeline begins where another client has stopped: at the offsets of its consumer group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from connectors import KafkaSink, KafkaSource
from connectors.cluster.local_cluster import LocalCluster
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.modes import MODES
from connectors.spark.pipeline import arrow_pipeline
from tests.auditor.reader import read_committed
from tests.integration.test_start import dying_at
from tests.pages import block, replaced, run_python
from tests.parity.query import produce
from tests.tiers import long
from transactions.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    DataLossError,
    SparkOnceError,
)


@pytest.fixture
def busy(bootstrap, topic) -> str:
    """A topic with two partitions of ten records."""
    name = str(topic(2, name="in"))
    produce(bootstrap, name, range(10), range(10))
    return name


def read_by(group: str, bootstrap: str, *stands: TopicPartition) -> None:
    """A consumer of this group has read up to here, and has stopped."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[*stands], asynchronous=False)
    consumer.close()


def begins(bootstrap: str, topic: str, **options: Any) -> dict[str, int]:
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=topic, **options)
    return {
        name.removeprefix(topic): at
        for name, at in SourcePlanner(source).starting_offsets().items()
    }


def test_the_page(bootstrap, busy, application_id):
    read_by(application_id, bootstrap, TopicPartition(busy, 0, 7))
    here = {"localhost:9092": bootstrap, '"flights"': f'"{busy}"'}
    names: dict[str, Any] = {}
    page = block("docs/coming_from_spark.md", "starting_group")
    run_python(replaced(page, here | {"flights-consumer": application_id}), names)
    assert SourcePlanner(names["source"]).starting_offsets() == {f"{busy}-0": 7, f"{busy}-1": 0}


def test_it_begins_where_the_group_stands(bootstrap, busy, application_id):
    read_by(application_id, bootstrap, TopicPartition(busy, 0, 7), TopicPartition(busy, 1, 10))
    assert begins(bootstrap, busy, starting_group=application_id) == {"-0": 7, "-1": 10}
    # They win over an option that says another place.
    given = {"starting_group": application_id, "starting_offsets": "earliest"}
    assert begins(bootstrap, busy, **given) == {"-0": 7, "-1": 10}


def test_a_partition_that_the_group_has_never_read_is_an_error(bootstrap, busy, application_id):
    """A misspelt group would otherwise begin at the end, and nobody would see it."""
    read_by(application_id, bootstrap, TopicPartition(busy, 0, 7))
    with pytest.raises(ConfigurationError, match="has committed no offset") as raised:
        begins(bootstrap, busy, starting_group=application_id)
    assert raised.value.where == f"{busy}-1"
    assert f"startingGroupId={application_id}" in raised.value.option
    with pytest.raises(ConfigurationError, match="has committed no offset"):
        begins(bootstrap, busy, starting_group=f"{application_id}-misspelt")


def test_records_that_the_group_has_not_read_and_that_are_gone(bootstrap, busy, application_id):
    read_by(application_id, bootstrap, TopicPartition(busy, 0, 99), TopicPartition(busy, 1, 0))
    with pytest.raises(DataLossError, match="gone") as raised:
        begins(bootstrap, busy, starting_group=application_id)
    assert "startingGroupId" in raised.value.where
    lenient = {"starting_group": application_id, "fail_on_data_loss": False}
    assert begins(bootstrap, busy, **lenient) == {"-0": 10, "-1": 0}


@contextlib.contextmanager
def moving(group: str, bootstrap: str, *stands: TopicPartition) -> Iterator[None]:
    """A client of this group is exactly-once too: its open transaction carries them."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{group}-other"})
    producer.init_transactions(30)
    producer.begin_transaction()
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    producer.send_offsets_to_transaction([*stands], member.consumer_group_metadata(), 30)
    yield
    producer.commit_transaction(30)
    member.close()


def test_offsets_in_an_open_transaction_count_when_it_has_ended(bootstrap, busy, application_id):
    read_by(application_id, bootstrap, TopicPartition(busy, 0, 2), TopicPartition(busy, 1, 2))
    moved = [TopicPartition(busy, 0, 5), TopicPartition(busy, 1, 6)]
    with moving(application_id, bootstrap, *moved):
        for fallback in ({}, {"starting_offsets": "earliest"}):  # the group has read both
            with pytest.raises(BrokerUnavailableError, match="unstable"):
                begins(
                    bootstrap,
                    busy,
                    starting_group=application_id,
                    poll_timeout_ms=3000,
                    **fallback,
                )
    assert begins(bootstrap, busy, starting_group=application_id) == {"-0": 5, "-1": 6}


def test_an_open_transaction_in_a_topic_that_is_not_read_delays_nothing(
    bootstrap, busy, topic, application_id
):
    other = str(topic(1, name="other"))
    read_by(application_id, bootstrap, TopicPartition(busy, 0, 2), TopicPartition(other, 0, 2))
    asked = {"starting_group": application_id, "starting_offsets": "earliest"}
    with moving(application_id, bootstrap, TopicPartition(other, 0, 5)):
        assert begins(bootstrap, busy, poll_timeout_ms=10_000, **asked) == {"-0": 2, "-1": 0}


@long
def test_a_broker_that_has_never_had_a_group():
    """Its coordinator answers NOT_COORDINATOR at first, as one does that moves. librdkafka's admin
    client then ended the whole process, with a segmentation fault and not a word.
    """
    with LocalCluster() as new:
        new.create_topic("in", 2)
        produce(new.bootstrap_servers, "in", range(3), range(4))
        asked = {"starting_group": "first", "starting_offsets": "earliest"}
        assert begins(new.bootstrap_servers, "in", **asked) == {"-0": 0, "-1": 0}


@long
@pytest.mark.parametrize("mode", MODES)
def test_a_pipeline_that_dies_at_its_first_start_begins_where_the_group_stood(
    spark, bootstrap, busy, topic, application_id, checkpoint, mode
):
    """The other client is not stopped yet, and its group goes on."""
    output, group = topic(1, "out"), f"of-{application_id}"

    def run(point: str = "") -> None:
        driver = arrow_pipeline(
            spark,
            app_id=application_id,
            checkpoint=checkpoint,
            source=KafkaSource(bootstrap_servers=bootstrap, subscribe=busy, starting_group=group),
            sink=KafkaSink(bootstrap_servers=bootstrap, topic=output),
            mode=mode,
            trigger="available-now",
            restart_strategy="none",
        )
        if not point:
            driver.run()
            return
        with dying_at(point), pytest.raises(SparkOnceError, match=point):
            driver.run()

    read_by(group, bootstrap, TopicPartition(busy, 0, 7), TopicPartition(busy, 1, 10))
    run("committables_collected")
    read_by(group, bootstrap, TopicPartition(busy, 0, 9), TopicPartition(busy, 1, 10))
    run("decision_durable")
    run()
    produce(bootstrap, busy, range(10, 12), range(10, 12))
    run()
    found = [one.value for one in read_committed(bootstrap, output)]
    assert sorted(found) == sorted(b"%d" % n for n in (7, 8, 9, 10, 11, 10, 11))
