"""A stranger's first hour: a job file, default options, a busy topic, and the machine dies.

SIGKILL to the whole group, at whatever moment it is. Another start goes on as if nothing had been,
ctrl-C stops it in a few lines, and `sparkonce verify` proves the result.
"""

from __future__ import annotations

import contextlib

from tests.journeys.conftest import Stranger
from tests.journeys.test_stop import assert_quiet


def test_every_record_comes_through_once(stranger: Stranger):
    job = stranger.job()
    with stranger.follows_output() as reader, contextlib.ExitStack() as writing:
        writing.enter_context(stranger.busy_topic())
        before = stranger.input_ends()
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline, records=300)
            seen = stranger.input_ends()
            pipeline.kill_all()
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            writing.close()
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.ctrl_c() == 0, pipeline.text
    assert_quiet(pipeline)
    assert sum("stopped" in line for line in pipeline.lines) == 1
    stranger.assert_each_record_came_once(
        {partition: range(before[partition], seen[partition]) for partition in before}
    )
    code, told = stranger.verifies_job(job)
    assert (code, "exactly once" in told) == (0, True), told
