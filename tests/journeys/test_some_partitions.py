"""A stranger reads one of the topic's partitions: all of it comes, nothing of the others, and the
proof compares just that.
"""

from __future__ import annotations

import json

from tests.journeys.conftest import MODES, Stranger
from tests.tiers import long


@long
@MODES
def test_one_partition_with_a_kill_between(stranger: Stranger, mode: str):
    job = stranger.job(mode, reads=f"assign = '{json.dumps({stranger.topic: [1]})}'")
    with stranger.busy_topic(), stranger.follows_output() as reader:
        before = stranger.input_ends()
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            seen = stranger.input_ends()
            pipeline.kill_all()
        with stranger.runs(job) as pipeline:
            stranger.comes_to({1: stranger.input_ends()[1]}, reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
        # The writers rest and the pipeline catches up: then the proof must hold.
    with stranger.runs(job) as pipeline, stranger.follows_output() as reader:
        stranger.comes_to({1: stranger.input_ends()[1]}, reader, pipeline)
        assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once({1: range(before[1], seen[1])})
    assert set(stranger.numbers_in_output()) == {1}
    code, said = stranger.verifies_job(job)
    assert code == 0, said
