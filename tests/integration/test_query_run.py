"""The commit process's half of a query or job, without Spark: plans, tasks and commits in orders
that Spark gives only now and then. The tasks write to a real broker, and an independent reader says
what came of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest

from connectors import KafkaSink
from connectors.kafka.sink.kafka_committer import KafkaCommitter
from connectors.kafka.sink.kafka_writer import KafkaWriter
from connectors.spark import commit_requests, open_run, query_run
from connectors.spark.commit_requests import TaskPlan
from connectors.spark.query_options import QueryOptions
from connectors.spark.query_run import QueryRun
from tests.auditor.reader import read_committed
from tests.shared_broker import assert_no_open_transaction
from tests.unit import spark_checkpoints
from tests.waiting import until
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import (
    ConfigurationError,
    FencedError,
    IdentityMismatchError,
    PhaseOneError,
)
from transactions.sink import Owner

SCHEMA = pa.schema([("value", pa.binary())])
ROWS = [b"0", b"1", b"2"]


@pytest.fixture
def options(bootstrap, topic, application_id, checkpoint) -> QueryOptions:
    """A job."""
    return QueryOptions(
        sink=KafkaSink(bootstrap_servers=bootstrap, topic=topic(name="out")),
        checkpoint=Path(checkpoint),
        app_id=application_id,
        is_job=True,
        checkpoint_timeout_s=60.0,
        restart_budget_s=60.0,
        accept_duplicates=False,
    )


@pytest.fixture
def process(options) -> Iterator[Callable[[], QueryRun]]:
    """Make the commit process of one more driver."""
    made: list[QueryRun] = []

    def make() -> QueryRun:
        made.append(QueryRun(options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def task(plan: TaskPlan, subtask: int = 0) -> tuple[frozenset[Owner], list[bytes]]:
    """Do what a task does, in this process; return what Spark hands to the commit."""
    context: Any = SimpleNamespace(partitionId=lambda: subtask, taskAttemptId=lambda: subtask)
    batches = iter([pa.record_batch([pa.array(ROWS, pa.binary())], schema=SCHEMA)])
    (writer,) = plan.stage.writers
    assert isinstance(writer, KafkaWriter)
    with writer.own_producers(plan.stage.owner):
        told = plan.stage.write(batches, plan.order, context)
    return frozenset({plan.stage.owner}), [b"\n".join(one.to_json() for one in told)]


def written(options: QueryOptions) -> list[bytes]:
    found = read_committed(options.sink.bootstrap_servers, str(options.sink.topic))
    return sorted(one.value or b"" for one in found)


def let_time_pass(run: QueryRun, seconds: float) -> None:
    """Let this time pass for a run; it is all that the run waits now."""
    now = run._now
    assert now is not None
    assert 0 < now.ends.remaining() <= seconds
    run._now = dataclasses.replace(now, ends=Deadline(0))


def write_late(plan: TaskPlan, swept: set[str]) -> None:
    """Run a second task, whose batch is given up. A sweep can come in the middle of it; then it
    fails. It has opened a transaction all the same, and that is swept.
    """
    with contextlib.suppress(PhaseOneError):
        task(plan, subtask=1)
    until(lambda: len(swept) > 1)


def test_messages_of_an_older_plan_are_refused_and_harm_nobody(process, options):
    """Two drivers run one job: the newer one wins, and the older one's commit changes nothing."""
    older, newer = process(), process()
    old = task(older.plan(options, SCHEMA))
    new = task(newer.plan(options, SCHEMA))
    with pytest.raises(PhaseOneError, match="not the newest"):
        newer.commit(0, *old)
    newer.abort(old[0])  # the older job's end: nobody's but its own
    newer.commit(0, *new)
    with pytest.raises(FencedError):
        older.commit(0, *old)
    assert written(options) == ROWS


def test_a_batch_that_was_not_planned_is_refused(process, options):
    run = process()
    owners, told = task(run.plan(options, SCHEMA))
    with pytest.raises(PhaseOneError, match="the newest plan is of batch 0"):
        run.commit(1, owners, told)
    run.commit(0, owners, told)
    with pytest.raises(PhaseOneError, match="the newest plan is of batch None"):
        run.commit(0, owners, told)
    assert written(options) == ROWS


def test_a_job_that_moves_to_another_driver_and_back(process, options):
    """Each run after the first one writes nothing, whichever driver it runs on."""
    here, there = process(), process()
    here.commit(0, *task(here.plan(options, SCHEMA)))
    for run in (there, here, there, here):
        plan = run.plan(options, SCHEMA)
        assert not plan.order.write
        run.commit(0, *task(plan))
        run.close()
    assert written(options) == ROWS


def test_what_a_sibling_opens_after_the_abort_is_swept(process, options, swept, monkeypatch):
    """Spark gives a batch up when one task fails; the others run on for seconds."""
    monkeypatch.setattr(open_run, "IDLE_SWEEP_S", 0.2)
    run = process()
    plan = run.plan(options, SCHEMA)
    owners, _ = task(plan, subtask=0)
    run.abort(owners)
    write_late(plan, swept)
    assert_no_open_transaction(options.sink.bootstrap_servers, options.app_id)
    assert written(options) == []
    run.commit(0, *task(run.plan(options, SCHEMA)))
    assert written(options) == ROWS


def test_a_plan_that_nobody_commits_is_given_up(process, options, swept, caplog, monkeypatch):
    """A stop can hit the worker that Spark commits in, before the request is sent. A task that is
    late writes for some time more.
    """
    monkeypatch.setattr(open_run, "IDLE_SWEEP_S", 0.2)
    run = process()
    plan = run.plan(options, SCHEMA)
    given_up = task(plan)
    run.look()
    assert "is given up" not in caplog.text
    let_time_pass(run, options.checkpoint_timeout_s)
    run.look()
    assert "it has no commit after 60 s" in caplog.text
    write_late(plan, swept)
    assert_no_open_transaction(options.sink.bootstrap_servers, options.app_id)
    with pytest.raises(PhaseOneError):
        run.commit(0, *given_up)
    let_time_pass(run, options.checkpoint_timeout_s)
    run.look()
    assert not run.is_open
    assert caplog.text.count("is given up") == 1
    assert written(options) == []


@pytest.fixture(params=["in the middle", "one_committed"])
def breaks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The commit of a batch raises once: behind its first transaction, or behind all of them."""
    whole = KafkaCommitter.commit

    def commit_one(
        sink: KafkaCommitter, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        monkeypatch.setattr(KafkaCommitter, "commit", whole)
        whole(sink, committables[:1], deadline)
        raise ValueError("between two commits")

    def fail(point: str, _: int) -> None:
        if point == request.param:
            crash_points.install(None)
            raise ValueError("behind the commits")

    if request.param == "in the middle":
        monkeypatch.setattr(KafkaCommitter, "commit", commit_one)
    crash_points.install(fail)
    yield
    crash_points.install(None)


@pytest.mark.parametrize("goes_on", ["here", "elsewhere"])
@pytest.mark.usefixtures("breaks")
def test_x20_an_abort_behind_half_a_commit_aborts_nothing(process, options, goes_on):
    """Spark calls `abort` when `commit` has raised. All was decided: the next run commits the rest,
    and its tasks write nothing.
    """
    run = process()
    plan = run.plan(options, SCHEMA)
    owners, one = task(plan, subtask=0)
    two = task(plan, subtask=1)[1]
    with pytest.raises(ValueError, match="commits"):
        run.commit(0, owners, one + two)
    run.abort(owners)
    later = run if goes_on == "here" else process()
    again = later.plan(options, SCHEMA)
    assert not again.order.write
    assert written(options) == sorted(2 * ROWS)
    later.commit(0, frozenset({again.stage.owner}), [b"", b""])
    assert written(options) == sorted(2 * ROWS)
    assert_no_open_transaction(options.sink.bootstrap_servers, options.app_id)


def test_a_run_that_was_aborted_ends(process, options, monkeypatch):
    monkeypatch.setattr(query_run, "RESTS_S", 0.1)
    run = process()
    run.abort(task(run.plan(options, SCHEMA))[0])
    until(lambda: (run.look(), not run.is_open)[1])
    assert_no_open_transaction(options.sink.bootstrap_servers, options.app_id)


@pytest.fixture
def query(options) -> QueryOptions:
    """A query whose batch 0 Spark has planned."""
    place = options.checkpoint
    spark_checkpoints.make(place, {0: spark_checkpoints.batch('{"a":{"0":1}}')}, [])
    return dataclasses.replace(options, is_job=False)


def test_a_renamed_query_stops_the_one_that_still_runs(query):
    """An overlapping deploy: the old driver is in batch 0 when the new one starts."""
    old, new = query, dataclasses.replace(query, app_id=f"{query.app_id}-new")
    older, newer = QueryRun(old), QueryRun(new)
    early = task(older.plan(old, SCHEMA))
    late = task(newer.plan(new, SCHEMA))
    with pytest.raises(FencedError, match=f"for application {new.app_id}"):
        older.commit(0, *early)
    newer.commit(0, *late)
    assert written(query) == ROWS
    with pytest.raises(IdentityMismatchError, match="Another application has written this batch"):
        older.plan(old, SCHEMA)
    newer.close()


def test_a_renamed_query_sweeps_what_its_earlier_name_has_left(query):
    """Its driver is dead; readers would wait for its transactions until their timeout."""
    old, new = query, dataclasses.replace(query, app_id=f"{query.app_id}-new")
    task(QueryRun(old).plan(old, SCHEMA))
    newer = QueryRun(new)
    newer.commit(0, *task(newer.plan(new, SCHEMA)))
    assert_no_open_transaction(query.sink.bootstrap_servers, old.app_id)
    assert written(query) == ROWS
    newer.close()


def test_the_next_start_sweeps_what_its_earlier_name_has_opened_since(query):
    """A task of the stopped run lives on, and begins behind the first sweep."""
    old, new = query, dataclasses.replace(query, app_id=f"{query.app_id}-new")
    plan = QueryRun(old).plan(old, SCHEMA)
    first, second = QueryRun(new), QueryRun(new)
    first.plan(new, SCHEMA)
    task(plan)
    second.commit(0, *task(second.plan(new, SCHEMA)))
    assert_no_open_transaction(query.sink.bootstrap_servers, old.app_id)
    assert written(query) == ROWS
    for one in (first, second):
        one.close()


def test_offsets_that_change_between_plan_and_commit_are_not_decided(process, query):
    """A slow older driver writes its own plan over the file; the tasks have read by ours."""
    path = query.checkpoint / "offsets/0"
    ours = path.read_text()
    run = process()
    told = task(run.plan(query, SCHEMA))
    path.write_text(spark_checkpoints.batch('{"a":{"0":9}}'))
    with pytest.raises(PhaseOneError, match="offsets of a batch have changed"):
        run.commit(0, *told)
    assert written(query) == []
    path.write_text(ours)
    run.commit(0, *task(run.plan(query, SCHEMA)))
    assert written(query) == ROWS


def finish(query: QueryOptions, number: int) -> None:
    """Let Spark write a batch down as done, and plan the next one."""
    (query.checkpoint / f"commits/{number}").write_text(spark_checkpoints.COMMIT)
    offsets = spark_checkpoints.batch(f'{{"a":{{"0":{number + 2}}}}}')
    (query.checkpoint / f"offsets/{number + 1}").write_text(offsets)


@pytest.fixture
def idle(process, query, monkeypatch) -> QueryRun:
    """A run of a query whose batch 1 comes after a long pause."""
    monkeypatch.setattr(query_run, "_IDLE_S", 0.1, raising=False)
    run: QueryRun = process()
    run.commit(0, *task(run.plan(query, SCHEMA)))
    finish(query, 0)
    until(lambda: (run.look(), isinstance(run._now, query_run._Remembered))[1])
    return run


def test_a_query_goes_on_after_a_long_pause(idle, query):
    assert idle.is_open, "it knows its last run"
    idle.commit(1, *task(idle.plan(query, SCHEMA)))
    assert written(query) == sorted(2 * ROWS)


def test_a_query_that_has_ended_is_forgotten(idle, query, monkeypatch):
    """Spark does not say so: a query that goes on finds its last run, for a day."""
    assert not hasattr(idle._now, "opened"), "with the names of all its files"
    monkeypatch.setattr(query_run, "_KNOWN_S", 0.1)
    idle.commit(1, *task(idle.plan(query, SCHEMA)))
    until(lambda: (idle.look(), not idle.is_open)[1])
    assert idle._now is None


def test_after_a_plan_that_fails_nothing_is_kept(idle, query):
    """Spark fails the query then, and its next start takes over."""
    (query.checkpoint / "offsets/1").unlink()
    (query.checkpoint / "offsets/0").unlink()
    with pytest.raises(ConfigurationError, match="no offsets"):
        idle.plan(query, SCHEMA)
    assert not idle.is_open


def test_a_driver_that_was_quiet_does_not_stop_a_newer_one(idle, process, query):
    newer = process()
    late = task(newer.plan(query, SCHEMA))
    with pytest.raises(FencedError, match="start it again"):
        idle.plan(query, SCHEMA)
    newer.commit(1, *late)
    finish(query, 1)
    idle.commit(2, *task(idle.plan(query, SCHEMA)))  # the user has started it again
    assert written(query) == sorted(3 * ROWS)


def test_a_step_of_the_clock_is_no_other_process(monkeypatch):
    """Psutil's time of birth is a time of day, and changes with the clock."""
    here = psutil.Process().pid
    then = commit_requests.born(here)
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) + 3600.0)
    assert commit_requests.born(here) == then
    assert commit_requests.is_running(here, then)
    assert not commit_requests.is_running(here, "1")
    assert not commit_requests.is_running(2**22 + 1, then)
