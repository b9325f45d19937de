"""Runs `pipeline_main` as a process, kills it where a test says, and audits its topics."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from connectors.testing.run import Run, running
from tests.auditor import checkers
from tests.auditor.reader import Follower, Record, read_committed

__all__ = ["KEYS", "PARTITIONS", "Pipeline", "Run", "pipeline_on"]

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
KEYS = 5


@dataclass
class Pipeline:
    """The topics, the checkpoint and the processes of one test.

    Attributes:
        environment: returns the variables of the next process.
    """

    bootstrap: str
    application_id: str
    checkpoint: str
    source: str
    copies: str
    counts: str
    folder: Path
    produced: int = 0
    partitions: int = PARTITIONS
    environment: Callable[[], dict[str, str]] = dict

    def produce(self, records: int, *, at_once: bool = False) -> None:
        """Append records with unique values, spread over partitions and keys.

        Args:
            records: how many.
            at_once: in a transaction, so that all partitions show theirs at the same time: no
                batch begins with those of one, while a subtask has nothing but an offset to write.
        """
        settings = {"bootstrap.servers": self.bootstrap, "linger.ms": 5}
        if at_once:
            settings["transactional.id"] = f"input-{uuid.uuid4().hex}"
        producer = Producer(settings)
        if at_once:
            producer.init_transactions(30)
            producer.begin_transaction()
        for number in range(self.produced, self.produced + records):
            key = b"key-%d" % (number % KEYS)
            producer.produce(self.source, b"%08d" % number, key, partition=number % self.partitions)
        if at_once:
            producer.commit_transaction(30)
        assert producer.flush(30) == 0
        self.produced += records

    @contextlib.contextmanager
    def running(self, *, crash_at: str = "", **options: object) -> Iterator[Run]:
        """Start a process; it is gone when the block ends.

        Args:
            crash_at: a crash point, as ``point`` or ``point@checkpoint``; happens once per test.
            options: of `pipeline_main`.
        """
        arguments = {
            "bootstrap": self.bootstrap,
            "input": self.source,
            "copies": self.copies,
            "counts": self.counts,
            "app": self.application_id,
            "checkpoint": self.checkpoint,
            **options,
        }
        command = [sys.executable, "-m", "tests.integration.pipeline_main"]
        for name, value in arguments.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        environment = self.environment()
        if crash_at:
            environment["SPARKONCE_CRASH_AT"] = crash_at
            environment["SPARKONCE_CRASH_ONCE"] = str(self.folder / f"crashed-{crash_at}")
        with running(command, environment=environment, folder=ROOT) as run:
            yield run

    def run_once(self, *, crash_at: str = "", **options: object) -> tuple[int, Run]:
        """Run a process to its end and return its exit code."""
        with self.running(crash_at=crash_at, **options) as run:
            code = run.wait()
        return code, run

    def audit(self, follower: Follower | None = None) -> None:
        """Assert the end state: every record once, in order, in both topics, nothing open."""
        outputs = read_committed(self.bootstrap, self.copies)
        inputs = read_committed(self.bootstrap, self.source)
        assert len(inputs) == self.produced
        checkers.assert_exactly_once(
            checkers.history_of(inputs, outputs, identify=lambda record: record.value)
        )
        for partition in range(self.partitions):
            mine = [r.value for r in outputs if r.partition == partition]
            assert mine == [r.value for r in inputs if r.partition == partition]
        self._audit_counts(read_committed(self.bootstrap, self.counts))
        if follower is not None:
            seen = follower.drain()
            assert checkers.readers_disagree(seen, outputs) == []

    def _audit_counts(self, outputs: list[Record]) -> None:
        """Counts per key only grow, and end at the true count: none lost, none counted twice."""
        by_key: defaultdict[bytes | None, list[int]] = defaultdict(list)
        for record in outputs:
            assert record.value is not None
            by_key[record.key].append(int(record.value))
        expected = {b"key-%d" % n: len(range(n, self.produced, KEYS)) for n in range(KEYS)}
        assert {key: values[-1] for key, values in by_key.items()} == expected
        for values in by_key.values():
            assert values == sorted(set(values))


def pipeline_on(
    bootstrap: str,
    topics: Callable[..., str],
    folder: Path,
    app: str,
    partitions: int = PARTITIONS,
) -> Pipeline:
    """Make the topics of a test; its checkpoint lies in the folder, nothing is produced yet."""
    return Pipeline(
        bootstrap=bootstrap,
        application_id=app,
        checkpoint=str(folder / "checkpoint"),
        source=topics(partitions, "source"),
        copies=topics(partitions, "copies"),
        counts=topics(partitions, "counts"),
        folder=folder,
        partitions=partitions,
    )
