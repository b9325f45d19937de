"""Somebody gives the topic one more partition: all its records come through, from the first one on.

With default options, so the others begin at the end that they had at the start. A partition that
comes later has nothing that was there before the pipeline.
"""

from __future__ import annotations

import pytest

from tests.journeys.conftest import MODES, Stranger
from tests.tiers import long


@pytest.mark.parity(6, 63)
@long
@MODES
def test_while_the_pipeline_runs(stranger: Stranger, mode: str):
    with stranger.busy_topic(), stranger.follows_output() as reader:
        before = stranger.input_ends()
        with stranger.runs(stranger.job(mode)) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            seen = stranger.input_ends()
            stranger.add_a_partition()
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    assert_all_of_it_came(stranger, before, seen)


@long
@MODES
def test_while_the_pipeline_is_stopped(stranger: Stranger, mode: str):
    job = stranger.job(mode)
    with stranger.busy_topic(), stranger.follows_output() as reader:
        before = stranger.input_ends()
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
        seen = stranger.input_ends()
        stranger.add_a_partition()
        with stranger.runs(job) as pipeline:
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    assert_all_of_it_came(stranger, before, seen)


def assert_all_of_it_came(stranger: Stranger, before: dict[int, int], seen: dict[int, int]) -> None:
    """Of the first partitions from somewhere between the two, of the new one from record 0."""
    begins = {partition: range(before[partition], seen[partition]) for partition in before}
    stranger.assert_each_record_came_once(begins)
    assert set(stranger.numbers_in_output()) == {*before, len(before)}
