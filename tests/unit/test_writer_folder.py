"""A checkpoint has one writer: of two applications, one writes each batch, whoever begins when."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.pipeline.run import Run
from connectors.spark import writer_folder
from connectors.spark.writer_folder import WriterFolder
from tests.unit.samples import decision
from tests.unit.spark_checkpoints import COMMIT
from transactions import decision_log
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import FencedError, IdentityMismatchError
from transactions.log_backend import LocalFileBackend

IDENTITY = {"sinks": "out"}


class Swept(Run):
    """Keeps which logs it was given to sweep for."""

    def __init__(self) -> None:  # without a run's parts
        self.logs: dict[str, int] = {}

    def sweep_other(self, log: DecisionLog, *, finished: int) -> None:
        self.logs[log.owner.application_id] = finished


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of Spark's."""
    (tmp_path / "commits").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def _another_process(monkeypatch) -> None:
    """What `opened` makes is of this process; the Fences of the others are of another one."""
    monkeypatch.setattr(writer_folder, "this_process", lambda: "here/2")


def opened(folder: WriterFolder, first: int) -> DecisionLog:
    folder.note_call(first)
    backend = LocalFileBackend(folder.path / "decisions")
    return DecisionLog.open(backend, application_id=folder.path.name, identity=IDENTITY)


def wrote(checkpoint: Path, app_id: str, *batches: int) -> None:
    """Let a run of an application write batches to their ends; the last lacks Spark's mark."""
    folder = WriterFolder(checkpoint, app_id)
    log = opened(folder, batches[0])
    for number in batches:
        if number > 0:
            (checkpoint / f"commits/{number - 1}").write_text(COMMIT)
        log.decide(decision(number))
        folder.note_finished(number)


@pytest.mark.parametrize("siblings", [None, ()])
def test_an_earlier_name_does_not_write_again_what_a_later_one_has_decided(checkpoint, siblings):
    """The application is renamed, decides batch 3 and dies before commits/3; then the name is
    changed back.
    """
    wrote(checkpoint, "a", 0, 1, 2)
    wrote(checkpoint, "b", 3)
    with pytest.raises(IdentityMismatchError, match=r"application b, .* has decided batch 3"):
        WriterFolder(checkpoint, "a").check(3, accept_duplicates=False, siblings=siblings)
    WriterFolder(checkpoint, "a").check(3, accept_duplicates=True, siblings=siblings)
    WriterFolder(checkpoint, "b").check(3, accept_duplicates=False, siblings=siblings)


def test_a_sibling_that_was_called_first_is_no_later_name(checkpoint):
    """One function calls two writers, and the driver dies between the two calls."""
    wrote(checkpoint, "x", 0, 1, 2)
    wrote(checkpoint, "y", 0, 1, 2, 3)
    WriterFolder(checkpoint, "x").check(3, accept_duplicates=False, siblings=())
    with pytest.raises(IdentityMismatchError):
        WriterFolder(checkpoint, "x").check(3, accept_duplicates=False)


def test_an_application_that_begins_stops_every_other_one(checkpoint):
    """The older driver is in batch 0. What its log says of itself stays."""
    backend = LocalFileBackend(checkpoint / "sparkonce/a/decisions")
    WriterFolder(checkpoint, "a").note_call(0)
    older = DecisionLog.open(
        backend, application_id="a", identity=IDENTITY, check=lambda _: ("known",)
    )
    newer = WriterFolder(checkpoint, "b")
    newer.check(0, accept_duplicates=False)
    opened(newer, 0)
    swept = Swept()
    newer.stop_others(swept, 0, accept_duplicates=False)
    assert swept.logs == {"a": -1}
    with pytest.raises(FencedError, match="here/2 for application b"):
        older.decide(decision(0))
    state = read_log(backend)
    assert (state.identity, state.accepted) == (IDENTITY, ("known",))
    assert (state.host, state.decision) == ("here/2 for application b", None)


def test_each_start_sweeps_what_another_application_has_left(checkpoint, monkeypatch):
    """The start before may have died behind its Fence, and a task that lives on opens more."""
    monkeypatch.setattr(decision_log, "COMPACT_EVERY", 5)
    opened(WriterFolder(checkpoint, "a"), 0)
    newer = WriterFolder(checkpoint, "b")
    for _ in range(20):
        opened(newer, 0)
        swept = Swept()
        newer.stop_others(swept, 0, accept_duplicates=False)
        assert swept.logs == {"a": -1}
    assert len([*(checkpoint / "sparkonce/a/decisions").iterdir()]) <= 7, "the old log grows"


@pytest.mark.parametrize("seen", [True, False])
def test_what_was_decided_before_the_stop_is_not_written_again(checkpoint, monkeypatch, seen):
    """The older driver decides between the first look of the newer one and its stop: before the
    log is read again, or after that and before the Fence.
    """
    older = opened(WriterFolder(checkpoint, "a"), 0)
    newer = WriterFolder(checkpoint, "b")
    newer.check(0, accept_duplicates=False)
    opened(newer, 0)
    if not seen:
        read = newer._others(None)
        monkeypatch.setattr(newer, "_others", lambda _: read)
    older.decide(decision(0))
    swept = Swept()
    with pytest.raises(IdentityMismatchError, match="has decided batch 0"):
        newer.stop_others(swept, 0, accept_duplicates=False)
    assert swept.logs == {}


def test_another_run_of_the_newer_name_has_stopped_the_older_one(checkpoint):
    """It did so after our first look, and the older one had decided meanwhile."""
    older = opened(WriterFolder(checkpoint, "a"), 0)
    newer = WriterFolder(checkpoint, "b")
    newer.check(0, accept_duplicates=False)
    older.decide(decision(0))
    DecisionLog.open(
        LocalFileBackend(checkpoint / "sparkonce/a/decisions"),
        application_id="a",
        identity=None,
        host="elsewhere/3 for application b",
    )
    opened(newer, 0)
    with pytest.raises(IdentityMismatchError, match="has decided batch 0"):
        newer.stop_others(Swept(), 0, accept_duplicates=False)


@pytest.mark.parametrize("siblings", [None, ()])
def test_a_first_run_is_stopped_by_an_application_that_has_decided_more(checkpoint, siblings):
    """The new name is in its first batch when the deploy is rolled back."""
    wrote(checkpoint, "a", 0, 1, 2)
    younger = opened(WriterFolder(checkpoint, "b"), 3)
    older = WriterFolder(checkpoint, "a")
    older.stop_others(Swept(), 3, accept_duplicates=False, siblings=siblings)
    with pytest.raises(FencedError, match="for application a"):
        younger.decide(decision(3))


def test_writers_of_one_function_do_not_stop_each_other(checkpoint):
    sibling = opened(WriterFolder(checkpoint, "x"), 0)
    folder = WriterFolder(checkpoint, "y")
    folder.note_call(0)
    folder.stop_others(Swept(), 0, accept_duplicates=True)
    known = [checkpoint / "sparkonce/x"]
    folder.stop_others(Swept(), 0, accept_duplicates=False, siblings=known)
    sibling.decide(decision(0))
    folder.check(0, accept_duplicates=False, siblings=known)


def test_a_host_and_a_process_whose_names_come_again_are_another_run(checkpoint, monkeypatch):
    """A container is made anew: its host has the same name, and its process number is 1 again."""
    earlier = opened(WriterFolder(checkpoint, "a"), 0)
    monkeypatch.setattr(writer_folder, "this_process", decision_log.this_process)
    later = WriterFolder(checkpoint, "b")
    opened(later, 0)
    later.stop_others(Swept(), 0, accept_duplicates=False, siblings=())
    with pytest.raises(FencedError):
        earlier.decide(decision(0))
