"""How long after a SIGKILL of the driver does a reader see new records again?

A feeder keeps its pace all the time. The job's process group is killed, its next process starts at
once on the same checkpoint, and a read_committed reader waits for the first record that was
produced after the kill. Spark's own at-least-once job stands beside ours: what is more than its
start-up is ours. JSON lines on stdout; exit code 1 when a record was lost, when ours doubled one,
or when ours took `--bound` seconds more than Spark's own.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Self

import click
import numpy as np
from confluent_kafka import Producer

from benchmarks.peers import PEERS
from benchmarks.run import keep_lines, say
from benchmarks.systems import MODES
from benchmarks.workload import PARTITIONS, SHAPE, read_committed
from connectors.bench.committed_reader import raise_if_error
from connectors.bench.figures import Line, batch_start_ns
from connectors.bench.job_process import JobProcess
from connectors.bench.measurements import head
from connectors.bench.shape import number_of, stamp_of
from connectors.bench.system import System
from connectors.bench.workbench import BROKER_JVM
from connectors.cluster.local_cluster import LocalCluster
from connectors.options.table import CONTINUOUS, MICRO_BATCH
from transactions.errors import SparkOnceError

_TICK_S = 0.002
_START_S = 120.0
_AFTER_S = 3.0
_DRAIN_S = 60.0


class Feed:
    """A paced producer and a read_committed reader, on two threads of this process: one clock."""

    def __init__(self, bootstrap: str, topics: tuple[str, str], rate: int) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._rate = rate
        self._stopped = {name: threading.Event() for name in ("feed", "read")}
        self._threads = {
            "feed": threading.Thread(target=self._guarded, args=(self._feed,)),
            "read": threading.Thread(target=self._guarded, args=(self._read,)),
        }
        self._failure: BaseException | None = None
        self.sent = 0
        #: How often each id was seen.
        self.seen: dict[int, int] = {}
        self.killed_ns = 0
        #: When the first record was seen that was produced after that moment.
        self.first_new_ns = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for name in self._threads:
            self._stop(name)

    def killed(self) -> None:
        """Note the moment: records that are produced from now on are new."""
        with self._lock:
            self.killed_ns, self.first_new_ns = time.time_ns(), 0

    def wait_for_new(self, job: JobProcess) -> None:
        """Wait until a record has been seen that was produced after the kill, or at all."""
        deadline = time.monotonic() + _START_S
        while not self.first_new_ns:
            self._check(job)
            if time.monotonic() > deadline:
                raise SparkOnceError(f"no new record became visible in {_START_S:.0f} s")
            time.sleep(0.005)

    def drain(self, job: JobProcess) -> None:
        """Stop producing, and wait until everything has been seen, or no more can come."""
        self._stop("feed")
        deadline = time.monotonic() + _DRAIN_S
        while len(self.seen) < self.sent and time.monotonic() < deadline:
            self._check(job)
            time.sleep(0.05)
        time.sleep(2.0)  # for duplicates that come late

    def _check(self, job: JobProcess) -> None:
        job.check()
        if self._failure is not None:
            raise SparkOnceError("the feeder or the reader failed") from self._failure

    def _stop(self, name: str) -> None:
        self._stopped[name].set()
        self._threads[name].join()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._failure = error

    def _feed(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 1})
        start = time.monotonic()
        while not self._stopped["feed"].is_set():
            due = int((time.monotonic() - start) * self._rate) + 1
            for number in range(self.sent, due):
                value, key = SHAPE.value(time.time_ns()), SHAPE.key(number)
                producer.produce(self._topics[0], value, key, partition=SHAPE.partition(number))
            self.sent = due
            producer.poll(0)
            time.sleep(_TICK_S)
        if producer.flush(30.0):
            raise SparkOnceError("the broker did not take all records in 30 s")

    def _read(self) -> None:
        consumer = read_committed(self._bootstrap, self._topics[1])
        try:
            while not self._stopped["read"].is_set():
                first: Any = consumer.poll(0.1)
                if first is None:
                    continue
                more = consumer.consume(10_000, timeout=0)
                now = time.time_ns()
                with self._lock:
                    for message in (first, *more):
                        raise_if_error(message)
                        self._note(message.key(), message.value(), now)
        finally:
            consumer.close()

    def _note(self, key: bytes, value: bytes, now: int) -> None:
        number = number_of(key)
        before = self.seen.get(number, 0)
        self.seen[number] = before + 1
        if before:
            return
        if stamp_of(value) > self.killed_ns:
            self.first_new_ns = self.first_new_ns or now


def measure(job: JobProcess, feed: Feed, settle_s: float) -> Line:
    """Kill the job once it has run for a while, start it again, and return how long it took."""
    with job:
        feed.wait_for_new(job)
        time.sleep(settle_s)
        feed.killed()
        job.kill()
        job.start()
        feed.wait_for_new(job)
        time.sleep(_AFTER_S)  # it goes on
        feed.drain(job)
        marks = job.marks()
    if not job.report["progress"]:
        raise SparkOnceError("the job was killed before it could say what its batches were")
    return {
        "first_new_s": _seconds(feed.killed_ns, feed.first_new_ns),
        "split_s": _split(feed, marks, job.report["progress"]),
        "lost": feed.sent - len(feed.seen),
        "dup": sum(times - 1 for times in feed.seen.values()),
    }


def one_round(
    cluster: LocalCluster, folder: Path, system: System, *, rate: int, settle_s: float
) -> Line:
    """Measure a system on topics of its own; what fails, its installation too, is an `error`."""
    unique = uuid.uuid4().hex[:8]
    topics = (f"in-{unique}", f"out-{unique}")
    for topic in topics:
        cluster.create_topic(topic, PARTITIONS)
    bootstrap = cluster.bootstrap_servers
    kafka = {"bootstrap.servers": bootstrap}
    job = JobProcess(system, folder / unique, kafka=kafka, topics=topics, batch_records=None)
    try:
        with Feed(bootstrap, topics, rate) as feed:
            return measure(job, feed, settle_s)
    except SparkOnceError as error:
        return {"error": str(error)}


def _split(feed: Feed, marks: dict[str, int], progress: list[Line]) -> dict[str, float]:
    """Return the seconds of each step between the kill and the first new record."""
    steps = {
        "python": marks["imported"],
        "session": marks["session"],
        **({"checks": marks["recovering"]} if "recovering" in marks else {}),
        **({"recovery": marks["recovered"]} if "recovered" in marks else {}),
        **({"tasks": marks["ready"]} if "ready" in marks else _batches(feed, progress)),
        "last batch": feed.first_new_ns,
    }
    split, since = {}, feed.killed_ns
    for name, moment in steps.items():
        split[name], since = _seconds(since, moment), moment
    return split


def _batches(feed: Feed, progress: list[Line]) -> dict[str, int]:
    """Return when the query and each batch began, up to the batch that had the first new record."""
    began = [one for one in progress if batch_start_ns(one) < feed.first_new_ns]
    first = began[0]["batchId"]
    later = {f"batch {one['batchId'] - first}": batch_start_ns(one) for one in began[1:]}
    return {"query": batch_start_ns(began[0]), **later}


def _seconds(since_ns: int, until_ns: int) -> float:
    return round((until_ns - since_ns) / 1e9, 3)


def compare(lines: list[Line], ours: System, bound_s: float) -> Line:
    """Return the medians of our mode and of Spark's own job beside each other."""
    names = (ours.name, PEERS["spark"].name)
    ours_s, theirs_s = (
        float(np.median([one["first_new_s"] for one in lines if one["system"] == name]))
        for name in names
    )
    return {
        "what": "recovery beside Spark's own",
        "ours": names[0],
        "theirs": names[1],
        "ours_s": round(ours_s, 3),
        "theirs_s": round(theirs_s, 3),
        "ratio": round(ours_s / theirs_s, 3),
        "difference_s": round(ours_s - theirs_s, 3),
        "bound_s": bound_s,
        "good": ours_s - theirs_s <= bound_s,
    }


@click.command()
@click.option(
    "--mode", type=click.Choice([MICRO_BATCH, CONTINUOUS]), default=MICRO_BATCH, show_default=True
)
@click.option("--rate", default=2000, show_default=True, help="Records per second.")
@click.option("--rounds", default=3, show_default=True, help="A B A B; medians are compared.")
@click.option("--settle", default=10.0, show_default=True, help="Seconds of work before a kill.")
@click.option("--peer/--no-peer", default=True, help="Spark's own job beside ours.")
@click.option("--bound", default=2.0, show_default=True, help="Most seconds above Spark's own.")
@click.option("--keep", metavar="NAME", help="Also write benchmarks/results/<date>-NAME.jsonl.")
def main(  # noqa: PLR0917 - click passes them by name
    mode: str, rate: int, rounds: int, settle: float, peer: bool, bound: float, keep: str | None
) -> None:
    """Measure, compare, judge."""
    ours = MODES[mode]
    systems = [ours, PEERS["spark"]] if peer else [ours]
    lines: list[Line] = []
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-recovery-") as folder,
        LocalCluster(jvm_options=BROKER_JVM) as cluster,
    ):
        for number, system in itertools.product(range(rounds), systems):
            say(f"recovery: {system.name}, round {number}")
            line = head("recovery", system) | {"round": number, "rate": rate}
            line |= one_round(cluster, Path(folder), system, rate=rate, settle_s=settle)
            lines.append(line)
            click.echo(json.dumps(line))
    failed = [one for one in lines if one.get("error") or one["lost"]]
    doubled = [one for one in lines if one["system"] == ours.name and one.get("dup")]
    if peer and not failed:
        lines.append(compare(lines, ours, bound))
        click.echo(json.dumps(lines[-1]))
    if keep:
        keep_lines(lines, keep)
    sys.exit(1 if failed or doubled or not lines[-1].get("good", True) else 0)


if __name__ == "__main__":
    main()
