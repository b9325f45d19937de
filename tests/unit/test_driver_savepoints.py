"""When a driver makes the savepoint that it is asked for; the engine is a script."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from connectors.pipeline.driver_metrics import DriverMetrics
from connectors.pipeline.savepoint_request import ask_for_savepoint
from connectors.spark import driver_life
from connectors.spark.driver_life import DriverLife
from connectors.spark.restarts import Restarts
from connectors.spark.streaming_driver import StreamingDriver
from tests.unit.samples import decision
from tests.waiting import until
from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import Deadline
from transactions.decision_log import DecisionLog
from transactions.errors import (
    FencedError,
    HiddenCommitError,
    PhaseOneError,
    SavepointError,
    StoppedError,
)
from transactions.log_backend import MemoryBackend
from transactions.savepoint_place import (
    FolderCopier,
    delete_savepoint,
    find_savepoints,
    verify_savepoint,
)

SOON_S = 20.0
RESTARTS = "fixed-delay(attempts=1, delay=1h)"


class ScriptedDriver(DriverLife):
    """Its pipeline makes no checkpoint by itself; `files` is what the engine wrote."""

    def __init__(self, checkpoint: Path) -> None:
        restarts = Restarts("app", RESTARTS, tolerable_failed_checkpoints=0)
        super().__init__(None, restarts, CheckpointLocation(checkpoint), None)  # type: ignore[arg-type]
        self._metrics = DriverMetrics("app", None)
        self.backend = MemoryBackend()
        self.log = self.open()
        self.files: Callable[[], dict[str, str]] = dict
        self.stops: Callable[[], bool] = lambda: True
        self.visible: Callable[[], None] = lambda: None
        #: The last sweep settles what readers see.
        self.leaves: Callable[[], None] = self.log.settle

    def open(self) -> DecisionLog:
        return DecisionLog.open(self.backend, application_id="app", identity={})

    def checkpoint(self, number: int, *, finished: bool = True) -> None:
        self.log.decide(decision(number, generation=self.log.state.generation))
        if finished:
            self._finished = self.log.state

    def start(self) -> None:
        """Nothing is started."""

    def stop(self) -> None:
        self._stopping.set()

    def _has_ended(self, timeout_s: float) -> bool:
        threading.Event().wait(min(timeout_s, 0.005))
        if not self._stopping.is_set():
            return False
        try:
            return self.stops()
        finally:
            with contextlib.suppress(FencedError):
                self.leaves()

    def _start_run(self) -> None:
        """Nothing is started."""

    def _left_by_run(self) -> None:
        """Nothing is left."""

    def _known_log(self) -> DecisionLog:
        return self.log

    def _checkpoint_files(self, checkpoint_id: int) -> Mapping[str, str]:
        return self.files()

    def _await_visible(self) -> None:
        self.visible()


@pytest.fixture
def driver(tmp_path: Path):
    """Return a driver after checkpoint 4, in `wait` on a thread."""
    made = ScriptedDriver(tmp_path / "checkpoint")
    made.checkpoint(4)
    waiting = threading.Thread(target=made.wait, daemon=True)
    waiting.start()
    yield made
    made.request_stop()
    waiting.join(SOON_S)
    assert not waiting.is_alive()


def ask(tmp_path: Path, **options: Any) -> Path:
    folder = tmp_path / "savepoints"
    options = {"timeout_s": SOON_S, **options}
    made = ask_for_savepoint(tmp_path / "checkpoint", folder, **options).folder
    assert made is not None
    return made


def refused(tmp_path: Path, **options: Any) -> str:
    with pytest.raises(SavepointError) as caught:
        ask(tmp_path, **options)
    assert find_savepoints(tmp_path / "savepoints") == []
    return str(caught.value)


def test_it_is_of_the_last_finished_checkpoint(driver, tmp_path: Path):
    driver.checkpoint(5, finished=False)  # decided; its commits are under way
    assert verify_savepoint(ask(tmp_path)).decision.checkpoint_id == 4
    assert not driver._stopping.is_set()


def test_with_stop_it_is_made_when_the_pipeline_has_ended(driver, tmp_path: Path):
    def drained() -> bool:
        driver.checkpoint(5)
        return True

    driver.stops = drained
    assert verify_savepoint(ask(tmp_path, stop=True)).decision.checkpoint_id == 5


def test_with_stop_there_is_none_if_the_last_look_at_the_partitions_failed(driver, tmp_path: Path):
    """The stop only warns: the next start looks again. A restored folder has nothing to look at."""
    driver.leaves = lambda: None
    text = refused(tmp_path, stop=True)
    assert "checkpoint 4" in text
    assert "Readers may not see" in text
    assert "transactions write-markers" in text
    assert "killed" not in text


def test_a_busy_batch_that_ends_by_the_stop_is_a_clean_one(driver, tmp_path: Path):
    """Spark's own error is the cause of the StoppedError then."""

    def stopped() -> bool:
        raise StoppedError("The driver is stopping.") from RuntimeError("StreamingQueryException")

    driver.stops = stopped
    assert verify_savepoint(ask(tmp_path, stop=True)).decision.checkpoint_id == 4


def test_a_stop_that_leaves_a_decision_open_makes_none(driver, tmp_path: Path):
    def drained() -> bool:
        driver.checkpoint(5, finished=False)
        return True

    driver.stops = drained
    assert "checkpoint 5" in refused(tmp_path, stop=True)


def test_a_stop_that_failed_makes_none(driver, tmp_path: Path):
    def failed() -> bool:
        driver._failed_to_stop = PhaseOneError("A task is gone.")
        raise StoppedError("The driver was stopped.")

    driver.stops = failed
    assert "A task is gone." in refused(tmp_path, stop=True)


def test_hidden_records_make_none(driver, tmp_path: Path):
    def hidden() -> None:
        raise HiddenCommitError("Committed records are hidden.")

    driver.visible = hidden
    assert "Committed records are hidden." in refused(tmp_path)
    driver.visible = lambda: None
    assert ask(tmp_path).exists()


def test_while_a_restart_is_due_it_waits(driver, tmp_path: Path, monkeypatch):
    """How the last checkpoint of the failed run ended the next one finds out."""
    monkeypatch.setattr(driver._restarts, "_next", Deadline(3600.0))
    with pytest.raises(SavepointError, match="in time"):
        ask(tmp_path, timeout_s=0.3)
    monkeypatch.undo()
    assert ask(tmp_path).exists()


def test_a_target_that_cannot_be_written_stops_nothing(driver, tmp_path: Path):
    (tmp_path / "savepoints").write_text("no folder")
    with pytest.raises(SavepointError, match="could not be written"):
        ask(tmp_path, stop=True)
    assert not driver._stopping.is_set()


def test_files_that_the_engine_removes_meanwhile_are_listed_again(driver, tmp_path: Path):
    there = tmp_path / "there"
    there.write_bytes(b"1")
    looks = []

    def files() -> dict[str, str]:
        looks.append(1)
        last = len(looks) == driver_life._TRIES
        return {"a": str(there)} if last else {"b": str(tmp_path / "removed")}

    driver.files = files
    assert set(verify_savepoint(ask(tmp_path)).files) == {"a"}
    looks[:] = [1] * driver_life._TRIES
    with pytest.raises(SavepointError, match="removed") as caught:
        ask(tmp_path)
    assert "disk" not in caught.value.cause
    assert "again" in caught.value.option


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_fenced_driver_leaves_it_to_the_newer_one(driver, tmp_path: Path, when: str):
    def fenced() -> dict[str, Path]:
        driver.open()
        return {}

    if when == "before":
        driver.open()
    else:
        driver.files = fenced
    assert "in time" in refused(tmp_path, timeout_s=1.0)


def test_between_a_stop_and_the_end_nothing_is_served(tmp_path: Path):
    """Spark interrupts the thread of a batch that begins then, and so its client of a store."""
    driver = ScriptedDriver(tmp_path / "checkpoint")
    driver.checkpoint(4)
    driver._waits = True
    looked: list[CheckpointLocation] = []
    driver._check_writable = looked.append  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as person:
        asked = person.submit(ask, tmp_path, stop=True)
        until(driver._requests.pending)
        driver._serve_when_idle()
        assert driver._stopping.is_set()
        driver._serve_when_idle()
        assert len(looked) == 1
        assert not asked.done()
        driver.leaves()
        driver._serve_savepoints(ended=True)
        assert asked.result(SOON_S).exists()


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_batch_of_a_stopped_query_asks_hadoop_nothing(is_stopping: bool):
    """Hadoop's client of a store takes Spark's interrupt for a failed request. The query then never
    learns of the stop.
    """
    stopping = threading.Event()
    if is_stopping:
        stopping.set()
    driver: Any = Mock(_idle=threading.Condition(), _in_batch=False, _stopping=stopping)
    StreamingDriver._serve_when_idle(driver)
    assert driver._is_written_down.called is not is_stopping
    assert driver._serve_savepoints.called is not is_stopping


def test_who_does_not_wait_in_our_way_is_not_stopped(tmp_path: Path):
    driver = ScriptedDriver(tmp_path / "checkpoint")
    driver.checkpoint(4)
    done = threading.Event()

    def serve() -> None:
        while not done.wait(0.01):
            driver._serve_when_idle()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert "The driver may stop later" in refused(tmp_path, stop=True, timeout_s=0.5)
    assert not driver._stopping.is_set()
    assert ask(tmp_path).exists()
    done.set()
    thread.join(SOON_S)


def test_a_claimed_savepoint_is_deleted_after_the_first_checkpoint(driver, tmp_path: Path):
    place = ask(tmp_path)
    restored = dataclasses.replace(driver.log.state, generation=1)
    driver._finished = restored  # nothing of its own yet
    driver._claim = CheckpointLocation(place)
    assert ask(tmp_path).exists()
    assert place.exists()
    driver.log.state = restored
    driver.checkpoint(5)
    until(lambda: not place.exists())


def test_one_that_somebody_deleted_first_is_fine(driver, tmp_path: Path):
    place = ask(tmp_path)
    delete_savepoint(place, FolderCopier())
    driver._claim = CheckpointLocation(place)
    driver.checkpoint(5)
    assert ask(tmp_path, stop=True).exists()


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_each_question_after_the_end_has_the_answer_of_the_first(tmp_path: Path, ends: str):
    driver = ScriptedDriver(tmp_path / "checkpoint")
    asked: list[str] = []

    def stops() -> bool:
        asked.append(ends)
        if ends == "well":
            return True
        raise PhaseOneError("It ended.")

    driver.stops = stops
    driver.stop()
    for _ in range(3):
        if ends == "well":
            assert driver.await_termination(SOON_S)
        else:
            with pytest.raises(PhaseOneError, match="It ended"):
                driver.await_termination(SOON_S)
    assert asked == [ends], "a question after the end asked the engine again"
    driver._begin_life()
    driver.stops = lambda: True
    assert driver.await_termination(SOON_S)
