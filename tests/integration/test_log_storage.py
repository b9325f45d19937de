"""A decision log whose disk is full for a while, then fails an fsync: no record shows it.

The faults are those of two system calls on the log's own folder. In both modes the run that meets
one stops without aborting anything, and the next one (a restart in the same process) goes on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.spark import arrow_pipeline
from tests.auditor.reader import Follower, read_committed
from tests.integration.in_process import send, values
from tests.integration.job_process import PATIENCE_S
from transactions.clock import Deadline

RETRY = "fixed-delay(attempts=5, delay=100ms)"


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


@pytest.mark.parametrize(
    ("mode", "options"),
    [("micro-batch", {}), ("continuous", {"parallelism": 2, "barrier_interval_s": 0.1})],
)
def test_b2_b8_a_log_that_cannot_be_written_for_a_while(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    options: dict[str, Any],
):
    source, output = topic(2, "in"), topic(2, "out")
    disk = Disk(tmp_path / "state" / "decisions", [])
    monkeypatch.setattr(os, "link", disk.link)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    send(bootstrap, source, range(20))
    with Follower(bootstrap, output) as reader:
        pipeline = arrow_pipeline(
            spark,
            app_id=application_id,
            checkpoint=tmp_path / "state",
            source=KafkaSource(
                bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest"
            ),
            sink=KafkaSink(bootstrap_servers=bootstrap, topic=output),
            mode=mode,
            restart_strategy=RETRY,
            **options,
        )
        pipeline.start()
        produced = 20
        # A decision; then a decision in doubt, and the Fence of the next run.
        for faults in (["full"], ["not synced", "full"]):
            disk.faults = list(faults)
            send(bootstrap, source, range(produced, produced + 20))
            produced += 20
            deadline = Deadline(PATIENCE_S)
            while disk.faults or len(reader.records) < produced:
                assert not pipeline.await_termination(0.1)  # restarts happen in this call
                assert not deadline.expired()
        pipeline.request_stop()
        pipeline.wait()
    assert sorted(values(read_committed(bootstrap, output))) == list(range(produced))
    assert len(disk.met) == 3
    assert pipeline.restarts == 3
