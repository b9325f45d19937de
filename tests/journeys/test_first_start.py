"""A stranger starts a pipeline with default options on a topic that is full, and being written.

By default reading begins at the end. Nothing that was there before may come out, and nothing that
was written after the first record may be missing. `sparkonce verify` proves it: a job
file names both topics, and the folder that says where the pipeline began.
"""

from __future__ import annotations

import contextlib

from tests.journeys.conftest import MODES, Stranger
from tests.journeys.test_stop import assert_quiet
from tests.tiers import long


@long  # `test_kill_and_restart.py` begins in the same way, `test_start.py` in the other mode
@MODES
def test_it_begins_at_the_end_as_it_was_at_the_start(stranger: Stranger, mode: str):
    with stranger.follows_output() as reader, contextlib.ExitStack() as writing:
        writing.enter_context(stranger.busy_topic())
        before = stranger.input_ends()
        job = stranger.job(mode)
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            seen = stranger.input_ends()
            writing.close()
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.ctrl_c() == 0, pipeline.text
    assert_quiet(pipeline)
    assert sum("stopped" in line for line in pipeline.lines) == 1
    begins = {partition: range(before[partition], seen[partition]) for partition in before}
    stranger.assert_each_record_came_once(begins)

    code, told = stranger.verifies()
    assert (code, "lost in the middle" in told, "--checkpoint" in told) == (1, True, True), told
    code, told = stranger.verifies_job(job)
    assert (code, "exactly once" in told) == (0, True), told
