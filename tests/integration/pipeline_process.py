"""Runs `pipeline_main` as a process, kills it where a test says, and audits its topics."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from confluent_kafka import Producer

from tests.auditor import checkers
from tests.auditor.reader import Follower, Record, read_committed

PARTITIONS = 2
KEYS = 5


@dataclass
class Run:
    """One process of the pipeline, with what it printed."""

    process: subprocess.Popen[str]
    lines: list[dict[str, object]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait(timeout)

    def until(self, condition: Callable[[Run], bool], timeout: float = 90.0) -> None:
        """Wait until its output shows something."""
        with self._news:
            held = self._news.wait_for(
                lambda: condition(self) or self.process.poll() is not None, timeout
            )
        assert held, self.text()
        assert condition(self), self.text()

    def checkpoints(self) -> list[int]:
        """Return the checkpoints that it reported."""
        return [int(str(line["checkpoint"])) for line in self.lines if "checkpoint" in line]

    def replays(self) -> list[int]:
        """Return the checkpoints that an earlier run had decided and this one finished."""
        return [int(str(line["checkpoint"])) for line in self.lines if line.get("replayed")]

    def text(self) -> str:
        """Return the end of its log, for a failing test."""
        return f"exit {self.process.poll()}; {self.lines[-3:]}\n" + "".join(self.errors[-60:])

    def follow(self, stream: str) -> None:
        """Collect one of its streams; runs on a thread of its own."""
        pipe = getattr(self.process, stream)
        for line in pipe:
            with self._news:
                if stream == "stderr":
                    self.errors.append(line)
                elif line.startswith("{"):
                    self.lines.append(orjson.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


@dataclass
class Pipeline:
    """The topics, the checkpoint and the processes of one test."""

    bootstrap: str
    application_id: str
    checkpoint: str
    source: str
    copies: str
    counts: str
    folder: Path
    produced: int = 0

    def produce(self, records: int) -> None:
        """Append records with unique values, spread over partitions and keys."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        for number in range(self.produced, self.produced + records):
            key = b"key-%d" % (number % KEYS)
            producer.produce(self.source, b"%08d" % number, key, partition=number % PARTITIONS)
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
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if crash_at:
            environment["SPARKONCE_CRASH_AT"] = crash_at
            environment["SPARKONCE_CRASH_ONCE"] = str(self.folder / f"crashed-{crash_at}")
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        run = Run(process)
        followers = [
            threading.Thread(target=run.follow, args=(name,), daemon=True)
            for name in ("stdout", "stderr")
        ]
        for follower in followers:
            follower.start()
        try:
            yield run
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
            for follower in followers:
                follower.join(30)

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
        for partition in range(PARTITIONS):
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
