"""What a checkpoint and a start cost as a pipeline grows: `python -m benchmarks.subtasks`.

A continuous job of 1, 4, 16 and 64 subtasks, one after the other in one Spark application on a
standalone cluster whose two workers declare enough cores, from a topic of 64 partitions to another
one. A paced producer gives every partition some records in each interval, so that each subtask has
a transaction in each checkpoint. JSON lines on stdout, one per number of subtasks; exit code 1 when
a record was lost or doubled, or when a checkpoint of 64 subtasks missed its target.

`--partitions` and `--neighbours` make the topics and the cluster larger: a neighbour is another
pipeline with 200 transactional ids that the brokers remember.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Self

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.cluster.local_cluster import LocalCluster
from connectors.spark import ContinuousDriver, build_session
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.auditor.reader import read_committed
from tests.integration.spark_cluster import HOSTS, SparkCluster
from transactions.clock import Deadline
from transactions.coordinator import CheckpointReport

PARTITIONS = 64
SUBTASKS = (1, 4, 16, 64)
IDS_OF_A_NEIGHBOUR = 200
TARGET_MS = 150.0
_ROOT = Path(__file__).parents[1]
#: A long-running broker: the whole compiler, and memory for two topics of many partitions.
_BROKER_JVM = ("-Xmx2g", "-XX:TieredStopAtLevel=4")
_START_S = 180.0
_LEAST = 10


class Feed:
    """One record into each partition, over and over, from a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, every_s: float) -> None:
        self._topic = topic
        self._partitions = partitions
        self._every_s = every_s
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, and wait until the broker has everything."""
        self._stopping.set()
        self._thread.join()
        if left := self._producer.flush(30.0):
            raise RuntimeError(f"the broker did not take {left} records")

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            for partition in range(self._partitions):
                value = b"%d" % (self.sent + partition)
                self._producer.produce(self._topic, value, b"%d" % partition, partition=partition)
            self.sent += self._partitions
            self._producer.poll(0)


class Measurement:
    """One continuous job on the cluster; its topics and checkpoint are its own."""

    def __init__(
        self, options: argparse.Namespace, broker: LocalCluster, spark: SparkSession, folder: Path
    ) -> None:
        self._options = options
        self._broker = broker
        self._spark = spark
        self._folder = folder

    def measure(self, subtasks: int) -> dict[str, object]:
        """Return the line of one number of subtasks."""
        app = f"subtasks-{subtasks}-{uuid.uuid4().hex[:6]}"
        bootstrap = self._broker.bootstrap_servers
        for name in ("in", "out"):
            self._broker.create_topic(f"{app}-{name}", self._options.partitions)
        reports: list[CheckpointReport] = []
        driver = ContinuousDriver(
            self._spark,
            app_id=app,
            checkpoint=self._folder / app,
            source=KafkaSource(
                bootstrap_servers=bootstrap, subscribe=f"{app}-in", starting_offsets="earliest"
            ),
            sink=KafkaSink(bootstrap_servers=bootstrap, topic=f"{app}-out"),
            parallelism=subtasks,
            fixed_parallelism=True,
            barrier_interval_s=self._options.interval,
            checkpoint_timeout_s=_START_S,
            restart_strategy="none",
            on_checkpoint=reports.append,
        )
        began = time.monotonic()
        driver.start()
        started_s = time.monotonic() - began
        every_s = self._options.interval / 2
        with Feed(bootstrap, f"{app}-in", self._options.partitions, every_s) as feed:
            driver.await_termination(self._options.warmup)
            first = len(reports)
            driver.await_termination(self._options.seconds)
            measured = reports[first:]
            if len(measured) < _LEAST:
                raise RuntimeError(f"{len(measured)} checkpoints in {self._options.seconds:.0f} s")
            feed.stop()
            while sum(one.records for one in reports) < feed.sent:
                driver.await_termination(0.2)
        driver.stop()
        assert driver.await_termination(60.0), "it did not stop"
        return {
            "subtasks": subtasks,
            "checkpoints": len(measured),
            "transactions": round(sum(one.transactions for one in measured) / len(measured), 1),
            "commit_ms": _percentiles([one.commit_ms for one in measured]),
            "total_ms": _percentiles([sum(one.phase_ms.values()) for one in measured]),
            "phase_p50_ms": {
                name: _percentiles([one.phase_ms[name] for one in measured])["p50"]
                for name in measured[0].phase_ms
            },
            "started_s": round(started_s, 1),
            "decision_bytes": self._decision_bytes(app),
            **_ids(bootstrap, app),
            **_audit(bootstrap, f"{app}-out", feed.sent),
        }

    def _decision_bytes(self, app: str) -> int:
        """Return the size of the largest entry of the log: a decision, or what compaction keeps."""
        entries = (self._folder / app / "decisions").iterdir()
        return max(len(one.read_bytes().rstrip()) for one in entries)


def _ids(bootstrap: str, app: str) -> dict[str, float]:
    """Return how many ids the brokers remember of this application, and what a look for its open
    transactions takes: a start looks twice, a sweep once.
    """
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as wire:
        ids = wire.list_open(app, None, Deadline(_START_S), states=())
        took = []
        for _ in range(_LEAST):
            began = time.monotonic()
            wire.list_open(app, None, Deadline(_START_S))
            took.append((time.monotonic() - began) * 1000)
    return {"ids": len(ids), "list_ms": round(median(took), 2)}


def _move_in(bootstrap: str, neighbours: int) -> None:
    """Let the brokers remember the ids of other pipelines."""
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as wire:
        for neighbour in range(neighbours):
            for number in range(IDS_OF_A_NEIGHBOUR):
                name = f"neighbour-{neighbour}.00000000.1.0.{number}"
                wire.fence(name, 60_000, Deadline(_START_S))


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    cuts = quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2)}


def _audit(bootstrap: str, topic: str, sent: int) -> dict[str, int]:
    """Judge by an independent reader: every number once."""
    seen = Counter(record.value for record in read_committed(bootstrap, topic, timeout=120.0))
    doubled = sum(times - 1 for times in seen.values())
    return {"records": sent, "lost": sent - len(seen), "doubled": doubled}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.subtasks", description=__doc__)
    parser.add_argument("--subtasks", type=int, nargs="+", default=SUBTASKS)
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="of each topic")
    parser.add_argument("--neighbours", type=int, default=0, help="other pipelines on the cluster")
    parser.add_argument("--seconds", type=float, default=12.0, help="measured, for each number")
    parser.add_argument("--warmup", type=float, default=12.0)
    parser.add_argument("--interval", type=float, default=0.25, help="seconds between barriers")
    parser.add_argument("--keep", metavar="NAME", help="also write benchmarks/results/<date>-NAME")
    return parser.parse_args()


def main() -> int:
    """Measure every number of subtasks; return the exit code."""
    options = _options()
    today = dt.datetime.now(dt.UTC).date().isoformat()
    lines: list[dict[str, object]] = []
    cores = -(-max(options.subtasks) // len(HOSTS))
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-subtasks-") as folder,
        LocalCluster(jvm_options=_BROKER_JVM) as broker,
        SparkCluster(cores=cores) as cluster,
    ):
        conf = cluster.conf(PYTHONPATH=str(_ROOT))
        spark = build_session("subtasks", master=cluster.master_url, conf=conf)
        try:
            _move_in(broker.bootstrap_servers, options.neighbours)
            measurement = Measurement(options, broker, spark, Path(folder))
            for subtasks in options.subtasks:
                print(f"{subtasks} subtasks ...", file=sys.stderr, flush=True)
                facts = {
                    "benchmark": "subtasks",
                    "date": today,
                    "cores": os.cpu_count(),
                    "interval_s": options.interval,
                    "partitions": options.partitions,
                    "neighbours": options.neighbours,
                    "load_before": round(os.getloadavg()[0], 1),
                }
                lines.append({**facts, **measurement.measure(subtasks)})
                print(json.dumps(lines[-1]), flush=True)
        finally:
            spark.stop()
    if options.keep:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        results = Path(__file__).parent / "results"
        (results / f"{today}-{options.keep}.jsonl").write_text(text, encoding="utf-8")
    return 1 if any(_missed(line) for line in lines) else 0


def _missed(line: dict[str, object]) -> bool:
    commit = line["commit_ms"]
    assert isinstance(commit, dict)
    slow = line["subtasks"] == max(SUBTASKS) and commit["p50"] >= TARGET_MS
    return bool(line["lost"] or line["doubled"] or slow)


if __name__ == "__main__":
    sys.exit(main())
