"""A stranger knows spark-submit, and starts a pipeline with it: the job file, and a script."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.journeys.conftest import (
    CONTINUOUS,
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


def submitted(folder: Path, command: str) -> contextlib.AbstractContextManager[Process]:
    """Start a command of the page; the process is the JVM: the scripts of Spark become it."""
    script = f"{RUN_FILE}\nexec {command}"
    return started("bash", "-c", script, folder=folder, environment=HERE, with_stdout=True)


@long
@MODES
def test_a_job_file_is_stopped_killed_and_goes_on(stranger: Stranger, mode: str):
    """SIGTERM goes to the JVM, which spark-submit is; so does the SIGKILL of a cluster manager."""
    stranger.job(mode, source='startingOffsets = "earliest"')
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with submitted(stranger.folder, RUN_JOB) as run:
            stranger.more_comes_out(reader, run)
            assert run.sigterm() == 0, run.text
        assert "SIGTERM: stopping between two checkpoints" in run.text
        with submitted(stranger.folder, RUN_JOB) as run:
            stranger.more_comes_out(reader, run)
            children = psutil.Process(run.process.pid).children()
            (program,) = (one for one in children if "job.toml" in one.cmdline())
            os.kill(run.process.pid, signal.SIGKILL)
            _, alive = psutil.wait_procs([program], PATIENCE_S)
            assert not alive, "the program outlives its JVM"
        with submitted(stranger.folder, RUN_JOB) as run:
            stranger.comes_to(stranger.input_ends(), reader, run)
            assert run.sigterm() == 0, run.text
    stranger.assert_each_record_came_once()


@long
@pytest.mark.parametrize("session", ["of the page", "build_session"])
def test_a_script(stranger: Stranger, session: str):
    script = stranger.script()
    if session == "of the page":
        here = {"/data/flights": f"{stranger.folder}/checkpoint", '"flights"': f'"{stranger.app}"'}
        plain = replaced(block("docs/spark_submit.md", "SparkSession.builder.getOrCreate()"), here)
        imports, _, rest = script.read_text().partition("\n")
        script.write_text(f"{imports}\n{plain}{rest[rest.index('source = ') :]}")
    command = RUN_JOB.replace('"$RUN" job.toml', script.name)
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with submitted(stranger.folder, command) as run:
            stranger.more_comes_out(reader, run)
            run.sigterm()
        with submitted(stranger.folder, command) as run:
            stranger.comes_to(stranger.input_ends(), reader, run)
            run.sigterm()
    stranger.assert_each_record_came_once()


def test_two_masters_are_refused(stranger: Stranger):
    stranger.job(CONTINUOUS, app='master = "local[4]"')
    with submitted(stranger.folder, RUN_JOB) as run:
        assert run.ends() == 2
    assert "The pipeline and spark-submit name two masters." in run.text
    assert "master=local[4]: leave it out" in run.text
