"""A stranger knows spark-submit, and starts a pipeline with it: the job file, and a script."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.journeys.conftest import (
    CLEAN,
    MODES,
    PATIENCE_S,
    Process,
    Stranger,
    started,
)
from tests.pages import block, commands, replaced
from tests.tiers import long

#: Where `python` and `spark-submit` are those in which sparkonce is installed.
HERE = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
RUN_FILE, RUN_JOB = commands(
    replaced(
        block("docs/spark_submit.md", "--master spark://host:7077"),
        {"spark://host:7077": "local[2]", "/opt/pipeline/bin/python": sys.executable},
    )
)


def submitted(
    folder: Path, command: str, environment: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[Process]:
    """Start a command of the page; the process is the JVM: the scripts of Spark become it."""
    script = f"{RUN_FILE}\nexec {command}"
    wanted = {**(environment or {}), **HERE}
    return started("bash", "-c", script, folder=folder, environment=wanted, with_stdout=True)


@long
@MODES
def test_a_job_file_is_stopped_killed_and_goes_on(stranger: Stranger, mode: str):
    """SIGTERM goes to the JVM, which spark-submit is; so does the SIGKILL of a cluster manager.

    The job's module lies beside the job file, and spark-submit is typed elsewhere.
    """
    job = stranger.job(mode, source='startingOffsets = "earliest"')
    job.write_text(job.read_text() + '[transform]\narrow = "my_module:clean"\n')
    (stranger.folder / "my_module.py").write_text(CLEAN)
    elsewhere = stranger.folder / "elsewhere"
    elsewhere.mkdir()
    command = RUN_JOB.replace("job.toml", "../job.toml")
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with submitted(elsewhere, command) as run:
            stranger.more_comes_out(reader, run)
            assert run.sigterm() == 0, run.text
        assert "SIGTERM: stopping between two checkpoints" in run.text
        with submitted(elsewhere, command) as run:
            stranger.more_comes_out(reader, run)
            program = program_of(run)
            os.kill(run.process.pid, signal.SIGKILL)
            _, alive = psutil.wait_procs([program], PATIENCE_S)
            assert not alive, "the program outlives its JVM"
        with submitted(elsewhere, command) as run:
            stranger.comes_to(stranger.input_ends(), reader, run)
            assert run.ctrl_c() == 0, run.text
    stranger.assert_each_record_came_once()


def program_of(run: Process) -> psutil.Process:
    """Return the program that the JVM of spark-submit has started."""
    (found,) = (
        one
        for one in psutil.process_iter(["ppid", "cmdline"])
        if one.info["ppid"] == run.process.pid and "../job.toml" in (one.info["cmdline"] or ())
    )
    return found


@long
@pytest.mark.parametrize("session", ["of the page", "build_session"])
def test_a_script(stranger: Stranger, session: str):
    script = stranger.script()
    if session == "of the page":
        here = {"/data/flights": f"{stranger.folder}/checkpoint", '"flights"': f'"{stranger.app}"'}
        plain = replaced(
            block("docs/spark_submit.md", "SparkSession.builder.getOrCreate()"),
            here,
        )
        imports, _, rest = script.read_text().partition("\n")
        script.write_text(f"{imports}\n{plain}{rest[rest.index('source = ') :]}")
    command = RUN_JOB.replace('"$RUN" job.toml', script.name)
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with submitted(stranger.folder, command) as run:
            stranger.more_comes_out(reader, run)
            assert run.sigterm() == 0, run.text
        # In a pod of Spark's a good end would be the end of the pipeline.
        command = command.replace(
            "--master", "--conf spark.kubernetes.submitInDriver=true --master"
        )
        with submitted(stranger.folder, command) as run:
            stranger.comes_to(stranger.input_ends(), reader, run)
            assert run.sigterm() == 143, run.text
    stranger.assert_each_record_came_once()


@pytest.mark.parametrize(("option", "code"), [("", 0), ('trigger = "often"', 2)])
def test_a_job_file_is_checked(stranger: Stranger, option: str, code: int):
    """Nothing of Spark starts but its JVM."""
    stranger.job(app=option)
    with submitted(stranger.folder, f"{RUN_JOB} --check") as run:
        assert run.ends() == code, run.text
    assert ("neither a duration" if option else stranger.output) in run.text
