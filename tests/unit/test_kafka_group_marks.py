"""Marks of a write-ahead sink in consumer groups, on librdkafka's own mock cluster: how many
clients they cost, and what is told. tests/integration/test_kafka_group_committer.py has a broker.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from connectors.clients import client_settings
from connectors.wal.kafka_group_committer import KafkaGroupCheckpointCommitter
from tests.mock_cluster import MockCluster
from tests.unit.test_checkpoint_committer import (  # noqa: F401 - the suite
    JOB,
    Make,
    opening,
    test_a_lower_or_equal_mark_changes_nothing,
    test_a_mark_is_found_by_the_next_driver,
    test_a_mark_stands_for_all_checkpoints_before_it,
    test_after_a_rescale_anybody_may_ask_for_any_subtask,
    test_ids_that_go_back_in_another_run_are_not_taken_for_sent,
    test_nothing_is_committed_at_first,
    test_open_and_close_can_be_repeated,
    test_subtasks_operators_and_jobs_do_not_see_each_other,
)
from transactions.errors import ConfigurationError, SparkOnceError


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as made:
        made.topic("marks")
        yield made


@pytest.fixture
def make(cluster: MockCluster) -> Iterator[Make]:
    with opening(lambda: KafkaGroupCheckpointCommitter(cluster.bootstrap, "marks")) as made:
        yield made


def test_all_marks_have_one_client(make: Make, monkeypatch):
    """Each client is a login: two for each subtask and checkpoint would be many."""
    made: list[dict[str, Any]] = []
    client = client_settings.AdminClient

    def counted(settings: dict[str, Any]) -> Any:
        made.append(settings)
        return client(settings)

    monkeypatch.setattr(client_settings, "AdminClient", counted)
    committer = make()
    for number in range(3):
        for subtask in range(2):
            committer.commit_checkpoint(subtask, number)
            assert committer.is_checkpoint_committed(subtask, number)
    assert len(made) == 1
    assert pickle.loads(pickle.dumps(committer)).describe() == committer.describe()
    committer.close()
    committer.open()
    assert committer.is_checkpoint_committed(1, 2)
    assert len(made) == 2


def test_after_an_error_comes_another_client(make: Make, monkeypatch):
    """One client keeps the coordinator that it knows."""
    committer = make()
    committer.commit_checkpoint(0, 1)

    def fails(*_: Any, **__: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "gone"))

    monkeypatch.setattr(committer, "_marked", fails)
    with pytest.raises(SparkOnceError, match="gone"):
        committer.is_checkpoint_committed(0, 1)
    monkeypatch.undo()
    assert committer.is_checkpoint_committed(0, 1)


def test_a_wrong_setting_is_told_as_such(cluster: MockCluster):
    wrong = KafkaGroupCheckpointCommitter(cluster.bootstrap, "marks", kafka={"linger.ms": "often"})
    wrong.set_job_id(JOB)
    wrong.open()
    with pytest.raises(ConfigurationError, match="linger"):
        wrong.is_checkpoint_committed(0, 0)
