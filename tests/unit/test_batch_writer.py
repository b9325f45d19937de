"""A `BatchWriter` without Spark: the start after one that failed, and what stays of an object."""

from __future__ import annotations

import gc
import threading
import types
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from connectors import KafkaSink
from connectors.spark import BatchWriter, batch_writer
from connectors.spark.writer_folder import WriterFolder
from tests.unit.samples import decision
from transactions.clock import Deadline
from transactions.decision_log import DecisionLog
from transactions.errors import DecisionLogError, IdentityMismatchError, SparkOnceError
from transactions.log_backend import LocalFileBackend


class FailedRun:
    """A run whose Fence is written, and whose start then fails."""

    made: list[FailedRun]

    def __init__(self, _options: object = None, before: FailedRun | None = None) -> None:
        self.before = before
        self.looked = False
        self.made.append(self)

    def check_newest(self) -> None:
        self.looked = True

    def open(self, *, finished: int) -> None:
        raise DecisionLogError(f"The decision log does not answer, after {finished}.")


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> BatchWriter:
    """A writer whose runs fail."""
    monkeypatch.setattr(FailedRun, "made", [], raising=False)
    monkeypatch.setattr(batch_writer, "Run", FailedRun)
    monkeypatch.setattr(batch_writer, "refuse_sources_of_query", lambda _: None)
    return BatchWriter(KafkaSink(bootstrap_servers="b:1", topic="out"), app_id="app")


def test_b8_the_next_start_looks_with_the_log_of_the_start_that_failed(
    tmp_path: Path, writer: BatchWriter
):
    """To the log before it, the Fence of that start is a newer run's."""
    good: Any = FailedRun()
    writer._before = good
    nothing: Any = MagicMock(checkpoint=tmp_path, path=tmp_path)
    for _ in range(2):
        with pytest.raises(DecisionLogError):
            writer._begin(nothing, nothing, nothing, 0)
    _, first, second = FailedRun.made
    assert first.before is good
    assert first.looked
    assert second.before is first


@pytest.mark.parametrize(
    ("served", "refused"),
    [
        pytest.param("", True, id="a host and a process number are used again, as in a container"),
        pytest.param("run 1", True, id="renamed in one process, as in a notebook"),
        pytest.param("run 2", False, id="two writers of one function"),
    ],
)
def test_an_earlier_name_is_known_whatever_host_and_process_its_log_names(
    tmp_path: Path, writer: BatchWriter, monkeypatch: pytest.MonkeyPatch, served: str, refused: bool
):
    """It has decided batch 3 and died before Spark finished that batch."""
    earlier = WriterFolder(tmp_path, "earlier")
    earlier.note_call(3)
    backend = LocalFileBackend(earlier.path / "decisions")
    DecisionLog.open(backend, application_id="earlier", identity={}).decide(decision(3))
    ours = WriterFolder(tmp_path, "app")
    ours.note_call(3)
    known = {earlier.path: (served, weakref.ref(writer))} if served else {}
    monkeypatch.setattr(batch_writer, "_SERVED", known)
    execution: Any = MagicMock()
    execution.runId.return_value = "run 2"
    expected: type[SparkOnceError] = IdentityMismatchError if refused else DecisionLogError
    with pytest.raises(expected):
        writer._begin(execution, MagicMock(), ours, 3)
    assert bool(FailedRun.made) != refused, "a refused run is not opened"


def test_a_service_that_makes_a_writer_for_each_run_does_not_keep_them(tmp_path: Path, monkeypatch):
    """Only one that is open is closed with the process, also if nobody holds it any more."""
    at_exit: list[Any] = []
    registry = types.SimpleNamespace(register=at_exit.append, unregister=at_exit.remove)
    monkeypatch.setattr(batch_writer, "atexit", registry)
    monkeypatch.setattr(batch_writer, "checkpoint_folder", lambda _: tmp_path)
    monkeypatch.setattr(batch_writer, "WriterFolder", lambda *_: MagicMock(path=tmp_path))
    for name in ("Run", "_OpenQuery", "make_branch", "checkpoint_of"):
        monkeypatch.setattr(batch_writer, name, MagicMock())
    for name in ("refuse_sources_of_query", "refuse_state_of_query"):
        monkeypatch.setattr(batch_writer, name, lambda *_: None)
    ended = threading.Event()
    execution: Any = MagicMock(awaitTermination=ended.wait)
    kept = weakref.ref(
        writer := BatchWriter(KafkaSink(bootstrap_servers="b", topic="t"), app_id="a")
    )
    writer._write(execution, MagicMock(), 0)
    assert len(at_exit) == 1
    del writer
    gc.collect()
    assert kept() is not None
    ended.set()
    deadline = Deadline(10)
    while kept() is not None and not deadline.expired():
        deadline.pause(0.01)
        gc.collect()
    assert at_exit == []
    assert kept() is None
