"""The write-ahead sink for PostgreSQL on a real server: what the table never takes."""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.postgres.postgres_committer import PostgresCheckpointCommitter
from connectors.postgres.postgres_write_ahead_sink import PostgresWriteAheadSink
from tests.both_halves import both_halves
from tests.integration.postgres_server import (  # noqa: F401 - two are fixtures
    PostgresDatabase,
    postgres,
    postgres_server,
)
from tests.unit.samples import decision
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.decision_log import DecisionLog
from transactions.errors import RecordRefusedError
from transactions.log_entries import ACCEPT_LOSS, Resolved
from transactions.log_location import backend_for
from transactions.recovery import recover
from transactions.sink import Attempt


def opened(database: PostgresDatabase, folder: Path, **other: Any) -> Any:
    options = PostgresWriteAheadSink(
        name="out",
        buffer=folder / "buffer",
        committer=PostgresCheckpointCommitter(database.conninfo, timeout_s=10),
        table="said",
        **other,
    )
    return both_halves(options)


def log_of(folder: Path) -> DecisionLog:
    return DecisionLog.open(backend_for(folder / "log"), application_id="app", identity={})


def prepared(sink: Any, log: DecisionLog, subtask: int, *numbers: int) -> Committable:
    attempt = Attempt(owner=log.owner, checkpoint_id=0, subtask=subtask, attempt_id=f"1.{subtask}")
    transaction = sink.begin_transaction(attempt)
    for number in numbers:
        sink.invoke(transaction, pa.record_batch({"id": pa.array([number], pa.int64())}))
    one: Committable = sink.pre_commit(transaction)
    return one


def ids(database: PostgresDatabase) -> list[int]:
    return [row[0] for row in database.execute("SELECT id FROM said ORDER BY id")]


def test_an_accepted_loss_ends_a_refusal_and_the_rest_is_committed(postgres, tmp_path):
    postgres.execute("CREATE TABLE said (id bigint CHECK (id < 9))")
    sink, log = opened(postgres, tmp_path), log_of(tmp_path)
    ones = [prepared(sink, log, 0, 1), prepared(sink, log, 1, 2, 9), prepared(sink, log, 2, 3)]
    log.decide(decision(0, committables=tuple(ones)))
    log = log_of(tmp_path)
    with pytest.raises(RecordRefusedError, match="violates check constraint") as refused:
        recover(log, {"out": sink}, Deadline(10))
    assert f"resolve {ones[1].transactional_id} --accept-loss" in refused.value.option
    assert ids(postgres) == [1]
    log.resolve(Resolved(checkpoint_id=0, verdict=ACCEPT_LOSS, tokens=(ones[1].token,), note=""))
    assert recover(log_of(tmp_path), {"out": sink}, Deadline(10)).lost == []
    assert ids(postgres) == [1, 3]
    sink.close()


def slow(database: PostgresDatabase, seconds: float) -> None:
    """Make the table, whose rows take their time."""
    database.execute("CREATE TABLE said (id bigint)")
    database.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END'"
    )
    database.execute("CREATE TRIGGER w BEFORE INSERT ON said FOR EACH ROW EXECUTE FUNCTION wait()")


def test_a_buffer_may_take_longer_than_a_batch_may(postgres, tmp_path):
    slow(postgres, 1.0)
    sink, log = opened(postgres, tmp_path, timeout_s=3.0), log_of(tmp_path)
    one = prepared(sink, log, 0, 1, 2, 3, 4)
    assert sink.commit([one], Deadline(20)) == {one.token: Outcome.COMMITTED}
    assert ids(postgres) == [1, 2, 3, 4]
    sink.close()


def test_a_batch_that_takes_too_long_names_the_option(postgres, tmp_path, caplog):
    slow(postgres, 5)
    sink, log = opened(postgres, tmp_path, timeout_s=0.3), log_of(tmp_path)
    one = prepared(sink, log, 0, 1)
    assert sink.commit([one], Deadline(20)) == {one.token: Outcome.UNKNOWN}
    for part in ("statement timeout", "timeout_s=0.3", "kept and sent again"):
        assert part in caplog.text
    assert ids(postgres) == []
    sink.close()


def test_a_deferred_constraint_refuses_the_row_too(postgres, tmp_path):
    """The server checks it at COMMIT, where a refusal would look like a lost answer."""
    postgres.execute("CREATE TABLE said (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    sink, log = opened(postgres, tmp_path), log_of(tmp_path)
    one = prepared(sink, log, 0, 7, 7)
    with pytest.raises(RecordRefusedError, match="duplicate key"):
        sink.commit([one], Deadline(10))
    assert ids(postgres) == []
    sink.close()
