"""A stranger stops the pipeline, and the terminal shows a handful of lines.

At any moment: the topic is busy, so most stops come in the middle of a checkpoint. ctrl-C reaches
every process of the group; SIGTERM the first one only, or as a service manager sends it: all of
them, workers and JVM too. A terminal that is closed sends SIGHUP to the group, and shows no more.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.journeys.conftest import (
    CONTINUOUS,
    MICRO_BATCH,
    MODES,
    PATIENCE_S,
    SPARKONCE,
    Process,
    Stranger,
    processes_of_session,
)
from tests.tiers import long
from transactions.clock import Deadline

MOST_LINES = 15
SECOND_MINUTE_S = 110.0
STACK = re.compile(r"Traceback|^\s+at [\w.$]+\(|^\s+File \"|Exception", re.MULTILINE)
LIBRDKAFKA = re.compile(r"^%\d\||\[thrd:", re.MULTILINE)
JVM = re.compile(
    r"^WARNING: |VM warning|Using Spark's default|Setting default log level|adjust logging level"
    r"|^\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARN",
    re.MULTILINE,
)


@long  # `test_kill_and_restart.py` ends in this way
@MODES
def test_ctrl_c_at_the_command(stranger: Stranger, mode: str):
    with (
        stranger.busy_topic(),
        stranger.follows_output() as reader,
        stranger.runs(stranger.job(mode)) as pipeline,
    ):
        stranger.more_comes_out(reader, pipeline, records=500)
        assert pipeline.ctrl_c() == 0, pipeline.text
    assert_quiet(pipeline)
    assert sum("stopped" in line for line in pipeline.lines) == 1
    stranger.assert_each_record_came_once(begins={0: range(10**9), 1: range(10**9)})


@long
@pytest.mark.timeout(600)
@MODES
def test_a_pipeline_that_nobody_writes_to_says_nothing(stranger: Stranger, mode: str):
    """Spark closes the workers that nobody has asked for a minute, also those of the start."""
    with stranger.runs(stranger.job(mode)) as pipeline:
        pipeline.until_it_says("running")
        Deadline(SECOND_MINUTE_S).pause(SECOND_MINUTE_S)
        assert pipeline.sigterm() == 0, pipeline.text
    assert_quiet(pipeline)


@long  # the same request as the next one, at one process less
@MODES
def test_sigterm_at_the_readmes_script(stranger: Stranger, mode: str):
    assert_the_script_stops(stranger, mode, Process.sigterm)


@pytest.mark.parametrize(
    "mode",
    [pytest.param(MICRO_BATCH, marks=long), CONTINUOUS],
    ids=["micro-batch", "continuous"],
)
def test_sigterm_at_all_of_its_processes(stranger: Stranger, mode: str):
    assert_the_script_stops(stranger, mode, Process.sigterm_to_all)


@long  # `unit/test_stop_requests.py` has the signal in `make test`
@MODES
def test_the_terminal_is_closed(stranger: Stranger, mode: str):
    with (
        stranger.busy_topic(),
        stranger.follows_output() as reader,
        in_a_terminal(stranger.job(mode)) as (pipeline, close),
    ):
        stranger.more_comes_out(reader, pipeline, records=500)
        close()
        assert pipeline.process.wait(PATIENCE_S) == 0, pipeline.text
        deadline = Deadline(PATIENCE_S)
        while left := processes_of_session(pipeline.process.pid):  # the JVM ends behind it
            assert not deadline.expired(), left
            deadline.pause(0.05)
    lines = re.split(r"[\r\n]|\x1b\[2K", pipeline.text)
    for whole in ("INFO sparkonce.events: ", "running", f"{stranger.app}: "):
        assert any(line.startswith(whole) for line in lines), f"{whole} in the live line"
    stranger.assert_each_record_came_once(begins={0: range(10**9), 1: range(10**9)})


@contextlib.contextmanager
def in_a_terminal(job: Path) -> Iterator[tuple[Process, Callable[[], None]]]:
    """Start a job file in a terminal; the function closes its window."""
    window, inside = pty.openpty()
    # A run of pytest under `nohup` would hand it on that SIGHUP is ignored.
    terminal = ("setsid", "--ctty", "env", "--default-signal=HUP")
    process = subprocess.Popen(
        [*terminal, SPARKONCE, "run", str(job)],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        text=True,
        cwd=job.parent,
    )
    os.close(inside)
    pipeline, closed = Process(process), threading.Event()

    def look() -> None:
        while not closed.is_set():
            if select.select([window], [], [], 0.05)[0]:
                pipeline.lines.append(os.read(window, 65_536).decode("utf-8", "replace"))
        os.close(window)

    looks = threading.Thread(target=look, daemon=True)
    looks.start()

    def close() -> None:
        closed.set()
        looks.join(PATIENCE_S)

    try:
        yield pipeline, close
    finally:
        close()
        pipeline.kill_all()


def assert_the_script_stops(stranger: Stranger, mode: str, stop: Callable[[Process], int]) -> None:
    with (
        stranger.busy_topic(),
        stranger.follows_output() as reader,
        stranger.runs(stranger.script(mode)) as pipeline,
    ):
        stranger.more_comes_out(reader, pipeline, records=500)
        assert stop(pipeline) == 0, pipeline.text
    assert_quiet(pipeline)
    stranger.assert_each_record_came_once()


def assert_quiet(pipeline: Process) -> None:
    for noise in (STACK, LIBRDKAFKA, JVM):
        assert not noise.search(pipeline.text), pipeline.text
    assert len(pipeline.lines) <= MOST_LINES, pipeline.text
