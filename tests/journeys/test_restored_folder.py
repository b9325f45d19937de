"""Somebody puts an older checkpoint folder back, or copies one: nothing comes twice in silence."""

from __future__ import annotations

import dataclasses
import shutil

from tests.journeys.conftest import MODES, Process, Stranger
from tests.tiers import long

BEGIN = 'startingOffsets = "earliest"'


@long
@MODES
def test_a_backup_is_put_back(stranger: Stranger, mode: str):
    job = stranger.job(mode, source=BEGIN)
    folder, backup = stranger.folder / "checkpoint", stranger.folder / "backup"
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            assert pipeline.ctrl_c() == 0, pipeline.text
        shutil.copytree(folder, backup)
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            assert pipeline.ctrl_c() == 0, pipeline.text
        came = stranger.numbers_in_output()
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        for _ in range(2):
            with stranger.runs(job) as pipeline:
                assert pipeline.ends() == 2, pipeline.text
            assert_it_names_both(pipeline, stranger)
            assert stranger.numbers_in_output() == came
        with stranger.runs(job, "--accept-duplicates") as pipeline:
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.ctrl_c() == 0, pipeline.text
    seen = stranger.numbers_in_output()
    for partition, numbers in seen.items():
        assert set(numbers) == set(range(max(numbers) + 1)), f"partition {partition} has holes"
        assert max(map(numbers.count, numbers[-200:])) <= 2


@long
@MODES
def test_a_copy_is_started_beside_the_pipeline(stranger: Stranger, mode: str):
    """The original goes on: its output is newer than what the copy knows."""
    there = elsewhere(stranger)
    with (
        stranger.busy_topic(),
        stranger.follows_output() as reader,
        stranger.runs(stranger.job(mode, source=BEGIN)) as original,
    ):
        stranger.more_comes_out(reader, original)
        with original.frozen():  # as a snapshot of the disk has it
            shutil.copytree(stranger.folder / "checkpoint", there.folder / "checkpoint")
        stranger.more_comes_out(reader, original)
        with there.runs(there.job(mode, source=BEGIN)) as copy:
            assert copy.ends() == 2, copy.text
        assert_it_names_both(copy, stranger)
        stranger.comes_to(stranger.input_ends(), reader, original)
        assert original.ctrl_c() == 0, original.text
    stranger.assert_each_record_came_once()


@long
@MODES
def test_a_copy_goes_on_and_then_the_original_is_started(stranger: Stranger, mode: str):
    job, there = stranger.job(mode, source=BEGIN), elsewhere(stranger)
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with stranger.runs(job) as original:
            stranger.more_comes_out(reader, original)
            assert original.ctrl_c() == 0, original.text
        shutil.copytree(stranger.folder / "checkpoint", there.folder / "checkpoint")
        with there.runs(there.job(mode, source=BEGIN)) as copy:
            stranger.more_comes_out(reader, copy)
            assert copy.ctrl_c() == 0, copy.text
        with stranger.runs(job) as original:
            assert original.ends() == 2, original.text
        assert_it_names_both(original, stranger)
    stranger.assert_each_record_came_once()


def elsewhere(stranger: Stranger) -> Stranger:
    folder = stranger.folder / "elsewhere"
    folder.mkdir()
    return dataclasses.replace(stranger, folder=folder)


def assert_it_names_both(pipeline: Process, stranger: Stranger) -> None:
    """The last that it says is an error of four parts: what the log knows, and the cluster."""
    _, error, said = pipeline.text.rpartition("IdentityMismatchError: ")
    assert error, pipeline.text
    assert len(said.splitlines()) == 4, said
    for part in ("where:", "cause:", "look at:", "last in the log: checkpoint", "--accept"):
        assert part in said, said
    assert f"app_id={stranger.app}" in said
