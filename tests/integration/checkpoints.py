"""A pipeline without Spark on a real broker: its runs, their checkpoints, and how they die.

`Job` is what survives a crash: the topic, the folder of the decision log, and the engine's two
logs (`offsets/N` and `commits/N`, as Spark writes them). `Run` is one driver with its tasks, all in
this process; it may have another number of subtasks than the one before. A run that crashed is
*not closed*: its producers and connections live on as a zombie's would, until the test ends.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.kafka.sink import producer_pool
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.kafka_writer import KafkaTransaction
from tests.auditor.reader import read_committed
from tests.both_halves import KafkaBothHalves
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator, CheckpointReport
from transactions.decision_log import DecisionLog
from transactions.list_state import offsets_of, offsets_state
from transactions.log_backend import LocalFileBackend
from transactions.recovery import recover
from transactions.replay import Checkpoint
from transactions.sink import Attempt

TRANSACTION_TIMEOUT_MS = 60_000
CHECKPOINT_TIMEOUT_S = 30.0


class Crash(BaseException):
    """SIGKILL: nothing below may catch it."""


@contextmanager
def dying_at(point: str, nth: int = 1) -> Iterator[None]:
    """Let this process "die" when it comes to a point of the protocol for the nth time."""
    seen = itertools.count(1)

    def hook(name: str, _checkpoint: int) -> None:
        if name == point and next(seen) == nth:
            raise Crash(point)

    with hooked(hook), pytest.raises(Crash, match=point):
        yield


@contextmanager
def hooked(hook: crash_points.Hook) -> Iterator[None]:
    """Call `hook` at every point of the protocol."""
    crash_points.install(hook)
    try:
        yield
    finally:
        crash_points.install(None)


@dataclasses.dataclass
class Job:
    """What survives a crash. Source offsets go under the output's own name: it exists."""

    bootstrap: str
    topic: str
    application_id: str
    folder: Path
    partitions: int = 2
    timeout_ms: int = TRANSACTION_TIMEOUT_MS
    checkpoint_timeout_s: float = CHECKPOINT_TIMEOUT_S
    kafka: Mapping[str, str] = dataclasses.field(default_factory=dict)
    offsets: dict[int, tuple[bytes, ...]] = dataclasses.field(default_factory=dict)
    commits: set[int] = dataclasses.field(default_factory=set)
    runs: list[Run] = dataclasses.field(default_factory=list)
    identity: dict[str, str] = dataclasses.field(default_factory=dict)

    def start(self, subtasks: int = 1) -> Run:
        """Start a driver; whatever runs now has crashed, or is a zombie from here on."""
        run = Run(self, subtasks)
        self.runs.append(run)
        run.recover()
        return run

    def close(self) -> None:
        """End every run, zombies too."""
        for run in self.runs:
            run.close()
        self.runs.clear()
        producer_pool._pools.discard(lambda key, _: key[0].application_id == self.id)

    @property
    def id(self) -> str:
        return self.application_id

    def visible(self) -> list[bytes | None]:
        """Return what an independent read_committed reader finds; open transactions fail it."""
        return sorted(one.value or b"" for one in read_committed(self.bootstrap, self.topic))

    def promised(self) -> list[bytes]:
        """Return what the engine's log says was made visible."""
        return sorted(value for number in self.commits for value in self.offsets[number])


class Run:
    """One driver with so many subtasks, whose tasks share this process's pool of producers."""

    def __init__(self, job: Job, subtasks: int) -> None:
        self.job = job
        self.subtasks = subtasks
        self.transactions: list[KafkaTransaction] = []
        self._attempts = itertools.count()
        self.sink = self.make_sink()
        self.log = DecisionLog.open(
            LocalFileBackend(job.folder / "decisions"),
            application_id=job.application_id,
            identity=job.identity,
        )
        self.coordinator: CheckpointCoordinator | None = None
        self.recommitted = 0

    def make_sink(self) -> KafkaBothHalves:
        """Return a sink as a task's closure brings it to a worker."""
        options = KafkaSink(
            bootstrap_servers=self.job.bootstrap,
            topic=self.job.topic,
            name="out",
            kafka=self.job.kafka,
        )
        return KafkaBothHalves(
            options,
            timeout_ms=self.job.timeout_ms,
            checkpoint_timeout_s=self.job.checkpoint_timeout_s,
        )

    def recover(self) -> None:
        """Take over, as the streaming driver does."""
        seconds, sinks = self.job.checkpoint_timeout_s, {"out": self.sink}
        finished = max(self.job.commits, default=-1)
        settled = recover(self.log, sinks, Deadline(seconds), finished=finished)
        self.recommitted = settled.recommitted
        self.coordinator = CheckpointCoordinator(
            self.log,
            sinks,
            timeout_s=seconds,
            stopping=lambda: False,
            lost=settled.lost,
            idle_sweep_s=3600.0,
        )

    def checkpoint(self, *values: bytes) -> CheckpointReport:
        """Make the next checkpoint, or the one that a crash left: it has the records it had."""
        assert self.coordinator is not None
        number = max(self.job.commits, default=-1) + 1
        self.job.offsets.setdefault(number, values)
        checkpoint = Checkpoint(
            checkpoint_id=number,
            query_id="q",
            start_offsets=(str(number),),
            end_offsets=(str(number + 1),),
        )

        def rerun(lost: Sequence[Committable]) -> Sequence[Committable]:
            return self.phase_one(number, {one.subtask for one in lost})

        everything = set(range(self.subtasks))
        report = self.coordinator.run(checkpoint, lambda: self.phase_one(number, everything), rerun)
        self.job.commits.add(number)
        return report

    def dies_at(self, point: str, *values: bytes, nth: int = 1) -> None:
        """Make a checkpoint and crash in it."""
        with dying_at(point, nth):
            self.checkpoint(*values)

    def phase_one(self, number: int, wanted: set[int]) -> list[Committable]:
        """Run the tasks of a checkpoint one after the other."""
        made = [self.task(number, subtask) for subtask in range(self.subtasks) if subtask in wanted]
        return [one for one in made if one is not None]

    def task(
        self, number: int, subtask: int, halfway: Callable[[], None] | None = None
    ) -> Committable | None:
        """Do what `SinkStage` does; a crash is no exception, so nothing is aborted then."""
        transaction = self.sink.begin_transaction(self.attempt(number, subtask))
        self.transactions.append(transaction)
        try:
            for value in self.job.offsets[number][subtask :: self.subtasks]:
                self.sink.invoke(transaction, row(value))
            if halfway is not None:
                halfway()
            return self.sink.pre_commit(transaction)
        except Exception:
            self.sink.abort(transaction)
            raise

    def attempt(self, number: int, subtask: int) -> Attempt:
        """Return what a task's closure says, with this subtask's even split of the offsets."""
        assert self.coordinator is not None
        positions = {f"{self.job.topic}-{p}": number for p in range(self.job.partitions)}
        return Attempt(
            owner=self.coordinator.owner,
            checkpoint_id=number,
            subtask=subtask,
            attempt_id=f"{self.log.run_epoch}.{next(self._attempts)}",
            source_offsets=offsets_of(offsets_state(positions).even_split(self.subtasks)[subtask]),
            last_decided=self.coordinator.last_decided(),
            retired=self.coordinator.retired(),
        )

    def ids(self) -> set[str]:
        """Return the transactional ids that tasks of this run have written under."""
        slots = [one.slot for one in self.transactions if one.slot is not None]
        return {slot.producer.transactional_id for slot in slots}

    def open_ids(self) -> list[str]:
        """Ask the broker which transactions of this job's log are open, of any run up to ours."""
        return self.sink.lingering(self.log.owner, Deadline(10))

    def close(self) -> None:
        """End it in good order; what it left open stays open."""
        if self.coordinator is not None:
            self.coordinator.close()
        self.sink.close()
        self.transactions.clear()


def row(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})
