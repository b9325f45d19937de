"""`sparkonce migrate`: what it says, and what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from connectors.cli.migrate import command
from tests.unit.spark_checkpoints import of_one_topic
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend

PLANNED = '{"a":{"0":9,"1":7}}'
JOB = """
[app]
id = "flights"
checkpoint = "new"
[source]
"kafka.bootstrap.servers" = "nobody:1"
subscribe = "{topics}"
[[sink]]
"kafka.bootstrap.servers" = "nobody:1"
topic = "out"
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def log_of(new: Path):
    return read_log(LocalFileBackend(new / "decisions"))


def run(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def test_the_command_for_a_job_file(old: Path, new: Path, tmp_path: Path):
    of_one_topic(old, planned=PLANNED)
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(topics="a"))
    done = run(old, "--job", job, "--planned-batch", "skip")
    assert done.exit_code == 0, done.output
    assert done.output == (
        f"flights begins at the end of batch 2 of {old}:\n"
        "  a-0  9\n"
        "  a-1  7\n"
        "Batch 2, which was planned and has no commit, is skipped: 1 offsets.\n"
        f"Next: sparkonce run {job}. Do not start the old query again.\n"
    )
    assert log_of(new).application_id == "flights"


def test_the_command_refuses_a_job_with_other_topics(old: Path, new: Path, tmp_path: Path):
    of_one_topic(old)
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(topics="a,b"))
    assert "does not read what the query" in str(run(old, "--job", job).exception)
    assert not new.exists()


def test_the_command_for_a_pipeline_in_python(old: Path, new: Path):
    of_one_topic(old, planned=PLANNED)
    target = ("--app-id", "flights", "--checkpoint", f"file://{new}")
    done = run(f"file://{old}", *target, "--planned-batch", "run-again")
    assert done.exit_code == 0, done.output
    assert "end of batch 1" in done.output
    assert "is run again: 1 offsets" in done.output
    assert "Next: driver.run()." in done.output
    assert log_of(new).tail == 1


def test_check_writes_nothing(old: Path, new: Path):
    of_one_topic(old)
    target = ("--app-id", "flights", "--checkpoint", new)
    done = run(old, *target, "--check")
    assert done.exit_code == 0, done.output
    assert done.output.endswith("  a-0  8\n  a-1  7\nNothing was written.\n")
    assert not new.exists()
    run(old, *target)
    assert "needs an empty checkpoint" in str(run(old, *target, "--check").exception)


@pytest.mark.parametrize(
    "words",
    [(), ("--app-id", "x"), ("--checkpoint", "x"), ("--job", "x", "--app-id", "x")],
    ids=["nothing", "no folder", "no id", "both"],
)
def test_the_command_needs_one_new_pipeline(old: Path, words: tuple[str, ...]):
    done = run(old, *words)
    assert done.exit_code == 2
    assert "Give --job, or --app-id and --checkpoint." in done.output


def test_a_remote_checkpoint_must_be_copied_first(new: Path):
    done = run("s3://bucket/old", "--app-id", "x", "--checkpoint", new)
    assert "copy the whole checkpoint" in str(done.exception)


@pytest.mark.parametrize("check", [("--check",), ()], ids=["check", "migrate"])
def test_an_id_that_cannot_be_part_of_a_transactional_id(old: Path, new: Path, check):
    of_one_topic(old)
    assert "only letters" in str(run(old, "--app-id", "a.b", "--checkpoint", new, *check).exception)
    job = new.with_name("job.toml")
    job.write_text(JOB.format(topics="a").replace("flights", "a.b"))
    assert "only letters" in str(run(old, "--job", job, *check).exception)
    assert not new.exists()
