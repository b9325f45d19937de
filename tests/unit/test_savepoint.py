"""A savepoint is whole or refused, and what begins from it matches no older decision."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import orjson
import pytest

from tests.unit.samples import decision
from transactions.decision_log import DecisionLog, entry_name, read_log
from transactions.errors import SavepointError
from transactions.log_backend import LocalFileBackend, MemoryBackend
from transactions.log_state import LogState
from transactions.savepoint import restored_log, savepoint_of
from transactions.savepoint_place import (
    FILES,
    MANIFEST,
    FolderCopier,
    copy_files,
    delete_savepoint,
    find_savepoints,
    read_savepoint,
    verify_savepoint,
    write_savepoint,
)

IDENTITY = {"sinks": "out"}
CONTENT = {
    "spark/metadata": b"query",
    "spark/offsets/7": b"v1\n{}\n{}",
    "spark/state/0/0/1.delta": b"",
}


@pytest.fixture
def log() -> LogState:
    opened = DecisionLog.open(MemoryBackend(), application_id="app", identity=IDENTITY)
    opened.decide(decision(7))
    return opened.state


@pytest.fixture
def place(tmp_path: Path, log: LogState) -> Path:
    """Return a savepoint of three files."""
    files = {}
    for name, content in CONTENT.items():
        path = tmp_path / "checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files[name] = str(path)
    return written(tmp_path / "savepoints", log, files)


def written(folder: Path, log: LogState, files: dict[str, str]) -> Path:
    made = write_savepoint(folder, savepoint_of(log), files, FolderCopier()).folder
    assert made is not None
    return made


def test_what_was_written_is_read_back(place: Path, log: LogState):
    found = verify_savepoint(place)
    assert found == read_savepoint(place)
    assert found.log.application_id == "app"
    assert found.decision == dataclasses.replace(decision(7), committables=())
    assert {name: one.size for name, one in found.files.items()} == {
        name: len(content) for name, content in CONTENT.items()
    }
    assert found.size == sum(map(len, CONTENT.values()))
    assert place.name == f"app-7-{found.savepoint_id}"
    assert log.decision is not None
    assert log.decision.committables, "a savepoint that had none to leave out shows nothing"


def test_before_the_first_checkpoint_there_is_none():
    with pytest.raises(SavepointError, match="not made a checkpoint yet") as refused:
        savepoint_of(LogState())
    assert "start the pipeline" in refused.value.option


def _altered(place: Path) -> None:
    path = place / FILES / "spark/metadata"
    path.write_bytes(b"QUERY")


def _longer(place: Path) -> None:
    with (place / FILES / "spark/metadata").open("ab") as file:
        file.write(b"\n")


def _missing(place: Path) -> None:
    (place / FILES / "spark/state/0/0/1.delta").unlink()


def _foreign(place: Path) -> None:
    (place / FILES / "spark/commits").mkdir()
    (place / FILES / "spark/commits/9").write_bytes(b"")


def _torn(place: Path) -> None:
    os.truncate(place / MANIFEST, 100)


def _offset_changed(place: Path) -> None:
    text = (place / MANIFEST).read_text()
    assert '"s7"' in text
    (place / MANIFEST).write_text(text.replace('"s7"', '"s8"'))


def _newer(place: Path) -> None:
    fields = orjson.loads((place / MANIFEST).read_bytes())
    (place / MANIFEST).write_bytes(orjson.dumps({**fields, "format": 2}))


def _no_manifest(place: Path) -> None:
    (place / MANIFEST).unlink()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_altered, "not as it was written"),
        (_longer, "not as it was written"),
        (_missing, "missing"),
        (_foreign, "does not belong to it"),
        (_torn, "not complete"),
        (_offset_changed, "checksum"),
        (_newer, "newer sparkonce"),
        (_no_manifest, "never completed"),
    ],
)
def test_a_broken_or_partial_one_is_refused_whole(place: Path, harm, says: str):
    harm(place)
    with pytest.raises(SavepointError) as caught:
        verify_savepoint(place)
    assert says in str(caught.value)
    assert str(place) in caught.value.where
    assert caught.value.option


def test_what_cannot_be_written_has_no_name(tmp_path: Path, log: LogState):
    (tmp_path / "there").write_bytes(b"1")
    files = {"a": str(tmp_path / "there"), "b": str(tmp_path / "not there")}
    with pytest.raises(FileNotFoundError):
        written(tmp_path / "savepoints", log, files)
    assert list((tmp_path / "savepoints").iterdir()) == []


def test_one_that_was_cut_off_by_a_kill_is_not_listed(place: Path):
    partial = place.with_name(".app-8-cut.partial")
    place.rename(partial)
    assert find_savepoints(place.parent) == []


def test_they_are_listed_and_deleted(place: Path, tmp_path: Path, log: LogState):
    second = written(place.parent, log, {})
    os.utime(place / MANIFEST, ns=(1, 1))
    (place.parent / "not one").mkdir()
    assert find_savepoints(place.parent) == [place, second]
    delete_savepoint(place, FolderCopier())
    assert [one.name for one in place.parent.iterdir() if one.name[0] == "."] == []
    assert find_savepoints(place.parent) == [second]
    with pytest.raises(SavepointError, match="There is no savepoint"):
        delete_savepoint(tmp_path / "checkpoint", FolderCopier())
    assert (tmp_path / "checkpoint/spark/metadata").exists()


def test_its_files_are_its_own(place: Path, tmp_path: Path):
    for name in CONTENT:
        (tmp_path / "checkpoint" / name).write_bytes(b"the pipeline went on")
    copy_files(place, verify_savepoint(place), tmp_path / "restored", FolderCopier())
    for name, content in CONTENT.items():
        assert (tmp_path / "restored" / name).read_bytes() == content


def test_a_file_that_changes_after_it_was_verified_is_refused(place: Path, tmp_path: Path):
    savepoint = verify_savepoint(place)
    _altered(place)
    with pytest.raises(SavepointError, match="was changed after"):
        copy_files(place, savepoint, tmp_path / "restored", FolderCopier())


def begin(backend, place: Path, *, log_id: str = "1234abcd") -> None:
    restored_log(
        backend,
        read_savepoint(place),
        log_id=log_id,
        identity={"sinks": "other"},
        end_offsets=("here",),
    )


def test_a_restored_log_goes_on_under_a_name_of_its_own(place: Path, tmp_path: Path):
    backend = LocalFileBackend(tmp_path / "decisions")
    begin(backend, place)
    begin(backend, place)  # after a crash between the folder and the log
    again = DecisionLog.open(backend, application_id="app", identity={"sinks": "other"})
    assert again.log_id == "1234abcd"
    assert again.run_epoch == 2
    assert again.state.decided_in == 0, "the runs of this log are its own"
    assert again.state.decision is not None
    assert again.state.decision.checkpoint_id == 7
    assert again.state.decision.end_offsets == ("here",)
    assert again.state.generation == 1
    assert again.state.decision.generation == 0, "it matches nothing that Spark may run again"
    again.decide(decision(8, generation=1))
    assert read_log(backend).decision == decision(8, generation=1)


def test_a_log_that_was_used_is_not_taken(place: Path):
    backend = MemoryBackend()
    DecisionLog.open(backend, application_id="app", identity=IDENTITY)
    before = backend.get(entry_name(1))
    with pytest.raises(SavepointError, match="empty decision log"):
        begin(backend, place)
    other = MemoryBackend()
    begin(other, place)
    with pytest.raises(SavepointError, match="empty decision log"):
        begin(other, place, log_id="ffffffff")
    assert (backend.list(), backend.get(entry_name(1))) == ([entry_name(1)], before)
