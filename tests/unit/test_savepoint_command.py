"""`sparkonce savepoint`: whom `take` waits for, which driver it sees, and what `list` shows."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from connectors.cli.savepoint import command
from connectors.operations.transaction_reader import TransactionReader
from connectors.operations.transaction_table import Row, Standing
from connectors.options.job_file import load_job
from connectors.options.sink import identity_of
from connectors.wire.partition_leaders import Unended
from tests.unit.samples import committable, decision
from transactions import savepoint, savepoint_place
from transactions.checkpoint_location import CheckpointLocation
from transactions.decision_log import DecisionLog
from transactions.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    SavepointError,
    SavepointNotMadeError,
    SparkOnceError,
)
from transactions.log_backend import LocalFileBackend
from transactions.savepoint_place import find_savepoints, verify_savepoint

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
DRIVER = f"run 1 of flights (pod-1/{os.getpid()})"


class Pipeline:
    """A pipeline that has stopped after checkpoint 7; its driver ran on another machine."""

    def __init__(self, folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job, self.savepoints = folder / "job.toml", folder / "savepoints"
        self.job.write_text(JOB.format(mode=mode))
        for name in ("offsets", "commits"):
            (folder / "state/spark" / name).mkdir(parents=True)
            (folder / "state/spark" / name / "7").write_text("v1\n{}\n{}")
        monkeypatch.setattr(socket, "gethostname", lambda: "pod-1")
        self.log = DecisionLog.open(
            LocalFileBackend(folder / "state/decisions"),
            application_id="flights",
            identity={"sinks": identity_of(load_job(self.job, {}).targets)},
        )
        self.log.decide(decision(7))
        monkeypatch.setattr(socket, "gethostname", lambda: "pod-2")

    def take(self, *words: str) -> Result:
        return run("take", self.job, "--to", self.savepoints, "--timeout", "300ms", *words)


def run(*words: object, **environment: str) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], env=environment)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Return one that was stopped as it should be: its log says that no broker need be asked."""
    made = Pipeline(tmp_path, "micro-batch", monkeypatch)
    made.log.settle()
    return made


def test_a_driver_on_another_machine_is_named_at_once_and_at_the_end(pipeline: Pipeline):
    done = pipeline.take()
    assert done.stderr.startswith(f"waiting for {DRIVER}")
    assert "--stopped" in done.stderr
    assert isinstance(done.exception, SavepointNotMadeError)
    assert DRIVER in done.exception.where
    assert "--stopped" in done.exception.option
    assert not pipeline.savepoints.exists()


def test_a_user_who_says_that_it_is_stopped_waits_for_nobody(pipeline: Pipeline):
    done = pipeline.take("--stopped")
    assert done.exit_code == 0, done.exception
    (made,) = find_savepoints(pipeline.savepoints)
    assert (done.stdout, done.stderr) == (f"{made}\n", "")
    assert verify_savepoint(made).decision.checkpoint_id == 7
    assert not (pipeline.job.parent / "state/savepoint-requests").exists()


def test_a_checkpoint_that_is_not_finished_is_refused(pipeline: Pipeline):
    pipeline.log.decide(decision(8))
    error = pipeline.take("--stopped").exception
    assert isinstance(error, SavepointNotMadeError)
    assert "not finished" in error.what
    assert not pipeline.savepoints.exists()


@pytest.mark.parametrize("left", ["", "v1", 'v1\n{"nextBatch'])
def test_a_checkpoint_of_which_a_power_cut_left_no_whole_record_is_refused(
    pipeline: Pipeline, left: str
):
    """Its name is there and its content is not: Spark could never start from such a file."""
    (pipeline.job.parent / "state/spark/commits/7").write_text(left)
    error = pipeline.take("--stopped").exception
    assert isinstance(error, SavepointError)
    assert "not finished" in error.what
    assert "start the pipeline" in error.option
    assert not pipeline.savepoints.exists()


def test_a_driver_that_decides_meanwhile_is_seen(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
):
    write = savepoint_place.write_savepoint

    def written(*its: Any) -> CheckpointLocation:
        pipeline.log.decide(decision(8))
        return write(*its)

    monkeypatch.setattr(savepoint_place, "write_savepoint", written)
    error = pipeline.take("--stopped").exception
    assert isinstance(error, SavepointNotMadeError)
    assert "went on" in str(error)
    assert "without --stopped" in str(error)
    assert list(pipeline.savepoints.iterdir()) == []


def test_a_driver_that_removes_old_state_meanwhile_is_seen(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
):
    """Spark's maintenance also runs between two batches: no entry of the log shows it."""
    write = savepoint_place.write_savepoint
    state = pipeline.job.parent / "state/spark/state/0/0/5.zip"
    state.parent.mkdir(parents=True)
    state.touch()

    def removed(*its: Any) -> CheckpointLocation:
        state.unlink()
        return write(*its)

    monkeypatch.setattr(savepoint_place, "write_savepoint", removed)
    error = pipeline.take("--stopped").exception
    assert isinstance(error, SavepointNotMadeError)
    assert str(state) in error.where
    assert DRIVER in error.where
    assert "its driver runs" in error.cause
    assert "without --stopped" in error.option
    assert list(pipeline.savepoints.iterdir()) == []


@pytest.mark.parametrize("below", ["a-file/savepoints", "to-nowhere"])
def test_a_folder_that_cannot_be_written_is_no_wrong_configuration(pipeline: Pipeline, below: str):
    (pipeline.job.parent / "a-file").touch()
    (pipeline.job.parent / "to-nowhere").symlink_to(pipeline.job.parent / "not/there")
    pipeline.savepoints = pipeline.job.parent / below
    error = pipeline.take("--stopped").exception
    assert isinstance(error, SavepointNotMadeError)
    assert f"--to {pipeline.savepoints}" in error.option


def test_a_driver_that_ends_without_an_answer_is_named(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
):
    alive = iter([True, False])
    monkeypatch.setattr(TransactionReader, "run_alive", lambda _: next(alive))
    error = pipeline.take().exception
    assert isinstance(error, SavepointNotMadeError)
    assert "ended without an answer" in error.what
    assert DRIVER in error.where


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
    error = pipeline.take("--stopped").exception
    assert "went on" in str(error)
    assert "without --stopped" in str(error)
    assert list(pipeline.savepoints.iterdir()) == []


UNASKED = BrokerUnavailableError("No broker answered.", where="out-3: no leader")
HIDDEN = {"out": [Unended("out-3", 7, 3, 1, 42)]}


def sees(
    monkeypatch: pytest.MonkeyPatch, hidden: Any, standing: Standing = Standing.COMMITTED
) -> None:
    """Let brokers say that the last decision is committed, and what they hide of it."""
    row = Row(
        standing=standing,
        proof="",
        advice="",
        sink="out",
        transactional_id="app.log.1.p.0",
        producer_id=7,
        producer_epoch=3,
        decided=committable(checkpoint_id=7),
    )

    def answers(*_: object) -> Any:
        if isinstance(hidden, Exception):
            raise hidden
        return hidden

    monkeypatch.setattr(TransactionReader, "rows", lambda *_: [row])
    monkeypatch.setattr(TransactionReader, "hidden", answers)


@pytest.mark.parametrize("mode", ["continuous", "micro-batch"])
@pytest.mark.parametrize(
    ("hidden", "kind"), [(UNASKED, BrokerUnavailableError), (HIDDEN, SavepointError)]
)
def test_a_checkpoint_that_readers_may_not_see_is_not_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    hidden: Any,
    kind: type[SparkOnceError],
):
    """Nobody would ever write the markers: what is restored has no transaction to look at."""
    pipeline = Pipeline(tmp_path, mode, monkeypatch)
    sees(monkeypatch, hidden)
    error = pipeline.take("--stopped").exception
    assert isinstance(error, kind), error
    assert "out-3" in error.where
    assert not pipeline.savepoints.exists()
    sees(monkeypatch, {"out": []}, Standing.HIDDEN)  # the marker came between the two looks
    assert pipeline.take("--stopped").exit_code == 0


@pytest.mark.parametrize("standing", [Standing.COMMITTED, Standing.HIDDEN])
def test_who_takes_a_hidden_checkpoint_is_told_the_command_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standing: Standing
):
    """Another start would stop with the same finding: everything is committed already."""
    pipeline = Pipeline(tmp_path, "continuous", monkeypatch)
    sees(monkeypatch, HIDDEN, standing)
    error = pipeline.take("--stopped").exception
    assert isinstance(error, SavepointNotMadeError)
    assert "KAFKA-20734" in error.cause
    assert "transactions write-markers" in error.option
    assert "start the pipeline" not in str(error)


def test_a_stopped_pipeline_cannot_be_stopped(pipeline: Pipeline):
    done = pipeline.take("--stop", "--stopped")
    assert done.exit_code == 2
    assert "--stop or --stopped" in done.stderr


@pytest.mark.parametrize("terminal", [{"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "80"}, {}])
@pytest.mark.parametrize("broken", [False, True])
def test_a_path_is_shown_whole(pipeline: Pipeline, terminal: dict[str, str], broken: bool):
    """People copy it. In a terminal of 80 columns its cell has several lines."""
    pipeline.savepoints = pipeline.savepoints / "[eu]"
    made = Path(pipeline.take("--stopped").stdout.strip())
    if broken:
        (made / "savepoint.json").write_text("")
    shown = run("list", pipeline.savepoints, **terminal).stdout
    cells = [line.split("│")[1].strip() for line in shown.splitlines() if line[:1] == "│"]
    assert "".join(cells).startswith(str(made))
    assert ("broken:" in shown) is broken
    assert "…" not in shown


def test_one_of_a_newer_version_is_marked_and_hides_no_other(pipeline: Pipeline):
    made = [Path(pipeline.take("--stopped").stdout.strip()) for _ in range(2)]
    manifest = made[0] / "savepoint.json"
    fields = orjson.loads(manifest.read_bytes())
    del fields["checksum"]
    fields["log"]["format"] = 99
    manifest.write_bytes(orjson.dumps({**fields, "checksum": savepoint._checksum(fields)}))
    found = {
        row["path"]: row for row in orjson.loads(run("list", pipeline.savepoints, "--json").stdout)
    }
    assert found[str(made[0])]["broken"] == "a newer sparkonce made it"
    assert found[str(made[1])]["checkpoint"] == 7
    error = run("show", made[0]).exception
    assert isinstance(error, SavepointError)
    assert error.option == "upgrade sparkonce"


def test_a_folder_without_a_savepoint_is_no_error(tmp_path: Path):
    assert run("list", tmp_path, "--json").stdout == "[]\n"


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, words: tuple[str, ...]):
    done = run("list", tmp_path / "savepoint", *words)
    assert isinstance(done.exception, ConfigurationError)
    assert done.exception.where == str(tmp_path / "savepoint")
    assert done.stdout == ""
