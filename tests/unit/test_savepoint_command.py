"""`sparkonce savepoint take` of a stopped pipeline: a driver that runs all the same is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from connectors.cli.savepoint import command
from connectors.operations.transaction_reader import TransactionReader
from connectors.options.job_file import load_job
from connectors.options.sink import identity_of
from tests.unit.samples import decision
from transactions import savepoint
from transactions.decision_log import DecisionLog
from transactions.log_backend import LocalFileBackend
from transactions.savepoint import find_savepoints, verify_savepoint

JOB = """
[app]
id = "flights"
checkpoint = "state"
mode = "{mode}"
[source]
"kafka.bootstrap.servers" = "nobody:1"
subscribe = "in"
[[sink]]
"kafka.bootstrap.servers" = "nobody:1"
topic = "out"
"""


class Pipeline:
    """A pipeline that has stopped after checkpoint 7."""

    def __init__(self, folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job, self.savepoints = folder / "job.toml", folder / "savepoints"
        self.job.write_text(JOB.format(mode=mode))
        for name in ("offsets", "commits"):
            (folder / "state/spark" / name).mkdir(parents=True)
            (folder / "state/spark" / name / "7").write_text("v1\n{}\n{}")
        self.log = DecisionLog.open(
            LocalFileBackend(folder / "state/decisions"),
            application_id="flights",
            identity={"sinks": identity_of(load_job(self.job, {}).targets)},
        )
        self.log.decide(decision(7))
        monkeypatch.setattr(TransactionReader, "run_alive", lambda _: False)

    def take(self, *words: str) -> Result:
        return run("take", self.job, "--to", self.savepoints, "--timeout", "300ms", *words)


def run(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    return Pipeline(tmp_path, "micro-batch", monkeypatch)


def test_the_command_itself_makes_it(pipeline: Pipeline):
    done = pipeline.take()
    assert done.exit_code == 0, done.exception
    (made,) = find_savepoints(pipeline.savepoints)
    assert (done.stdout, done.stderr) == (f"{made}\n", "")
    assert verify_savepoint(made).decision.checkpoint_id == 7


def test_a_checkpoint_that_is_not_finished_is_refused(pipeline: Pipeline):
    pipeline.log.decide(decision(8))
    assert "not finished" in str(pipeline.take().exception)
    assert not pipeline.savepoints.exists()


def test_a_driver_that_decides_meanwhile_is_seen(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
):
    write = savepoint.write_savepoint

    def written(*its: Any) -> Path:
        pipeline.log.decide(decision(8))
        return write(*its)

    monkeypatch.setattr(savepoint, "write_savepoint", written)
    assert "pipeline started" in str(pipeline.take().exception)
    assert list(pipeline.savepoints.iterdir()) == []


def test_a_continuous_driver_that_decides_before_the_brokers_are_asked_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`rows` reads the log again: what it says then belongs to a newer checkpoint."""
    pipeline = Pipeline(tmp_path, "continuous", monkeypatch)

    def rows(reader: TransactionReader, _: object) -> list[object]:
        pipeline.log.decide(decision(8))
        reader.state = pipeline.log.state
        return []

    monkeypatch.setattr(TransactionReader, "rows", rows)
    assert "pipeline started" in str(pipeline.take().exception)
    assert list(pipeline.savepoints.iterdir()) == []
