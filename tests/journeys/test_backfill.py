"""A stranger wants what is there now, while the topic is being written: the pipeline reads it and
ends by itself, and the next run goes on.
"""

from __future__ import annotations

import pytest

from tests.journeys.conftest import CONTINUOUS, MICRO_BATCH, Stranger
from tests.tiers import sampled


@pytest.mark.parametrize("mode", sampled([MICRO_BATCH, CONTINUOUS], CONTINUOUS))
def test_each_run_reads_what_is_there_and_ends(stranger: Stranger, mode: str):
    job = stranger.job(mode, app='trigger = "available-now"', source='startingOffsets = "earliest"')
    with stranger.busy_topic():
        for _ in range(2):
            there = stranger.input_ends()
            with stranger.runs(job) as pipeline:
                assert pipeline.ends() == 0, pipeline.text
            stranger.assert_each_record_came_once(
                {partition: range(end) for partition, end in there.items()}
            )
