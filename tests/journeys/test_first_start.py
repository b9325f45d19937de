"""A stranger starts a pipeline with default options on a topic that is full, and being written.

By default reading begins at the end. Nothing that was there before may come out, and nothing that
was written after the first record may be missing.
"""

from __future__ import annotations

import pytest

from tests.journeys.conftest import CONTINUOUS, MICRO_BATCH, Stranger
from tests.tiers import long


@pytest.mark.parametrize(
    "mode",
    [MICRO_BATCH, pytest.param(CONTINUOUS, marks=long)],
    ids=["micro-batch", "continuous"],
)
def test_it_begins_at_the_end_as_it_was_at_the_start(stranger: Stranger, mode: str):
    with stranger.busy_topic(), stranger.follows_output() as reader:
        before = stranger.input_ends()
        with stranger.runs(stranger.job(mode)) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            seen = stranger.input_ends()
            assert pipeline.sigterm() == 0, pipeline.text
    begins = {partition: range(before[partition], seen[partition]) for partition in before}
    stranger.assert_each_record_came_once(begins)
