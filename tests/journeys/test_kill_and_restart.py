"""The machine dies; what runs afterwards goes on as if nothing had been.

SIGKILL to the whole group, at whatever moment it is; then another start, and a stop in order.
"""

from __future__ import annotations

from tests.journeys.conftest import Stranger


def test_every_record_comes_through_once(stranger: Stranger):
    script = stranger.script()
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with stranger.runs(script) as pipeline:
            stranger.more_comes_out(reader, pipeline, records=300)
            pipeline.kill_all()
        written = stranger.input_ends()
        with stranger.runs(script) as pipeline:
            stranger.comes_to(written, reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once()
