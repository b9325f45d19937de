"""Folder and decision log belong together, and what can time out is committed first."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from connectors.pipeline.run import Run
from connectors.pipeline.run_options import RunOptions
from tests.unit.samples import committable
from transactions.checkpoint_location import CheckpointLocation
from transactions.decision_log import DecisionLog
from transactions.errors import IdentityMismatchError
from transactions.log_backend import LocalFileBackend, MemoryBackend
from transactions.log_entries import Decision
from transactions.log_location import LogLocation
from transactions.nothing_to_commit import NothingToCommit
from transactions.sink import OpenSink, most_urgent_first

TIMES: Any = {"checkpoint_timeout_s": 10, "restart_budget_s": 1}


def new_log(decided: int = -1) -> DecisionLog:
    log = DecisionLog.open(MemoryBackend(), application_id="app", identity={})
    for number in range(decided + 1):
        log.decide(
            Decision(
                checkpoint_id=number,
                query_id="q",
                generation=log.state.generation,
                start_offsets=("",),
                end_offsets=("",),
                committables=(),
            )
        )
    return log


def check(folder: Path, log: DecisionLog, finished: int = -1, elsewhere: str = "") -> None:
    options = RunOptions(
        app_id="app",
        checkpoint=CheckpointLocation(folder),
        sources=[],
        sinks=[],
        **TIMES,
        decision_log=LogLocation(elsewhere) if elsewhere else None,
    )
    run = Run(options)
    run._check_one_checkpoint(log.state, finished)
    run._bind(log, finished)


def test_a_sink_that_cannot_be_closed_keeps_no_other_one_open(tmp_path: Path):
    """The committer of a user's own sink raises; a broker connection was left open after it."""
    closed = []

    class Committing(NothingToCommit):
        def close(self) -> None:
            closed.append(self.name)
            if self.name == "own":
                raise OSError("the target is gone")

    place = CheckpointLocation(tmp_path)
    run = Run(RunOptions(app_id="app", checkpoint=place, sources=[], sinks=[], **TIMES))
    writer: Any = None
    run.sinks = {name: OpenSink(writer, Committing(name)) for name in ("own", "other")}
    run.close()
    assert closed == ["own", "other"]
    assert not run.sinks


def test_a_folder_stays_with_its_log(tmp_path: Path):
    log = new_log()
    check(tmp_path, log)
    check(tmp_path, log)
    assert (tmp_path / "log-id").read_text() == log.log_id
    with pytest.raises(IdentityMismatchError, match=f"belongs to the log {log.log_id}"):
        check(tmp_path, new_log())


def test_of_two_first_starts_with_a_log_each_one_is_refused(tmp_path: Path, monkeypatch):
    log, put = new_log(), LocalFileBackend.put_if_absent

    def overtaken(self: LocalFileBackend, name: str, data: bytes) -> bool:
        put(self, name, b"faster")
        return put(self, name, data)

    monkeypatch.setattr(LocalFileBackend, "put_if_absent", overtaken)
    with pytest.raises(IdentityMismatchError, match="belongs to the log faster"):
        check(tmp_path, log)


def test_a_log_that_ends_before_what_spark_has_finished_is_another_checkpoints(tmp_path: Path):
    check(tmp_path, new_log(decided=3), finished=3)
    other = tmp_path / "other"
    with pytest.raises(IdentityMismatchError, match=r"checkpoint 4 is finished, .* ends with 3"):
        check(other, new_log(decided=3), finished=4)
    with pytest.raises(IdentityMismatchError, match="checkpoint 0 is finished"):
        check(other, new_log(), finished=0)
    assert not (other / "log-id").exists()


def test_a_folder_of_before_with_a_log_of_its_own_takes_no_other(tmp_path: Path):
    (tmp_path / "decisions").mkdir()
    with pytest.raises(IdentityMismatchError, match="a log of its own"):
        check(tmp_path, new_log(), elsewhere="memory:///other")
    check(tmp_path, new_log())


def test_what_can_time_out_is_committed_first():
    """A database that does not answer can use up the deadline that all sinks share."""
    kafka = dataclasses.replace(committable(), sink="kafka", timeout_ms=60_000)
    rows = dataclasses.replace(committable(), sink="rows", timeout_ms=0)
    idle, database, topics = object(), object(), object()
    sinks = {"idle": idle, "rows": database, "kafka": topics}
    assert most_urgent_first(sinks, [rows, kafka]) == [(topics, [kafka]), (database, [rows])]
