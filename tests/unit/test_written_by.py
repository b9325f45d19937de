"""What earlier versions have written is read, and written on: see written_by/README.md."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from transactions.committable import Committable
from transactions.decision_log import DecisionLog, read_log
from transactions.log_backend import LocalFileBackend
from transactions.savepoint import restored_log
from transactions.savepoint_place import find_savepoints, verify_savepoint

COMMITS = Path(__file__).parent / "written_by"
IDENTITY = {"sinks": '{"out":{"kind":"kafka","topic":"out"}}', "sources": "in"}
#: The commit, and whether it wrote down where reading begins, and that all is settled.
each_commit = pytest.mark.parametrize(
    ("commit", "knows_start"), [("b3d195a", False), ("2448fd7", True)]
)


def test_each_commit_is_read():
    named = {mark for mark, _ in each_commit.args[1]}
    assert {path.name for path in COMMITS.iterdir() if path.is_dir()} == named


@each_commit
def test_a_committable(commit: str, knows_start: bool):
    one = Committable.from_json((COMMITS / commit / "committable.json").read_bytes())
    assert (one.transactional_id, one.producer_id, one.producer_epoch) == (
        "flights.log.1.p.0",
        7,
        3,
    )
    assert (one.token, one.record_count, one.source_offsets) == ("5.0.a", 50, {"in-0": 47})
    assert one.partitions == ("out-0",)


@each_commit
def test_a_log_entry_by_entry(commit: str, knows_start: bool):
    state = read_log(LocalFileBackend(COMMITS / commit / "log"))
    assert state.decision is not None
    assert (state.application_id, state.decision.checkpoint_id) == ("flights", 1)
    assert [one.token for one in state.decided] == ["1.0.a", "1.1.h"]
    assert dict(state.resolved) == {"1.0.a": "accept-loss"}
    assert bool(state.start) is knows_start
    # What is settled is believed without a broker.
    assert (not state.decision.committables) is knows_start


@each_commit
def test_a_compacted_log_is_written_on(commit: str, knows_start: bool, tmp_path: Path):
    folder = shutil.copytree(COMMITS / commit / "compacted", tmp_path / "decisions")
    before = read_log(LocalFileBackend(folder))
    log = DecisionLog.open(LocalFileBackend(folder), application_id="flights", identity=IDENTITY)
    assert log.state.decision == before.decision
    assert before.decision is not None
    assert before.decision.checkpoint_id == 5
    assert [one.token for one in before.decision.committables] == ["5.0.a", "5.1.b"]
    assert log.owner.run_epoch > before.run_epoch


@each_commit
def test_a_savepoint_is_restored(commit: str, knows_start: bool, tmp_path: Path):
    (place,) = find_savepoints(COMMITS / commit / "savepoints")
    savepoint = verify_savepoint(place)
    assert savepoint.decision.checkpoint_id == 5
    assert list(savepoint.files) == ["spark/metadata"]
    backend = LocalFileBackend(tmp_path / "decisions")
    ends = savepoint.decision.end_offsets
    restored_log(backend, savepoint, log_id="12345678", identity=IDENTITY, end_offsets=ends)
    log = DecisionLog.open(backend, application_id="flights", identity=IDENTITY)
    assert log.state.decision is not None
    assert (log.state.decision.end_offsets, log.state.generation) == (ends, 1)
