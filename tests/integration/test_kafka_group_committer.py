"""The contract of checkpoint committers for offsets of Kafka's consumer groups."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from connectors.clients import client_settings
from connectors.wal import kafka_group_committer
from connectors.wal.kafka_group_committer import KafkaGroupCheckpointCommitter
from tests.unit.test_checkpoint_committer import (  # noqa: F401 - the suite
    JOB,
    Make,
    opening,
    test_a_lower_or_equal_mark_changes_nothing,
    test_a_mark_is_found_by_the_next_driver,
    test_a_mark_stands_for_all_checkpoints_before_it,
    test_after_a_rescale_anybody_may_ask_for_any_subtask,
    test_ids_that_go_back_in_another_run_are_not_taken_for_sent,
    test_it_travels_to_a_worker_while_it_is_open,
    test_nothing_is_committed_at_first,
    test_open_and_close_can_be_repeated,
    test_subtasks_operators_and_jobs_do_not_see_each_other,
    test_two_sinks_cannot_share_one_object,
)
from transactions.errors import ConfigurationError, MissingTopicError, SparkOnceError


@pytest.fixture
def marks(topic: Callable[..., str]) -> str:
    return topic(1, "marks")


@pytest.fixture
def make(bootstrap: str, marks: str) -> Iterator[Make]:
    with opening(lambda: KafkaGroupCheckpointCommitter(bootstrap, marks)) as made:
        yield made


def test_any_client_sees_the_mark_in_the_group(make, bootstrap: str, marks: str):
    make().commit_checkpoint(2, 7)
    group = f"{JOB}.out.2"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition(marks, 0)], timeout=30)
    consumer.close()
    assert found.offset == 7


def test_all_marks_have_one_client_to_read_and_one_to_write(make, monkeypatch):
    """Each client is a login: two for each subtask and checkpoint would be many."""
    made: list[str] = []

    def counted(module: Any, name: str) -> None:
        client = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: made.append(name) or client(*a, **k))

    counted(client_settings, "AdminClient")
    counted(kafka_group_committer, "CoordinatorWire")
    committer = make()
    for number in range(3):
        for subtask in range(2):
            committer.commit_checkpoint(subtask, number)
            assert committer.is_checkpoint_committed(subtask, number)
    assert sorted(made) == ["AdminClient", "CoordinatorWire"]
    assert pickle.loads(pickle.dumps(committer)).describe() == committer.describe()
    committer.close()
    committer.open()
    assert committer.is_checkpoint_committed(1, 2)
    assert sorted(made) == ["AdminClient", "CoordinatorWire", "CoordinatorWire"]


def test_a_wrong_setting_is_told_as_such(bootstrap: str, marks: str):
    wrong = KafkaGroupCheckpointCommitter(bootstrap, marks, kafka={"linger.ms": "often"})
    wrong.set_job_id(JOB)
    wrong.open()
    with pytest.raises(ConfigurationError, match="linger"):
        wrong.commit_checkpoint(0, 1)


def test_a_broker_that_is_away_is_an_error_not_a_no():
    away = KafkaGroupCheckpointCommitter("127.0.0.1:1", "marks", timeout_s=2)
    away.set_job_id(JOB)
    away.open()
    with pytest.raises(SparkOnceError):
        away.is_checkpoint_committed(0, 0)


def test_a_topic_that_is_not_there_takes_no_mark(bootstrap: str):
    one = KafkaGroupCheckpointCommitter(bootstrap, "no-such-topic")
    one.set_job_id(JOB)
    one.open()
    with pytest.raises(MissingTopicError):
        one.commit_checkpoint(0, 1)
