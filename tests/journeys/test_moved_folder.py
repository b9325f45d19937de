"""The job and its checkpoint move to another folder; a relative checkpoint goes with its file."""

from __future__ import annotations

import dataclasses
import shutil

from tests.journeys.conftest import Stranger
from tests.tiers import long


@long
def test_it_goes_on_where_it_was(stranger: Stranger):
    job = stranger.job(source='startingOffsets = "earliest"')
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            assert pipeline.ctrl_c() == 0, pipeline.text
        moved = stranger.folder / "elsewhere"
        moved.mkdir()
        for what in ("job.toml", "checkpoint"):
            shutil.move(stranger.folder / what, moved / what)
        written = stranger.input_ends()
        there = dataclasses.replace(stranger, folder=moved)
        with there.runs(moved / "job.toml") as pipeline:
            there.comes_to(written, reader, pipeline)
            assert pipeline.ctrl_c() == 0, pipeline.text
    stranger.assert_each_record_came_once()
