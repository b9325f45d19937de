"""A stranger wants what is there now, while the topic is being written: the pipeline reads it and
ends by itself, and the next run goes on.
"""

from __future__ import annotations

from tests.journeys.conftest import MODES, Stranger
from tests.tiers import long


@long  # `parity/test_continuous.py` and `unit/test_backfill_ends.py` have it in `make test`
@MODES
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
