"""A stop is a good end only when nothing that was decided waits for another run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.errors import StreamingQueryException

from connectors import KafkaSink, KafkaSource
from connectors.pipeline.run import Run
from connectors.spark import ContinuousDriver, StreamingDriver, continuous_driver, job
from tests.unit.jvm import JVM
from transactions.clock import Deadline
from transactions.errors import (
    FencedError,
    HiddenCommitError,
    OutcomeUnknownError,
    PhaseOneError,
    StoppedError,
    TransactionLostError,
)

JAVA: Any = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
SESSION: Any = SimpleNamespace(
    conf=SimpleNamespace(get=lambda *_: None, set=lambda *_: None),
    sparkContext=SimpleNamespace(_jsc=JAVA, _jvm=JVM),
    dataSource=SimpleNamespace(register=lambda _source: None),
    _jsparkSession=None,
)
UNKNOWN = OutcomeUnknownError("The coordinator did not answer.")
HIDDEN = HiddenCommitError("Committed records are hidden.")
LOST = TransactionLostError("1 decided transaction(s) had been aborted by the broker.")


class EndedLoop:
    """A loop whose last checkpoint ended like this."""

    def __init__(self, failure: BaseException | None, *, finished: bool) -> None:
        self.failure = failure
        self.unfinished: Callable[[], object] = lambda: None if finished else LOST
        self.drained = threading.Event()
        self.drain = self.drained.set

    def wait(self, _timeout_s: float) -> bool:
        return True

    def close(self) -> bool:
        return True


def run(check_newest: Callable[[], None] = lambda: None) -> Any:
    return SimpleNamespace(
        check_newest=check_newest, leave=lambda *, finished: None, close=lambda: None
    )


@pytest.fixture
def driver(tmp_path: Path) -> ContinuousDriver:
    made = ContinuousDriver(
        SESSION,
        app_id="app",
        checkpoint=tmp_path,
        source=KafkaSource(bootstrap_servers="b:1", subscribe="in"),
        sink=KafkaSink(bootstrap_servers="b:1", topic="out"),
        restart_strategy="fixed-delay(attempts=1, delay=1h)",
    )
    made._run = run()
    return made


def test_a_last_checkpoint_that_was_not_decided_is_a_stop(driver):
    driver._loop = EndedLoop(PhaseOneError("A task is gone."), finished=True)
    driver._stopping.set()
    with pytest.raises(StoppedError):
        driver.await_termination()


@pytest.mark.parametrize(
    ("failure", "finished"),
    [
        (UNKNOWN, False),
        (HiddenCommitError("Committed records are hidden."), True),
        (PhaseOneError("The new transaction of a healing was lost."), False),
    ],
)
def test_a_last_checkpoint_that_was_decided_and_has_no_good_end_is_told(driver, failure, finished):
    driver._loop = EndedLoop(failure, finished=finished)
    driver._stopping.set()
    with pytest.raises(type(failure)) as told:
        driver.wait()
    assert told.value is failure


def test_a_stop_after_a_newer_driver_has_come_says_so(driver):
    def fenced() -> None:
        raise FencedError("A newer run owns the log.")

    driver._loop = EndedLoop(PhaseOneError("A task was fenced."), finished=True)
    driver._run = run(fenced)
    driver._stopping.set()
    with pytest.raises(FencedError):
        driver.wait()


@pytest.mark.parametrize("finished", [True, False])
def test_a_stop_in_the_place_of_a_restart(driver, finished):
    driver._loop = EndedLoop(UNKNOWN, finished=finished)
    assert not driver.await_termination(0.01)
    assert driver._restarts.pending
    driver.request_stop()
    if finished:
        driver.wait()
    else:
        with pytest.raises(OutcomeUnknownError):
            driver.wait()


def test_what_a_restart_has_finished_is_forgotten(driver, monkeypatch):
    driver._loop = EndedLoop(UNKNOWN, finished=False)
    assert not driver.await_termination(0.01)
    monkeypatch.setattr(driver, "_start_run", lambda: None)
    driver._restart()
    driver.request_stop()
    driver.wait()


def test_a_stop_in_micro_batches_in_the_place_of_a_restart(tmp_path):
    driver = StreamingDriver(SESSION, app_id="app", checkpoint=tmp_path)
    driver._query = SimpleNamespace(isActive=False, stop=lambda: None)  # type: ignore[assignment]
    driver._restarts._next = Deadline(3600.0)
    driver._unfinished = UNKNOWN
    driver.request_stop()
    with pytest.raises(OutcomeUnknownError):
        driver.wait()
    driver._begin_life()
    driver._unfinished = None
    driver.wait()


class LeftRun:
    """A run that notes how it was left; it ends as every run."""

    end = Run.end

    def __init__(self, hidden: HiddenCommitError | None = None) -> None:
        self.left: list[bool] = []
        self.hidden = hidden

    def check_newest(self) -> None:
        """No newer run has come."""

    def leave(self, *, finished: bool) -> HiddenCommitError | None:
        self.left.append(finished)
        return self.hidden

    def close(self) -> None:
        """Nothing is open."""


class EndedRun:
    """What is left of a run in micro-batches: a coordinator, and a query that a stop has ended."""

    def __init__(
        self,
        tmp_path: Path,
        unfinished: object,
        error: Exception | None,
        *,
        hidden: HiddenCommitError | None = None,
    ) -> None:
        self.driver = StreamingDriver(SESSION, app_id="app", checkpoint=tmp_path)
        run = LeftRun(hidden)
        self.left = run.left
        self.driver._run = run  # type: ignore[assignment]
        self.driver._coordinator = SimpleNamespace(  # type: ignore[assignment]
            unfinished=lambda: unfinished, is_settled=lambda: True, close=lambda: None
        )

        def ended(_timeout_s: float) -> bool:
            if error is not None:
                raise error
            return True

        query = SimpleNamespace(isActive=False, stop=lambda: None, awaitTermination=ended)
        self.driver._query = query  # type: ignore[assignment]
        self.driver.request_stop()


#: A stop ends a query as if it had come to its end, or interrupts what Spark does.
ENDS = [None, StreamingQueryException("java.lang.InterruptedException")]


@pytest.mark.parametrize("error", ENDS, ids=["ended", "interrupted"])
def test_c3_a_stop_before_a_lost_transaction_is_healed_says_so(tmp_path, error):
    run = EndedRun(tmp_path, LOST, error)
    assert run.driver.unfinished is LOST
    with pytest.raises(TransactionLostError) as told:
        run.driver.wait()
    assert told.value is LOST
    assert run.left == [False]
    assert run.driver.unfinished is LOST


@pytest.mark.parametrize("error", ENDS, ids=["ended", "interrupted"])
def test_c3_a_stop_with_nothing_left_to_do_is_a_good_end(tmp_path, error):
    run = EndedRun(tmp_path, None, error)
    run.driver.wait()
    assert run.left == [True]
    assert run.driver.unfinished is None


@pytest.mark.parametrize("error", ENDS, ids=["ended", "interrupted"])
def test_c3_a_stop_whose_last_batch_is_hidden_from_readers_says_so(tmp_path, error):
    run = EndedRun(tmp_path, None, error, hidden=HIDDEN)
    with pytest.raises(HiddenCommitError) as told:
        run.driver.wait()
    assert told.value is HIDDEN
    assert run.left == [True]


def test_c3_a_stop_whose_last_checkpoint_is_hidden_from_readers_says_so(driver):
    driver._run.leave = lambda *, finished: HIDDEN if finished else None
    driver._loop = EndedLoop(None, finished=True)
    driver.request_stop()
    with pytest.raises(HiddenCommitError):
        driver.wait()


def test_c3_a_continuous_loop_that_ends_well_must_have_finished(driver):
    driver._loop = EndedLoop(None, finished=False)
    driver.request_stop()
    with pytest.raises(TransactionLostError):
        driver.wait()


@pytest.mark.parametrize("unfinished", [LOST, None])
def test_c3_a_stop_that_reaches_the_jvm_too_is_a_good_end_if_nothing_is_left(
    tmp_path, monkeypatch, unfinished
):
    """A service manager sends SIGTERM to every process: Spark is gone in the middle of its work."""

    def wait() -> None:
        raise RuntimeError("Answer from Java side is empty")

    made = SimpleNamespace(
        request_stop=lambda: None,
        start=lambda: None,
        wait=wait,
        recommitted=0,
        unfinished=unfinished,
    )
    for name in ("pipeline_session", "driver_jvm"):
        monkeypatch.setattr(job, name, MagicMock())
    monkeypatch.setattr(job, "_micro_batches", lambda *_: made)
    stop = SimpleNamespace(asked=False, install=lambda: None)
    stop.attach = lambda _carry_out: setattr(stop, "asked", True)
    definition: Any = MagicMock(path=tmp_path / "job.toml", mode="micro-batch")
    ends = pytest.raises(TransactionLostError) if unfinished else contextlib.nullcontext()
    with ends:
        job.run_job(definition, stop=stop, on_started=lambda _: None, on_checkpoint=lambda _: None)


def test_a_stop_that_came_before_there_was_a_loop_reaches_it(driver, monkeypatch):
    """From another thread, while a start or a restart recovers."""
    loop = EndedLoop(None, finished=True)
    loop.start = loop.job_ended = lambda _: None  # type: ignore[attr-defined]
    for name in ("RunningStage", "KafkaTask", "BarrierStage"):
        monkeypatch.setattr(continuous_driver, name, MagicMock())
    monkeypatch.setattr(continuous_driver, "CheckpointLoop", lambda *_, **__: loop)
    sink = SimpleNamespace(name="out")
    halves = {"writers": {"out": sink}, "committers": {"out": sink}}
    opened: Any = SimpleNamespace(log=MagicMock(), offsets_sink=None, **halves)
    driver._begin, driver._partitions = {}, list
    driver.stop()
    driver._start_loop(opened, {}, 1)
    assert loop.drained.is_set()


def test_a_pattern_that_matches_no_topic_yet_has_one_task(driver, monkeypatch):
    """Topics that come later are dealt out among the tasks that are there."""
    opened: Any = MagicMock(settlement=SimpleNamespace(recommitted=0))
    monkeypatch.setattr(continuous_driver, "Run", lambda *_: opened)
    monkeypatch.setattr(driver, "_offsets", lambda *_: {})
    started = MagicMock()
    monkeypatch.setattr(driver, "_start_loop", started)
    driver._spark = MagicMock()
    driver._spark.sparkContext.defaultParallelism = 8
    driver._start_run()
    started.assert_called_once_with(opened, {}, 1)


def test_shares_that_cannot_be_made_leave_no_listener_open(driver, monkeypatch):
    stage = MagicMock()
    monkeypatch.setattr(continuous_driver, "RunningStage", stage)
    with pytest.raises(ValueError, match="parallelism"):
        driver._start_loop(MagicMock(), {}, 0)
    stage.assert_not_called()


def test_a_savepoint_waits_until_readers_see_its_checkpoint(driver):
    def hidden() -> None:
        raise HiddenCommitError("Committed records are hidden.")

    driver._loop = EndedLoop(None, finished=True)
    driver._loop.await_visible = hidden  # type: ignore[method-assign]
    with pytest.raises(HiddenCommitError):
        driver._await_visible()
