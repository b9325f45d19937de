"""A stranger stops the pipeline, and the terminal shows a handful of lines.

At any moment: the topic is busy, so most stops come in the middle of a checkpoint. ctrl-C reaches
every process of the group; SIGTERM the first one only, or as a service manager sends it: all of
them, workers and JVM too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.journeys.conftest import CONTINUOUS, MICRO_BATCH, MODES, Process, Stranger
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
