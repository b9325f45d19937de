"""A decision log whose disk is full for a while, or fails an fsync: no record shows it.

The faults are those of two system calls on the log's own folder. In both modes the run that meets
one stops without aborting anything, and the next one (a restart in the same process, or another
process) goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.spark import arrow_pipeline
from connectors.spark.pipeline import ArrowPipeline
from connectors.testing.child import FAILED
from connectors.testing.run import Run
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.auditor.reader import Follower, read_committed
from tests.failing_fsync import fsync_fails
from tests.integration.in_process import send, values
from tests.integration.job_process import PATIENCE_S
from tests.integration.pipeline_process import pipeline_on
from tests.integration.test_continuous import Copy
from tests.tiers import long
from transactions.clock import Deadline
from transactions.decision_log import entry_name, read_log
from transactions.log_backend import LocalFileBackend
from transactions.log_entries import Decision


class Disk:
    """The disk of a decision log.

    Attributes:
        faults: what comes next, one per entry: the entry finds no space, or its folder is not
            synced after it got its name.
        met: what came.
    """

    def __init__(self, folder: Path, faults: list[str]) -> None:
        self._folder = folder
        self._link, self._fsync = os.link, os.fsync
        self._linked = False
        self.faults, self.met = faults, list[str]()

    def link(self, source: Path, target: Path) -> None:
        """Give an entry its name, or say that the disk is full."""
        if Path(target).parent == self._folder:
            if self.faults[:1] == ["full"]:
                self.met.append(self.faults.pop(0))
                raise OSError(errno.ENOSPC, "No space left on device")
            self._linked = True
        self._link(source, target)

    def fsync(self, descriptor: int) -> None:
        """Sync, or fail where an entry has just got its name."""
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if self._linked and path == self._folder:
            self._linked = False
            if self.faults[:1] == ["not synced"]:
                self.met.append(self.faults.pop(0))
                raise OSError(errno.EIO, "Input/output error")
        self._fsync(descriptor)


MODES = pytest.mark.parametrize(
    ("mode", "options"),
    [
        pytest.param("micro-batch", {}, marks=long),
        ("continuous", {"parallelism": 2, "barrier_interval_s": 0.1}),
    ],
)


@dataclasses.dataclass
class Story:
    """A pipeline in this process, and the numbers that it was given to copy."""

    bootstrap: str
    source: str
    output: str
    pipeline: ArrowPipeline
    produced: int = 0

    def send(self) -> None:
        """Give it twenty more."""
        send(self.bootstrap, self.source, range(self.produced, self.produced + 20))
        self.produced += 20

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait; restarts happen meanwhile."""
        deadline = Deadline(PATIENCE_S)
        while not condition():
            assert not self.pipeline.await_termination(0.1)
            assert not deadline.expired()

    def ends_well(self) -> None:
        """Stop it, and look at all that it wrote."""
        self.pipeline.request_stop()
        self.pipeline.wait()
        written = values(read_committed(self.bootstrap, self.output))
        assert sorted(written) == list(range(self.produced))


@pytest.fixture
def story(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    mode: str,
    options: dict[str, Any],
) -> Story:
    source, output = topic(2, "in"), topic(2, "out")
    pipeline = arrow_pipeline(
        spark,
        app_id=application_id,
        checkpoint=tmp_path / "state",
        source=KafkaSource(
            bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest"
        ),
        sink=KafkaSink(bootstrap_servers=bootstrap, topic=output),
        mode=mode,
        restart_strategy="fixed-delay(attempts=1000, delay=100ms)",
        **options,
    )
    return Story(bootstrap, source, output, pipeline)


@MODES
def test_b2_b8_a_log_that_cannot_be_written_for_a_while(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk = Disk(tmp_path / "state" / "decisions", [])
    monkeypatch.setattr(os, "link", disk.link)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    story.send()
    with Follower(story.bootstrap, story.output) as reader:
        story.pipeline.start()
        # A decision; then a decision in doubt, and the Fence of the next run.
        for faults in (["full"], ["not synced", "full"]):
            disk.faults = list(faults)
            story.send()
            story.until(lambda: not disk.faults and len(reader.records) >= story.produced)
        story.ends_well()
    assert len(disk.met) == 3
    assert story.pipeline.restarts == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of the log is a file system in memory, of its own; to mount it we must be root."""
    disk = tmp_path / "state" / "decisions"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@long
@MODES
def test_b8_a_log_on_a_full_disk_is_written_when_there_is_room(
    story: Story, small_disk: Path, caplog: pytest.LogCaptureFixture
):
    """The kernel says ENOSPC, to nobody but the log: to a decision, then to each run's Fence."""
    story.send()
    with Follower(story.bootstrap, story.output) as reader:
        story.pipeline.start()
        story.until(lambda: len(reader.records) >= story.produced)
        filler = small_disk / ".somebody-elses-file"
        fill(filler)
        # The file of one decision may have been made before: that one is written, and not the next.
        story.send()
        story.until(lambda: story.pipeline.restarts >= 3 or len(reader.records) >= story.produced)
        if story.pipeline.restarts < 3:
            story.send()
            story.until(lambda: story.pipeline.restarts >= 3)
        assert len(reader.records) < story.produced
        tail = read_log(LocalFileBackend(small_disk)).tail
        filler.unlink()
        story.until(lambda: len(reader.records) >= story.produced)
        story.ends_well()
    unwritten = re.findall(
        r"could not be written; this checkpoint is not decided.*\n.*entry (\d+): .*No space left",
        caplog.text,
    )
    assert len(unwritten) >= 3, caplog.text
    assert set(map(int, unwritten)) == {tail + 1}


def fill(path: Path) -> None:
    """Take all that is left, to the last byte."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)


#: Of the second decision: a Fence, a Start and a decision come before it in both modes.
IN_DOUBT = 4


def kernel_fails(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fsync of the log's folder fail once in a process: when the decision has its name."""
    once, entry = tmp_path / "failed", folder / entry_name(IN_DOUBT)
    for name, value in fsync_fails(folder, when=entry, once=once).items():
        monkeypatch.setenv(name, value)


def stopped_in_doubt(run: Run, folder: Path, bootstrap: str) -> Decision:
    """Assert that a process has stopped at its decision and aborted none of its transactions."""
    assert run.wait() == FAILED, run.text()
    assert "not known; nothing was aborted" in run.text()
    log = read_log(LocalFileBackend(folder))
    assert log.tail == IN_DOUBT
    decided = log.decision
    assert decided is not None
    assert decided.committables
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as operator:
        ids = [one.transactional_id for one in decided.committables]
        described = operator.describe(ids, Deadline(30.0))
    for one in decided.committables:
        now = described[one.transactional_id]
        assert (now.state, now.producer_id, now.producer_epoch, now.start_time_ms) == (
            "Ongoing",
            one.producer_id,
            one.producer_epoch,
            one.start_time_ms,
        )
    return decided


@long
def test_b2_the_next_process_settles_a_decision_in_doubt(
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    pipeline = pipeline_on(bootstrap, topic, tmp_path, application_id)
    folder = Path(pipeline.checkpoint) / "decisions"
    kernel_fails(folder, tmp_path, monkeypatch)
    pipeline.produce(120, at_once=True)  # three batches of 40
    with Follower(bootstrap, pipeline.copies) as follower:
        with pipeline.running() as run:
            decided = stopped_in_doubt(run, folder, bootstrap)
        code, run = pipeline.run_once()
        assert code == 0, run.text()
        assert run.lines[-1] == {"recommitted": len(decided.committables)}
        assert run.replays() == [decided.checkpoint_id]
        pipeline.audit(follower)


@long
def test_b2_the_next_process_of_continuous_mode_settles_a_decision_in_doubt(
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    source, output = topic(2, "source"), topic(2, "output")
    copy = Copy(bootstrap, application_id, source, output, tmp_path)
    folder = tmp_path / "checkpoint" / "decisions"
    kernel_fails(folder, tmp_path, monkeypatch)
    copy.produce()
    with Follower(bootstrap, output) as follower:
        with copy.running() as run:
            decided = stopped_in_doubt(run, folder, bootstrap)
        run = copy.run_to_the_end(follower)
        assert run.lines[-1] == {"recommitted": len(decided.committables)}
        copy.audit(follower)
