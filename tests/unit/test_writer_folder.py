"""A checkpoint has one writer: of two applications, one writes each batch, whoever begins when."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.pipeline.run import Run
from connectors.spark import writer_folder
from connectors.spark.writer_folder import WriterFolder
from tests.unit.samples import decision
from tests.unit.spark_checkpoints import COMMIT
from transactions import decision_log, log_entries
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import DecisionLogError, FencedError, IdentityMismatchError
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
        read = {one: writer_folder._log_in(one) for one in newer.path.parent.iterdir()}
        monkeypatch.setattr(writer_folder, "_log_in", read.__getitem__)
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
    monkeypatch.setattr(writer_folder, "this_process", log_entries.this_process)
    later = WriterFolder(checkpoint, "b")
    opened(later, 0)
    later.stop_others(Swept(), 0, accept_duplicates=False, siblings=())
    with pytest.raises(FencedError):
        earlier.decide(decision(0))


def torn(entries: Path) -> None:
    next(entries.glob("*1")).write_bytes(b"{")


def newer(entries: Path) -> None:
    next(entries.glob("*1")).write_bytes(b'{"format": 99}')


def gone(entries: Path) -> None:
    next(entries.glob("*1")).unlink()


def not_allowed(entries: Path) -> None:
    """The tests run as root too, who may read everything."""
    entry = next(entries.glob("*1"))
    entry.unlink()
    entry.mkdir()


def no_way(entries: Path) -> None:
    """As with a folder above it that may not be entered."""
    entries.rename(entries.with_name("elsewhere"))
    entries.symlink_to(entries)


@pytest.fixture(params=[torn, newer, gone, not_allowed, no_way])
def broken(request) -> Callable[[Path], None]:
    found: Callable[[Path], None] = request.param
    return found


def test_a_log_that_cannot_be_read_may_hide_a_decision_of_this_batch(checkpoint, broken):
    """Its note says 2, and nobody knows whether it has decided 3."""
    wrote(checkpoint, "a", 0, 1, 2)
    (checkpoint / "commits/2").write_text(COMMIT)
    broken(checkpoint / "sparkonce/a/decisions")
    folder = WriterFolder(checkpoint, "b")
    folder.note_call(3)
    with pytest.raises(DecisionLogError, match=r"batch 3; application a, .*sparkonce/a/") as raised:
        folder.check(3, accept_duplicates=False)
    said = str(raised.value)
    assert "another application" in said
    assert f"move {checkpoint}/sparkonce/a out" in said
    assert "savepoint" not in said, "that is a way back for the application itself"
    folder.check(3, accept_duplicates=True)


def test_a_broken_log_of_an_application_that_wrote_beside_us_stops_us(checkpoint, broken):
    """Somebody has accepted duplicates for it."""
    for name in ("a", "b"):
        wrote(checkpoint, name, 0, 1, 2)
    broken(checkpoint / "sparkonce/a/decisions")
    with pytest.raises(DecisionLogError, match="batch 3; application a"):
        WriterFolder(checkpoint, "b").check(3, accept_duplicates=False)


def test_a_broken_log_of_an_application_that_is_over_stops_nobody(checkpoint, broken, caplog):
    """Each of them was there before our last decision, so it was stopped then."""
    for name in ("a", "c"):
        wrote(checkpoint, name, 0, 1, 2)
    wrote(checkpoint, "b", 3)
    (checkpoint / "commits/3").write_text(COMMIT)
    broken(checkpoint / "sparkonce/a/decisions")
    folder, swept = WriterFolder(checkpoint, "b"), Swept()
    folder.check(4, accept_duplicates=False)
    folder.stop_others(swept, 4, accept_duplicates=False)
    assert swept.logs == {"c": 2}
    assert caplog.text.count("the decision log of application a cannot be used") == 1


def test_a_broken_log_of_a_later_name_stops_an_earlier_one(checkpoint, broken):
    wrote(checkpoint, "b", 0, 1, 2)
    wrote(checkpoint, "a", 3)
    broken(checkpoint / "sparkonce/a/decisions")
    with pytest.raises(DecisionLogError, match="batch 3; application a"):
        WriterFolder(checkpoint, "b").check(3, accept_duplicates=False)


@pytest.mark.parametrize("over", [True, False])
def test_a_log_that_cannot_be_written(checkpoint, monkeypatch, over):
    """It can be read: our principal has fewer rights now, or the disk is full."""
    opened(WriterFolder(checkpoint, "a"), 0)
    folder, swept = WriterFolder(checkpoint, "b"), Swept()
    opened(folder, 0).decide(decision(0))
    if not over:
        folder, _ = WriterFolder(checkpoint, "d"), opened(WriterFolder(checkpoint, "d"), 0)
    put = LocalFileBackend.put_if_absent

    def refused(self: LocalFileBackend, name: str, data: bytes) -> bool:
        if "sparkonce/a" in self.describe():
            raise PermissionError(13, "Permission denied")
        return put(self, name, data)

    monkeypatch.setattr(LocalFileBackend, "put_if_absent", refused)
    with contextlib.nullcontext() if over else pytest.raises(DecisionLogError, match="move "):
        folder.stop_others(swept, 1, accept_duplicates=False)
    assert swept.logs == {}
