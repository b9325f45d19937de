"""The PostgreSQL sink on a real server; what a test asserts was read by a session of its own."""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psutil
import psycopg
import pyarrow as pa
import pytest

from connectors.postgres import PostgresSink
from connectors.postgres.commit_marks import KEPT
from tests.both_halves import both_halves
from tests.integration.postgres_server import (  # noqa: F401 - two are fixtures
    PostgresDatabase,
    PostgresServer,
    postgres,
    postgres_server,
)
from tests.tiers import sampled
from tests.waiting import until
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ConfigurationError,
    DeliveryError,
    PhaseOneError,
    RecordRefusedError,
)
from transactions.restart_strategy import is_retried
from transactions.sink import Attempt, Owner, SinkContext
from transactions.sweeper import sweep

OWNER = Owner(application_id="app", log_id="c0ffee00", run_epoch=3)
SCHEMA = pa.schema({"id": pa.int64(), "said": pa.string()})


@pytest.fixture
def table(postgres: PostgresDatabase) -> PostgresDatabase:
    """The database, with a table `said`."""
    postgres.execute("CREATE TABLE said (id bigint, said text)")
    return postgres


def options(database: PostgresDatabase, **other: str) -> PostgresSink:
    return PostgresSink(**{"conninfo": database.conninfo, "table": "said", **other})


def opened(database: PostgresDatabase, **other: str) -> Any:
    return both_halves(options(database, **other), checkpoint_timeout_s=30)


def attempt(checkpoint: int = 0, subtask: int = 0, owner: Owner = OWNER) -> Attempt:
    name = f"{owner.run_epoch}.{subtask}"
    return Attempt(owner=owner, checkpoint_id=checkpoint, subtask=subtask, attempt_id=name)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": n, "said": f"n{n}"} for n in numbers], SCHEMA)


def written(sink: Any, *numbers: int, of: Attempt | None = None) -> Committable:
    """Return what a task returns that writes some numbers, one batch for each."""
    transaction = sink.begin_transaction(of or attempt())
    for number in numbers:
        sink.invoke(transaction, batch(number))
    committable = sink.pre_commit(transaction)
    assert committable is not None
    return committable


def ids(database: PostgresDatabase) -> list[int]:
    return [row[0] for row in database.execute("SELECT id FROM said ORDER BY id")]


def soon() -> Deadline:
    return Deadline(20)


def test_open_and_prepared_are_invisible_and_a_commit_is_exact(table):
    sink = opened(table)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch(1, 2))
    sink.invoke(transaction, batch(3))
    assert ids(table) == []
    committable = Committable.from_json(sink.pre_commit(transaction).to_json())
    assert (ids(table), table.prepared()) == ([], [committable.transactional_id])
    assert committable.record_count == 3
    assert committable.timeout_ms == 0
    assert sink.check_prepared([committable], soon()) == [committable]
    driver = opened(table)  # the driver's half is in another process than the task's
    assert driver.commit([committable], soon()) == {committable.token: Outcome.COMMITTED}
    assert (ids(table), table.prepared()) == ([1, 2, 3], [])


def test_a_second_commit_is_harmless_and_proven(table):
    sink = opened(table)
    one = written(sink, 1)
    sink.commit([one], soon())
    assert sink.commit([one], soon()) == {one.token: Outcome.ALREADY_COMMITTED}
    assert sink.recover_and_commit([one], soon()) == {one.token: Outcome.ALREADY_COMMITTED}
    assert ids(table) == [1]


def test_a_task_without_rows_leaves_nothing(table):
    sink = opened(table)
    # By their pids: a session of an earlier test may end only now, and counts as one less. Without
    # those of this test's own questions: the server may still be ending one at the next.
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'sparkonce'"
    before = set(table.execute(sessions))
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch())
    assert set(table.execute(sessions)) <= before
    assert sink.pre_commit(transaction) is None
    assert table.prepared() == []


def test_recovery_finishes_what_is_prepared_and_proves_the_rest(table):
    sink = opened(table)
    done, left = written(sink, 1), written(sink, 2, of=attempt(subtask=1))
    sink.commit([done], soon())
    assert opened(table).recover_and_commit([done, left], soon()) == {
        done.token: Outcome.ALREADY_COMMITTED,
        left.token: Outcome.COMMITTED,
    }
    assert ids(table) == [1, 2]


def test_what_an_operator_rolled_back_is_proven_aborted(table):
    sink = opened(table)
    one, other = written(sink, 1), written(sink, 2, of=attempt(subtask=1))
    table.execute(f"ROLLBACK PREPARED '{one.transactional_id}'")
    with pytest.raises(PhaseOneError, match="transaction is gone") as raised:
        sink.check_prepared([one, other], soon())
    assert one.transactional_id in raised.value.where
    expected = {one.token: Outcome.ABORTED, other.token: Outcome.COMMITTED}
    assert sink.commit([one, other], soon()) == expected
    assert sink.recover_and_commit([one], soon()) == {one.token: Outcome.ABORTED}
    assert ids(table) == [2]


def test_what_an_operator_committed_is_proven_committed(table):
    """COMMIT PREPARED says the same in both cases: does not exist. Only the mark tells."""
    sink = opened(table)
    one = written(sink, 1)
    table.execute(f"COMMIT PREPARED '{one.transactional_id}'")
    assert sink.commit([one], soon()) == {one.token: Outcome.ALREADY_COMMITTED}
    assert ids(table) == [1]


def test_marks_are_pruned_and_a_pruned_mark_is_no_proof(table):
    sink = opened(table)
    every = [written(sink, number, of=attempt(number)) for number in range(KEPT + 3)]
    other = dataclasses.replace(OWNER, log_id="0ther000")
    foreign = written(sink, 100, of=attempt(0, owner=other))
    sink.commit([foreign], soon())
    for one in every:
        sink.commit([one], soon())
    kept = table.execute("SELECT log_id, checkpoint_id FROM sparkonce_commits ORDER BY 2, 1")
    assert kept == [("0ther000", 0)] + [("c0ffee00", n) for n in range(2, KEPT + 3)]
    oldest, newest = every[0], every[-1]
    assert sink.recover_and_commit([oldest, every[2], newest], soon()) == {
        oldest.token: Outcome.UNKNOWN,
        every[2].token: Outcome.ALREADY_COMMITTED,
        newest.token: Outcome.ALREADY_COMMITTED,
    }


@pytest.mark.parametrize("killed", sampled(["prepared", "committed"], "prepared"))
def test_a_server_that_is_killed_keeps_what_was_prepared(table, killed):
    sink = opened(table)
    one = written(sink, 1, 2)
    if killed == "committed":
        sink.commit([one], soon())
    table.server.kill()
    assert sink.commit([one], Deadline(3)) == {one.token: Outcome.UNKNOWN}
    assert sink.recover_and_commit([one], Deadline(3)) == {one.token: Outcome.UNKNOWN}
    with pytest.raises(BrokerUnavailableError):
        sink.lingering(OWNER, Deadline(3))
    table.server.start()
    expected = Outcome.COMMITTED if killed == "prepared" else Outcome.ALREADY_COMMITTED
    assert sink.recover_and_commit([one], soon()) == {one.token: expected}
    assert (ids(table), table.prepared()) == ([1, 2], [])


def test_a_standby_proves_nothing(table):
    """It does not show what is prepared: a decided transaction would look as if it were gone."""
    sink = opened(table)
    one = written(sink, 1)
    signal_file = table.server.folder / "data" / "standby.signal"
    table.server.stop()
    signal_file.touch()
    table.server.start()
    try:
        assert table.execute("SELECT pg_is_in_recovery()") == [(True,)]
        assert table.prepared() == []
        assert sink.recover_and_commit([one], Deadline(5)) == {one.token: Outcome.UNKNOWN}
        with pytest.raises(BrokerUnavailableError):
            sink.lingering(OWNER, Deadline(5))
    finally:
        table.server.stop()
        signal_file.unlink()
        table.server.start()
    assert sink.recover_and_commit([one], soon()) == {one.token: Outcome.COMMITTED}
    assert ids(table) == [1]


def test_a_server_that_is_killed_under_a_task_fails_its_attempt(table):
    sink = opened(table)
    transaction = sink.begin_transaction(attempt(7, 4))
    sink.invoke(transaction, batch(1))
    table.server.kill()
    with pytest.raises(DeliveryError) as raised:
        sink.pre_commit(transaction)
    assert "checkpoint 7, subtask 4" in raised.value.where
    sink.abort(transaction)
    late = sink.begin_transaction(attempt())
    with pytest.raises(PhaseOneError):
        sink.invoke(late, batch(1))
    table.server.start()
    assert (ids(table), table.prepared()) == ([], [])


@pytest.fixture
def frozen_backends(postgres_server: PostgresServer) -> Iterator[Any]:
    """Freeze new sessions of the server: a machine that accepts and never answers."""
    stopped: list[psutil.Process] = []

    def freeze(process_id: int) -> None:
        stopped.append(psutil.Process(process_id))
        stopped[-1].suspend()

    yield freeze
    for process in stopped:
        if process.is_running():
            process.resume()


def test_a_frozen_session_is_cut_off_at_the_deadline(table, frozen_backends):
    """statement_timeout is the server's own clock: of a frozen server it ends nothing."""
    sink = both_halves(dataclasses.replace(options(table)), checkpoint_timeout_s=2)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch(1))
    assert transaction.connection is not None
    frozen_backends(transaction.connection.info.backend_pid)
    waited = Deadline(60)
    with pytest.raises(DeliveryError):
        sink.pre_commit(transaction)
    assert waited.remaining() > 50
    sink.abort(transaction)
    assert ids(table) == []


CHILD = """
import pickle, sys, os, signal
writer, attempt, batch, prepare = pickle.load(sys.stdin.buffer)
transaction = writer.begin_transaction(attempt)
writer.invoke(transaction, batch)
if prepare:
    sys.stdout.buffer.write(writer.pre_commit(transaction).to_json())
    sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_task(database: PostgresDatabase, *, prepare: bool) -> bytes:
    """Write the rows 1 and 2 in a process that is killed; return what it said before."""
    writer = options(database).open(SinkContext(checkpoint_timeout_s=30)).writer
    task = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=pickle.dumps((writer, attempt(), batch(1, 2), prepare)),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert task.returncode == -signal.SIGKILL, task.stderr.decode()
    return task.stdout


def test_a_task_that_is_killed_after_it_prepared_is_committed_by_the_driver(table):
    sink = opened(table)
    one = Committable.from_json(killed_task(table, prepare=True))
    assert (ids(table), table.prepared()) == ([], [one.transactional_id])
    sink.check_prepared([one], soon())
    assert sink.commit([one], soon()) == {one.token: Outcome.COMMITTED}
    assert ids(table) == [1, 2]


def test_a_task_that_is_killed_before_it_prepared_leaves_nothing(table):
    sink = opened(table)
    assert killed_task(table, prepare=False) == b""
    query = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'sparkonce'"
    until(lambda: not table.execute(query), pause_s=0.1)
    assert (ids(table), table.prepared()) == ([], [])
    assert sink.lingering(OWNER, soon()) == []


def test_an_idle_open_transaction_is_ended_by_the_server(table):
    """Its task is frozen, or its machine is gone: nobody else would free its locks."""
    sink = both_halves(options(table), checkpoint_timeout_s=1)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch(1))
    query = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'sparkonce'"
    assert table.execute(query)
    until(lambda: not table.execute(query), pause_s=0.1)
    sink.abort(transaction)


@pytest.mark.parametrize("prepared", [True, False])
def test_abort_leaves_nothing(table, prepared):
    sink = opened(table)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch(1))
    if prepared:
        sink.pre_commit(transaction)
        assert len(table.prepared()) == 1
    sink.abort(transaction)
    assert (ids(table), table.prepared()) == ([], [])


def test_lingering_is_exactly_ours(table, postgres_server):
    sink = opened(table)
    ours = [
        written(sink, 1, of=attempt(owner=dataclasses.replace(OWNER, run_epoch=epoch)))
        for epoch in (1, 3)
    ]
    for other in (
        {"run_epoch": 4},
        {"run_epoch": 30},
        {"log_id": "c0ffee01"},
        {"log_id": "c0ffee00a"},
        {"application_id": "app2"},
        {"application_id": "my-app"},
        {"application_id": "a_p"},
    ):
        written(sink, 2, of=attempt(owner=dataclasses.replace(OWNER, **other)))
    for odd in ("app.c0ffee00.x.y.0", "app.c0ffee00.1", "app.c0ffee00.1.a.b.c"):
        table.execute(f"BEGIN; INSERT INTO said VALUES (3, ''); PREPARE TRANSACTION '{odd}'")
    found = sink.lingering(OWNER, soon())
    assert found == sorted(one.transactional_id for one in ours)
    like = sink.lingering(dataclasses.replace(OWNER, application_id="a_p"), soon())
    assert [gid.split(".")[0] for gid in like] == ["a_p"]
    before = set(table.prepared())
    sink.recover_and_abort(found, soon())
    assert before - set(table.prepared()) == set(found)
    sink.recover_and_abort(found, soon())  # they are gone, and that is fine
    sink.commit(ours, soon())
    assert ids(table) == []


def test_what_lingers_in_another_database_is_left_to_its_own_sink(table):
    """The view shows all databases, and only from its own can a transaction be ended."""
    sink = opened(table)
    one = written(sink, 1)
    other = PostgresDatabase(table.server, f"{table.dbname}_other")
    table.execute(f"CREATE DATABASE {other.dbname}")
    other.execute("CREATE TABLE said (id bigint, said text)")
    assert opened(other).lingering(OWNER, soon()) == []
    with pytest.raises(PhaseOneError):
        opened(other).check_prepared([one], soon())
    assert sink.lingering(OWNER, soon()) == [one.transactional_id]
    table.execute(f"DROP DATABASE {other.dbname}")


def test_a_frozen_task_that_prepares_after_the_sweep_is_found_by_the_next(table):
    sink = opened(table)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch(1))
    assert sink.lingering(OWNER, soon()) == []
    late = sink.pre_commit(transaction)
    found = opened(table).lingering(dataclasses.replace(OWNER, run_epoch=9), soon())
    assert found == [late.transactional_id]
    sink.recover_and_abort(found, soon())
    assert (ids(table), table.prepared()) == ([], [])


TYPES = {
    "tiny": ("smallint", pa.int8(), [-128, 127]),
    "huge": ("numeric", pa.uint64(), [0, 2**64 - 1]),
    "whole": ("bigint", pa.int64(), [-(2**63), 2**63 - 1]),
    "half": ("real", pa.float32(), [0.5, float("inf")]),
    "real": ("double precision", pa.float64(), [0.1, 5e-324]),
    "yes": ("boolean", pa.bool_(), [True, False]),
    "text": ("text", pa.string(), ["ä\t\\N\n\r\\.\n", ""]),
    "long": ("varchar(30)", pa.large_string(), ["\\.", "\\\\"]),
    "json": ("jsonb", pa.string(), ['{"a": "\\n"}', "[1]"]),
    "raw": ("bytea", pa.binary(), [bytes(range(256)), b""]),
    "at": ("timestamptz", pa.timestamp("us", "Asia/Tokyo"), None),
    "wall": ("timestamp", pa.timestamp("us"), None),
    "day": ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "money": ("numeric(38,10)", pa.decimal128(38, 10), [Decimal("-1.5"), Decimal(10) ** 27]),
    "or der": ('"od d"', pa.int32(), [1, 2]),
}


def test_values_of_every_type_arrive_as_they_were(postgres):
    postgres.execute('CREATE DOMAIN "od d" AS integer CHECK (VALUE > 0)')
    columns = ", ".join(f'"{name}" {sql}' for name, (sql, _, _) in TYPES.items())
    postgres.execute('CREATE SCHEMA "My Shop"')
    postgres.execute(f'CREATE TABLE "My Shop"."T" (extra int DEFAULT 5, {columns})')
    instants = [
        dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC),
        dt.datetime(1, 1, 2, tzinfo=dt.UTC),
    ]
    values = {name: list(given or instants) for name, (_, _, given) in TYPES.items()}
    values["wall"] = [one.replace(tzinfo=None) for one in instants]
    schema = pa.schema({name: arrow for name, (_, arrow, _) in TYPES.items()})
    arrays = [pa.array([*values[field.name], None], field.type) for field in schema]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)

    given = options(postgres, table='"My Shop"."T"', name="shop")
    given.check_columns(schema)
    sink = both_halves(given, checkpoint_timeout_s=30, schema=schema)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, rows)
    sink.commit([sink.pre_commit(transaction)], soon())

    names = ", ".join(f'"{name}"' for name in TYPES)
    with psycopg.connect(postgres.conninfo) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = f'SELECT extra, {names} FROM "My Shop"."T" ORDER BY tiny NULLS LAST'
        first, second, third = connection.execute(query).fetchall()
    values["json"] = [{"a": "\n"}, [1]]
    assert list(first) == [5, *(one[0] for one in values.values())]
    assert list(second) == [5, *(one[1] for one in values.values())]
    assert list(third) == [5, *[None] * len(TYPES)]
    assert postgres.execute('SELECT count(*) FROM "My Shop".sparkonce_commits') == [(1,)]


REFUSED_ROWS: dict[str, tuple[str, list[Any], str]] = {
    "check": ("id bigint CHECK (id < 2), said text", [1, 2], "violates check constraint"),
    "not null": ("id bigint, said text NOT NULL", [None], "violates not-null"),
    "unique": ("id bigint PRIMARY KEY, said text", [1, 1], "already exists"),
    "deferred": ("id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, said text", [1, 1], "exists"),
    "too large": ("id smallint, said text", [70_000], "out of range"),
    "a zero byte": ("id bigint, said text", ["a\0b"], "invalid byte sequence"),
}


@pytest.mark.parametrize("case", REFUSED_ROWS)
def test_a_row_that_the_table_refuses_is_told_with_its_place(postgres, case):
    columns, given, message = REFUSED_ROWS[case]
    postgres.execute(f"CREATE TABLE said ({columns})")
    sink = opened(postgres)
    rows = [
        {"id": one if isinstance(one, int) else 1, "said": one if isinstance(one, str) else None}
        for one in given
    ]
    if case != "not null":
        rows = [{**row, "said": row["said"] or "x"} for row in rows]
    transaction = sink.begin_transaction(attempt(7, 4))
    with pytest.raises(RecordRefusedError, match=message) as raised:
        sink.invoke(transaction, pa.RecordBatch.from_pylist(rows, SCHEMA))
        sink.pre_commit(transaction)
    assert "table public.said, checkpoint 7, subtask 4" in raised.value.where
    assert raised.value.option == "table=said"
    sink.abort(transaction)
    assert (ids(postgres), postgres.prepared()) == ([], [])


def test_a_key_of_another_task_of_the_checkpoint_is_not_there_yet(postgres):
    postgres.execute("CREATE TABLE said (id bigint PRIMARY KEY, said text)")
    postgres.execute("CREATE TABLE answers (id bigint REFERENCES said, said text)")
    written(opened(postgres), 1)
    sink = opened(postgres, table="answers")
    transaction = sink.begin_transaction(attempt(subtask=1))
    with pytest.raises(RecordRefusedError, match="violates foreign key") as refused:
        sink.invoke(transaction, batch(1))
    assert "rows of other sinks and subtasks are visible only after" in refused.value.option
    sink.abort(transaction)


def test_two_tasks_with_one_key_wait_no_longer_than_the_checkpoint(postgres):
    postgres.execute("CREATE TABLE said (id bigint PRIMARY KEY, said text)")
    written(opened(postgres), 1)
    sink = both_halves(options(postgres), checkpoint_timeout_s=1)
    transaction = sink.begin_transaction(attempt(subtask=1))
    with pytest.raises(DeliveryError, match="statement timeout"):
        sink.invoke(transaction, batch(1))


def test_a_server_whose_places_are_taken_says_so(table):
    sink = opened(table)
    for number in range(64):
        written(sink, number, of=attempt(subtask=number))
    with pytest.raises(DeliveryError, match="max_prepared_transactions"):
        written(sink, 64)


def test_a_server_without_prepared_transactions_is_refused(table):
    table.server.stop()  # in good order: else it would need places while it recovers
    table.server.start(max_prepared_transactions=0)
    try:
        with pytest.raises(ConfigurationError, match="no prepared transactions") as raised:
            opened(table)
        assert "max_prepared_transactions=0" in raised.value.option
    finally:
        table.server.stop()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("SELECT 1", "does not exist"),
        ("CREATE UNLOGGED TABLE said (id bigint, said text)", "unlogged"),
        ("CREATE VIEW said AS SELECT 1 AS id", "not a table"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(postgres, made, message):
    postgres.execute(made)
    with pytest.raises(ConfigurationError, match=message) as raised:
        opened(postgres)
    assert raised.value.option == "table=said"
    assert "s3cret" not in str(raised.value)


def test_a_column_that_the_table_lacks_is_refused_before_any_data_moves(table):
    odd = SCHEMA.append(pa.field("when", pa.date32()))
    with pytest.raises(ConfigurationError, match="no column 'when'"):
        both_halves(options(table), checkpoint_timeout_s=30, schema=odd)
    sink = opened(table)
    transaction = sink.begin_transaction(attempt())
    with pytest.raises(ConfigurationError, match="no column 'when'"):
        sink.invoke(transaction, pa.RecordBatch.from_pylist([{"id": 1}], odd))
    assert transaction.connection is None


def test_a_wrong_password_is_refused_and_not_shown(table):
    wrong = table.server.conninfo(table.dbname, password="wr0ng-s3cret")
    with pytest.raises(AuthenticationError) as raised:
        opened(table, conninfo=wrong)
    assert "authentication failed" in raised.value.cause
    assert "s3cret" not in str(raised.value)


def test_an_unknown_database_is_refused(table):
    with pytest.raises(ConfigurationError, match="does not exist"):
        opened(table, conninfo=table.server.conninfo("nowhere"))


@pytest.fixture
def writer(table: PostgresDatabase) -> Iterator[str]:
    """The connection string of a user who may do nothing yet."""
    role = f"writer_{table.dbname}"
    table.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    yield table.server.conninfo(table.dbname, user=role, password="pw")
    table.server.start()
    for gid in table.prepared():
        table.execute(f"ROLLBACK PREPARED '{gid}'")
    table.execute(f"DROP OWNED BY {role}")
    table.execute(f"DROP ROLE {role}")


def test_a_missing_right_is_named(table, writer):
    role = f"writer_{table.dbname}"
    with pytest.raises(AuthenticationError, match=r"INSERT on public\.said"):
        opened(table, conninfo=writer)
    table.execute(f"GRANT INSERT ON said TO {role}")
    with pytest.raises(AuthenticationError, match="permission denied for schema"):
        opened(table, conninfo=writer)
    opened(table)  # an administrator makes the marks
    with pytest.raises(AuthenticationError, match="sparkonce_commits"):
        opened(table, conninfo=writer)
    table.execute(f"GRANT INSERT, SELECT, DELETE ON sparkonce_commits TO {role}")
    sink = opened(table, conninfo=writer)
    one = written(sink, 1)
    sink.commit([one], soon())
    assert ids(table) == [1]


def as_writer(table: PostgresDatabase, writer: str) -> Any:
    """Return a sink of that user, with all rights that it needs; the marks are there."""
    role = f"writer_{table.dbname}"
    table.execute(f"GRANT INSERT ON said TO {role}")
    table.execute(f"GRANT INSERT, SELECT, DELETE ON sparkonce_commits TO {role}")
    return opened(table, conninfo=writer)


def test_a_user_who_may_not_commit_is_told_and_nothing_is_lost(table, writer):
    one = written(opened(table), 1)
    other = as_writer(table, writer)
    with pytest.raises(AuthenticationError, match="permission denied to finish"):
        other.commit([one], soon())
    with pytest.raises(AuthenticationError, match="permission denied to finish"):
        other.recover_and_abort([one.transactional_id], soon())
    assert opened(table).recover_and_commit([one], soon()) == {one.token: Outcome.COMMITTED}


def test_what_another_user_has_prepared_is_not_decided(table, writer):
    """The server refuses only COMMIT PREPARED, and that comes after the decision."""
    mine = written(opened(table), 1)
    role = f"writer_{table.dbname}"
    other = as_writer(table, writer)
    with pytest.raises(AuthenticationError, match="may not commit") as refused:
        other.check_prepared([mine], soon())
    assert not is_retried(refused.value), "each attempt would leave more that nobody sweeps"
    text = str(refused.value)
    for part in (f"'{role}'", "'postgres'", mine.transactional_id, "checkpoint 0, subtask 0"):
        assert part in text
    assert f"as {role}" in refused.value.option
    theirs = written(other, 2, of=attempt(subtask=1))
    assert other.check_prepared([theirs], soon()) == [theirs]
    assert opened(table).check_prepared([theirs], soon()) == [theirs], "a superuser may"


def test_what_is_left_of_a_refused_checkpoint_ends_as_the_error_says(table, writer):
    """The driver may not end it, so its owner must."""
    mine = written(opened(table), 1)
    written(opened(table), 1)  # of a task whose answer never came
    newer = written(opened(table), 2, of=attempt(owner=dataclasses.replace(OWNER, run_epoch=30)))
    with pytest.raises(AuthenticationError, match="may not commit") as refused:
        as_writer(table, writer).check_prepared([mine], soon())
    option = refused.value.option
    assert f"connect as 'postgres', and ROLLBACK PREPARED '{mine.transactional_id}'" in option
    (begin,) = re.findall(r"begins with '([^']+)'", option)
    for gid in table.prepared():
        if gid.startswith(begin):
            table.execute(f"ROLLBACK PREPARED '{gid}'")
    assert table.prepared() == [newer.transactional_id]


def test_a_superuser_sweeps_what_its_tasks_prepared_as_another_user(table, writer):
    """Whose commit the check accepts, his sweep finds: else a lost attempt blocks its retry."""
    table.execute("ALTER TABLE said ADD PRIMARY KEY (id)")
    driver = opened(table)
    tasks = as_writer(table, writer)
    lost, decided = written(tasks, 1), written(tasks, 2, of=attempt(subtask=1))
    strangers = dataclasses.replace(OWNER, log_id="0ther000")
    foreign = written(tasks, 3, of=attempt(owner=strangers))
    spare = frozenset([decided.transactional_id])
    assert sweep({"said": driver}, OWNER, soon(), spare=spare) == [lost.transactional_id]
    again = written(tasks, 1)
    driver.commit(driver.check_prepared([again, decided], soon()), soon())
    assert (ids(table), table.prepared()) == ([1, 2], [foreign.transactional_id])


def test_a_user_does_not_sweep_what_he_may_not_end(table, writer):
    """Another sink of the log has prepared it, perhaps; a refused rollback would end the run."""
    theirs = written(opened(table), 1)
    other = as_writer(table, writer)
    mine = written(other, 2, of=attempt(subtask=1))
    assert sweep({"said": other}, OWNER, soon()) == [mine.transactional_id]
    assert table.prepared() == [theirs.transactional_id]


def until_a_commit_waits(table: PostgresDatabase) -> None:
    """Wait until commits wait for a standby. `pg_reload_conf` only sends a signal, and a commit
    looks at a flag in shared memory: the checkpointer sets it when it has read the file.
    """
    warnings: list[str] = []

    def commit_until_one_waits() -> None:
        while not any("wait for synchronous replication" in one for one in warnings):
            probe.execute("SELECT pg_logical_emit_message(true, 'probe', '')")

    with psycopg.connect(table.conninfo, autocommit=True) as probe:
        probe.add_notice_handler(lambda one: warnings.append(one.message_primary or ""))
        committing = threading.Thread(target=commit_until_one_waits, daemon=True)
        committing.start()
        asked = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        until(lambda: table.execute(asked, probe.info.backend_pid) == [("SyncRep",)])
        probe.cancel()  # the commit stays; its wait ends with a warning
        committing.join(soon().remaining())


def test_the_users_own_statement_timeout_does_not_cut_a_commit(table, writer):
    """COMMIT PREPARED that is cancelled while it waits for a standby is answered as a success."""
    role = f"writer_{table.dbname}"
    table.execute(f"GRANT INSERT ON said TO {role}")
    opened(table)
    table.execute(f"GRANT INSERT, SELECT, DELETE ON sparkonce_commits TO {role}")
    sink = opened(table, conninfo=writer)
    one = written(sink, 1)
    table.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    table.execute("SELECT pg_reload_conf()")
    until_a_commit_waits(table)
    try:
        assert sink.commit([one], Deadline(1)) == {one.token: Outcome.UNKNOWN}
        assert sink.recover_and_commit([one], Deadline(1)) == {one.token: Outcome.UNKNOWN}
    finally:
        table.execute("ALTER SYSTEM RESET synchronous_standby_names")
        table.execute("SELECT pg_reload_conf()")
    until(
        lambda: sink.recover_and_commit([one], soon())[one.token] is not Outcome.UNKNOWN,
        pause_s=0.1,
    )
    assert ids(table) == [1]
