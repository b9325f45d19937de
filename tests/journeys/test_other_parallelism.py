"""The same pipeline on more cores, then on fewer."""

from __future__ import annotations

from tests.journeys.conftest import MODES, Stranger
from tests.tiers import long


@long
@MODES
def test_it_goes_on_where_it_was(stranger: Stranger, mode: str):
    with stranger.busy_topic(), stranger.follows_output() as reader:
        for cores in (2, 4, 1):
            job = stranger.job(
                mode, app=f'master = "local[{cores}]"', source='startingOffsets = "earliest"'
            )
            written = stranger.input_ends()
            with stranger.runs(job) as pipeline:
                stranger.comes_to(written, reader, pipeline)
                assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once()
