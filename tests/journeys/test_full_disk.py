"""The disk with the checkpoint is full for a while: when there is room again, nothing is missing.

The disk is a file system in memory, of a few megabytes. To mount it, the test must be root.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journeys.conftest import Stranger
from tests.tiers import long


@pytest.fixture
def small_disk(stranger: Stranger) -> Iterator[Path]:
    """The folder ``checkpoint`` of the stranger is a disk of its own."""
    disk = stranger.folder / "checkpoint"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@long
def test_it_goes_on_when_there_is_room_again(stranger: Stranger, small_disk: Path):
    with (
        stranger.busy_topic(),
        stranger.follows_output() as reader,
        stranger.runs(stranger.script()) as pipeline,
    ):
        stranger.more_comes_out(reader, pipeline)
        fill(small_disk / "somebody-elses-file")
        pipeline.until_it_says(r"No space left on device")
        (small_disk / "somebody-elses-file").unlink()
        stranger.comes_to(stranger.input_ends(), reader, pipeline)
        assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once()


def fill(path: Path) -> None:
    """Take all that is left, to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
