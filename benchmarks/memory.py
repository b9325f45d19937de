"""Does memory grow over 2,000 checkpoints, does the decision log, and what does a restart read?

A feeder keeps a trickle of records coming, so that every batch is small and the next one begins
at once. In continuous mode, where a hundred thousand checkpoints are half an hour:

    python -m benchmarks.memory --mode continuous --checkpoints 100000 --every 5000

JSON lines on stdout: a sample every 100 checkpoints, then the verdict; exit code 1 if it
is bad.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import psutil
from confluent_kafka import Producer

from benchmarks.run import say
from benchmarks.systems import OURS
from benchmarks.workload import PARTITIONS
from connectors.bench.job_process import JobProcess
from connectors.bench.system import our_system
from connectors.bench.workbench import BROKER_JVM
from connectors.cluster.local_cluster import LocalCluster
from connectors.options.table import CONTINUOUS
from transactions.decision_log import COMPACT_EVERY, read_log
from transactions.log_backend import LocalFileBackend

#: Most growth in MB from the checkpoint at a quarter of the run to its last; noise is below that.
BOUNDS_MB = {"driver_mb": 20.0, "workers_mb": 40.0, "heap_mb": 40.0}
#: Entries since the last compaction, and the few of a start.
MOST_LOG_FILES = MOST_ENTRIES_READ = COMPACT_EVERY + 10
#: Continuous checkpoints come faster than the clean-up of a compaction, which nobody waits for.
MOST_LOG_FILES_CONTINUOUS = 2 * COMPACT_EVERY + 10
#: Per mode: the system, and the longest wait of its feeder.
MODES = {
    "micro-batch": (OURS, 0.01),
    # What the job keeps of each checkpoint for other measurements would be growth of its own.
    "continuous": (our_system(CONTINUOUS, most_progress=1000), 0.002),
}
#: More than the last line of what a job tells of its checkpoints.
_TAIL_BYTES = 4096


class CountingBackend(LocalFileBackend):
    """Counts what is read."""

    reads = 0

    def get(self, name: str) -> bytes | None:
        """See `LogBackend.get`."""
        self.reads += 1
        return super().get(name)


@click.command()
@click.option("--mode", type=click.Choice(list(MODES)), default="micro-batch", show_default=True)
@click.option("--checkpoints", default=2000, show_default=True)
@click.option("--every", default=100, show_default=True, help="Checkpoints between two samples.")
def main(mode: str, checkpoints: int, every: int) -> None:
    """Run, sample, judge."""
    system, feed_every_s = MODES[mode]
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-memory-") as folder,
        LocalCluster(jvm_options=BROKER_JVM) as cluster,
    ):
        for topic in ("in", "out"):
            cluster.create_topic(topic, PARTITIONS)
        job = JobProcess(
            system,
            Path(folder) / "job",
            kafka={"bootstrap.servers": cluster.bootstrap_servers},
            topics=("in", "out"),
            batch_records=None,
            heap_every=every if system is OURS else 0,  # continuous jobs do not tell theirs
            # the default: a longer memory of Spark's own would be growth that we asked for
            conf={"spark.sql.streaming.numRecentProgressUpdates": "100"},
        )
        stop = threading.Event()
        feeder = threading.Thread(
            target=_feed, args=(cluster.bootstrap_servers, stop, feed_every_s)
        )
        feeder.start()
        try:
            with job:
                samples = _sample(job, checkpoints, every)
        finally:
            stop.set()
            feeder.join()
        heap = {one["id"]: one["heap_mb"] for one in job.checkpoints() if "heap_mb" in one}
        for one in samples:
            one["heap_mb"] = heap.get(one["checkpoint"])
            click.echo(json.dumps({"what": "memory", "system": system.name, **one}))
        verdict: dict[str, Any] = {"what": "memory verdict", "system": system.name}
        verdict |= _verdict(samples, checkpoints)
        verdict |= _restart(job.folder / "checkpoint" / "decisions")
    most_files = MOST_LOG_FILES if system is OURS else MOST_LOG_FILES_CONTINUOUS
    verdict["good"] = (
        verdict["grew_too_much"] == []
        and verdict["most_log_files"] <= most_files
        and verdict["restart_entries_read"] <= MOST_ENTRIES_READ
    )
    click.echo(json.dumps(verdict))
    sys.exit(0 if verdict["good"] else 1)


def _feed(bootstrap: str, stop: threading.Event, every_s: float) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    number = 0
    while not stop.wait(every_s):
        producer.produce("in", b"x" * 100, str(number).encode(), partition=number % PARTITIONS)
        producer.poll(0)
        number += 1
    producer.flush(10.0)


def _sample(job: JobProcess, checkpoints: int, every: int) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []
    log, most_files = job.folder / "checkpoint" / "decisions", 0
    start = time.monotonic()
    following = every
    while following <= checkpoints:
        job.check()
        newest = _newest(job)
        most_files = max(most_files, len(list(os.scandir(log))) if newest >= 0 else 0)
        if newest >= following:
            seconds = round(time.monotonic() - start, 1)
            reached = {"checkpoint": following, "seconds": seconds, "most_log_files": most_files}
            samples.append(reached | _memory_of(job))
            say(f"checkpoint {following}: {samples[-1]}")
            following += every
        time.sleep(0.2)
    return samples


def _newest(job: JobProcess) -> int:
    """Return the last checkpoint that a job told, -1 before the first; reads the end only."""
    path = job.folder / "checkpoints.jsonl"
    if not path.exists():
        return -1
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().splitlines(keepends=True)
    whole = [one for one in lines if one.startswith(b"{") and one.endswith(b"\n")]
    return int(json.loads(whole[-1])["id"]) if whole else -1


def _memory_of(job: JobProcess) -> dict[str, Any]:
    """Return the memory that is each process's own (USS): workers are forks and share the rest."""
    driver = psutil.Process(job.pid)
    sizes = {"driver": _own_mb(driver), "jvm": 0.0, "workers": 0.0}
    workers = 0
    for one in driver.children(recursive=True):
        try:
            if one.name() == "java" and one.ppid() == driver.pid:
                sizes["jvm"] += _own_mb(one)
            elif one.name().startswith("python"):
                sizes["workers"] += _own_mb(one)
                workers += 1
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
    return {
        **{f"{name}_mb": round(value, 1) for name, value in sizes.items()},
        "workers": workers,
    }


def _own_mb(process: psutil.Process) -> float:
    return float(process.memory_full_info().uss) / 1e6


def _verdict(samples: list[dict[str, Any]], checkpoints: int) -> dict[str, Any]:
    """Compare the last sample with the one after a quarter: the first one is warm-up."""
    early = next(one for one in samples if one["checkpoint"] >= checkpoints // 4)
    last = samples[-1]
    growth = {
        name: round(last[name] - early[name], 1)
        for name in (*BOUNDS_MB, "jvm_mb")
        if last[name] is not None and early[name] is not None
    }
    return {
        "from_checkpoint": early["checkpoint"],
        "to_checkpoint": last["checkpoint"],
        "growth_mb": growth,
        "bounds_mb": BOUNDS_MB,
        "grew_too_much": [name for name, most in BOUNDS_MB.items() if growth.get(name, 0.0) > most],
        "checkpoints_per_s": round(last["checkpoint"] / last["seconds"], 2),
        "most_log_files": last["most_log_files"],
    }


def _restart(folder: Path) -> dict[str, Any]:
    """Read the log as a restart does; count the entries."""
    backend = CountingBackend(folder)
    start = time.monotonic()
    newest = read_log(backend).decision
    return {
        "restart_entries_read": backend.reads,
        "restart_read_ms": round((time.monotonic() - start) * 1e3, 1),
        "restart_found_checkpoint": None if newest is None else newest.checkpoint_id,
    }


if __name__ == "__main__":
    main()
