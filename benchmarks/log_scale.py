"""How the decision log bears a hundred thousand checkpoints, or a million; no broker, no Spark.

It drives the log as a run does, on files: newest? decide, newest? compact, with the clean-up on a
thread of its own. JSON lines on stdout: samples, then the verdict; exit code 1 if it is bad.

    python -m benchmarks.log_scale --checkpoints 100000
    python -m benchmarks.log_scale --checkpoints 1000000 --folder /dev/shm   # no disk: no fsync
"""

from __future__ import annotations

import collections
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psutil

from transactions.committable import Committable
from transactions.decision_log import COMPACT_EVERY, DecisionLog, read_log
from transactions.log_backend import LocalFileBackend
from transactions.log_entries import Decision

IDENTITY = {"mode": "continuous"}
APP = "log-scale"
SAMPLES = 10
#: Most growth from a quarter of the run to its end; what a restart may take.
MOST_GROWTH_MB, MOST_OPEN_S = 5.0, 1.0
#: Entries since the last compaction, those that its thread has not deleted yet, and a few.
MOST_FILES = 2 * COMPACT_EVERY + 10


class TimedBackend(LocalFileBackend):
    """Adds up where the time goes, on the thread that waits for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self.calls: dict[str, int] = collections.Counter()

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - began
            self.calls[what] += 1

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See `LogBackend.put_if_absent`."""
        with self._timed("put"):
            return super().put_if_absent(name, data)

    def get(self, name: str) -> bytes | None:
        """See `LogBackend.get`."""
        with self._timed("get"):
            return super().get(name)

    def list(self, *, durable: bool = True) -> list[str]:
        """See `LogBackend.list`; what is durable is the clean-up's, and nobody waits for it."""
        with self._timed("clean-up list" if durable else "list"):
            return super().list(durable=durable)

    def delete(self, name: str) -> None:
        """See `LogBackend.delete`."""
        with self._timed("clean-up delete"):
            super().delete(name)

    def report(self) -> dict[str, dict[str, float]]:
        """Return, per operation, calls, seconds in all and milliseconds of one."""
        return {
            what: {
                "calls": self.calls[what],
                "seconds": round(seconds, 1),
                "ms": round(seconds / self.calls[what] * 1e3, 3),
            }
            for what, seconds in sorted(self.seconds.items())
        }


@click.command()
@click.option("--checkpoints", default=100_000, show_default=True)
@click.option("--tasks", default=4, show_default=True, help="Committables of a checkpoint.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where; else a temporary folder.")
def main(checkpoints: int, tasks: int, folder: Path | None) -> None:
    """Run, sample, open again, judge."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-log-", dir=folder) as place:
        samples, backend = _run(Path(place), checkpoints, tasks)
        verdict = _verdict(samples) | _restart(Path(place))
        verdict |= {"operations": backend.report()}
    verdict["good"] = (
        verdict["found_checkpoint"] == checkpoints
        and verdict["growth_mb"] <= MOST_GROWTH_MB
        and verdict["most_files"] <= MOST_FILES
        and verdict["open_s"] <= MOST_OPEN_S
    )
    click.echo(json.dumps(verdict))
    sys.exit(0 if verdict["good"] else 1)


def _run(place: Path, checkpoints: int, tasks: int) -> tuple[list[dict[str, Any]], TimedBackend]:
    backend = TimedBackend(place)
    samples: list[dict[str, Any]] = []
    with ThreadPoolExecutor(1) as background:
        log = DecisionLog.open(backend, application_id=APP, identity=IDENTITY)
        log.later = background.submit
        make = _decisions(tasks)
        began = time.perf_counter()
        most_files = 0
        for number in range(1, checkpoints + 1):
            log.check_newest()
            log.decide(make(number))
            log.check_newest()
            log.compact_if_due()
            if number % COMPACT_EVERY == 0:
                most_files = max(most_files, len(os.listdir(place)))  # noqa: PTH208 - counts
            if number % max(1, checkpoints // SAMPLES) == 0:
                seconds = time.perf_counter() - began
                sample = {"checkpoints": number, "seconds": round(seconds, 1)}
                samples.append(sample | {"most_files": most_files} | _look(place))
                click.echo(json.dumps({"what": "log scale", **samples[-1]}))
    return samples, backend


def _decisions(tasks: int) -> Callable[[int], Decision]:
    """Return what makes decisions of the size of a continuous run's."""

    def made(number: int) -> Decision:
        offsets = {f"events-{n}": number * 1000 + n for n in range(2 * tasks)}
        text = json.dumps(offsets)
        return Decision(
            checkpoint_id=number,
            query_id="continuous",
            generation=0,
            start_offsets=(text,),
            end_offsets=(text,),
            committables=tuple(
                Committable(
                    sink="out",
                    transactional_id=f"{APP}.0123abcd.1.89abcdef.{2 * task + number % 2}",
                    producer_id=1000 + 2 * task + number % 2,
                    producer_epoch=0,
                    start_time_ms=1_700_000_000_000 + number,
                    timeout_ms=900_000,
                    checkpoint_id=number,
                    subtask=task,
                    attempt=f"1.{task}",
                    token=f"{number}.{task}.0123456789abcdef",
                    record_count=1000,
                    fingerprint=f"{number:032x}",
                    source_offsets={f"events-{n}": number * 1000 for n in (task, task + tasks)},
                    marker_group=APP,
                    marker_partition=f"events-{task}",
                    partitions=tuple(f"out-{n}" for n in range(2 * tasks)),
                )
                for task in range(tasks)
            ),
            partitioning={
                str(task): f"events-{task},events-{task + tasks}" for task in range(tasks)
            },
        )

    return made


def _look(place: Path) -> dict[str, Any]:
    """Measure this process, and what a reader has to do now."""
    backend = TimedBackend(place)
    began = time.perf_counter()
    read_log(backend)
    seconds = time.perf_counter() - began
    files = list(os.scandir(place))
    return {
        "rss_mb": round(psutil.Process().memory_info().rss / 1e6, 1),
        "files": len(files),
        "read_s": round(seconds, 4),
        "entries_read": backend.calls["get"],
    }


def _restart(place: Path) -> dict[str, Any]:
    """Open the log as the next run does: read it, append a Fence, compact when it is due."""
    began = time.perf_counter()
    log = DecisionLog.open(LocalFileBackend(place), application_id=APP, identity=IDENTITY)
    seconds = time.perf_counter() - began
    last = log.state.decision
    return {
        "open_s": round(seconds, 4),
        "found_checkpoint": None if last is None else last.checkpoint_id,
        "entries_ever": log.state.tail,
    }


def _verdict(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the end with a quarter of the run: before that it warms up."""
    early, last = samples[len(samples) // 4], samples[-1]
    return {
        "what": "log scale verdict",
        "checkpoints": last["checkpoints"],
        "per_s": round(last["checkpoints"] / last["seconds"]),
        "growth_mb": round(last["rss_mb"] - early["rss_mb"], 1),
        "most_files": max(one["most_files"] for one in samples),
    }


if __name__ == "__main__":
    main()
