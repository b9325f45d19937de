"""The clock on the wall of the pipeline's machine jumps: no record is lost, and none comes twice.

It jumps for the command, its JVM and its Python workers, while they run and between two starts; the
broker has its own clock. A broker takes no record from the day after (Kafka 4: from more than an
hour after its own time), so a jump that wide ends the pipeline, until the clock is right again.
"""

from __future__ import annotations

import pytest

from tests.journeys.conftest import MODES, Stranger
from tests.tiers import long
from tests.wall_clock import DAY_S, WallClock

BEGIN = 'startingOffsets = "earliest"'
#: Spark looks once a minute whether an executor was silent for two.
LOOKS_S = 70.0


@long
@MODES
@pytest.mark.parametrize("seconds", [DAY_S // 48, -DAY_S], ids=["half an hour ahead", "a day back"])
def test_the_pipeline_goes_on(stranger: Stranger, mode: str, seconds: int):
    job, clock = stranger.job(mode, source=BEGIN), WallClock(stranger.folder)
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with stranger.runs(job, **clock.environment) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            clock.set_ahead(seconds)
            stranger.comes_out_for(LOOKS_S, reader, pipeline)
            assert pipeline.ctrl_c() == 0, pipeline.text
        clock.set_ahead(0)
        with stranger.runs(job, **clock.environment) as pipeline:
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            pipeline.kill_all()
        clock.set_ahead(seconds)
        with stranger.runs(job, **clock.environment) as pipeline:
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once()


@long
@MODES
def test_a_day_ahead_it_ends_and_says_why(stranger: Stranger, mode: str):
    job, clock = stranger.job(mode, source=BEGIN), WallClock(stranger.folder)
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with stranger.runs(job, **clock.environment) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            clock.set_ahead(DAY_S)
            assert pipeline.ends() == 1, pipeline.text
        assert "this machine's clock may be wrong" in pipeline.text
        clock.set_ahead(0)
        with stranger.runs(job, **clock.environment) as pipeline:
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once()
