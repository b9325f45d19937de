"""The contract of checkpoint committers for PostgreSQL, and what only a server can do."""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from connectors.postgres.postgres_committer import PostgresCheckpointCommitter
from tests.integration.postgres_server import (  # noqa: F401 - two are fixtures
    PostgresDatabase,
    postgres,
    postgres_server,
)
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
from transactions.errors import BrokerUnavailableError, ConfigurationError


@pytest.fixture
def make(postgres: PostgresDatabase) -> Iterator[Make]:
    with opening(lambda: PostgresCheckpointCommitter(postgres.conninfo, timeout_s=10)) as made:
        yield made


def test_a_server_that_is_away_is_an_error_not_a_no():
    away = PostgresCheckpointCommitter("host=127.0.0.1 port=1 dbname=x", timeout_s=2)
    for step in (away.create_resource, away.open):
        with pytest.raises(BrokerUnavailableError):
            step()


def opened(database: PostgresDatabase) -> PostgresCheckpointCommitter:
    one = PostgresCheckpointCommitter(database.conninfo, timeout_s=10)
    one.set_operator_id("out")
    one.create_resource()
    one.open()
    one.set_job_id(JOB)
    return one


def test_a_mark_in_a_transaction_goes_with_it(postgres: PostgresDatabase):
    one = opened(postgres)
    with pytest.raises(ZeroDivisionError), one.transaction():
        one.commit_checkpoint(0, 3)
        raise ZeroDivisionError
    one.open()
    assert not one.is_checkpoint_committed(0, 3)
    with one.transaction():
        one.commit_checkpoint(0, 3)
    assert one.is_checkpoint_committed(0, 3)
    one.close()


def test_a_transaction_keeps_a_second_driver_out(postgres: PostgresDatabase):
    """Between the question for a mark and the mark nobody else can send the same records."""
    one, other = opened(postgres), opened(postgres)
    with one.transaction():
        other.connection.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable), other.transaction():
            raise AssertionError("it came in")
        one.commit_checkpoint(0, 3)
    other.open()
    with other.transaction():
        assert other.is_checkpoint_committed(0, 3)
    one.close()
    other.close()


def test_a_transaction_that_was_ended_inside_is_told(postgres: PostgresDatabase):
    one = opened(postgres)
    with pytest.raises(ConfigurationError, match="ended the transaction"), one.transaction():
        one.connection.execute("COMMIT")
    one.close()


def test_a_server_that_was_killed_is_reached_again(postgres: PostgresDatabase):
    one = opened(postgres)
    one.commit_checkpoint(0, 3)
    postgres.server.kill()
    with pytest.raises((psycopg.Error, BrokerUnavailableError)):
        one.is_checkpoint_committed(0, 3)
    postgres.server.start()
    one.open()
    assert one.is_checkpoint_committed(0, 3)
    one.close()


def test_a_table_with_capitals_is_found_again(postgres: PostgresDatabase):
    for _ in range(2):
        one = PostgresCheckpointCommitter(postgres.conninfo, table="Marks", timeout_s=10)
        one.set_operator_id("out")
        one.create_resource()


def test_no_password_is_told(postgres: PostgresDatabase):
    assert postgres.server.password not in opened(postgres).describe()
