"""The tasks of a simulated stage: the product's own task, reader and network replaced.

A thread stands for a worker's process. It dies as SIGKILL would have it: its sockets close, its
last word is never sent, and no request leaves it any more, from whichever of its threads.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from connectors.continuous import control_channel
from connectors.continuous.contract_writer import ContractWriter
from connectors.continuous.control_channel import (
    Acknowledge,
    ControlChannel,
    Message,
)
from connectors.continuous.stage_task import Reader, run_task
from connectors.kafka.sink.kafka_stage_writer import KafkaStageWriter
from connectors.kafka.sink.plain_stage_writer import PlainStageWriter
from connectors.kafka.sink.plain_writer import KafkaPlainWriter
from connectors.kafka.source.partition_reader import Read
from connectors.records.message_schema import SINK_SCHEMA
from tests.both_halves import KafkaBothHalves
from tests.reads import read_of
from transactions.clock import Deadline
from transactions.errors import PhaseOneError, SparkOnceError
from transactions.sink import Owner

if TYPE_CHECKING:
    from tests.simulation.continuous_world import ContinuousWorld

#: Every step of a task at which it can end, in the order of a checkpoint; those of the product's
#: crash points are among them.
TASK_STEPS = (
    "registered",
    "begun",
    "invoked",
    "records_queued",
    "records_flushed",
    "offsets_sent",
    "acknowledging",
    "acknowledged",
    "commit_received",
    "transaction_ended",
    "committed_sent",
)

#: Steps of a move, which comes when it comes: of a task, of the driver, of a task.
MOVES = ("partitions_left", "partitions_moving", "partitions_came")

#: Where the task ends nothing: its sink has no transactions, or the driver commits them.
TASK_STEPS_WITHOUT_END = tuple(
    step
    for step in TASK_STEPS
    if step not in ("offsets_sent", "commit_received", "transaction_ended", "committed_sent")
)

here = threading.local()


class Killed(BaseException):
    """SIGKILL of a worker: nothing below may catch it."""


class Process:
    """A worker, or a driver: what can die or be frozen as a whole."""

    def __init__(self, name: str, *, is_task: bool) -> None:
        self.name = name
        self.is_task = is_task
        self.dead = False
        self.frozen = False
        self.channel: ControlChannel | None = None

    def die(self) -> None:
        self.dead = True
        if self.channel is not None:
            self.channel.close()
        raise Killed(self.name)

    def enter(self) -> None:
        """Say that this thread belongs to the process."""
        here.process = self
        if self.dead:
            raise Killed(self.name)


class HookedChannel(ControlChannel):
    """A task's end, with a point before and after what it sends."""

    def __init__(self, channel: ControlChannel, world: ContinuousWorld, process: Process) -> None:
        super().__init__(channel.connection)
        self._world = world
        self._process = process
        process.channel = self

    def send(self, message: Message) -> None:
        self._process.enter()
        if isinstance(message, Acknowledge):
            self._world.point("acknowledging")
        super().send(message)
        after = {"Register": "registered", "Committed": "committed_sent"}
        if name := after.get(type(message).__name__):
            self._world.point(name)

    def receive(self) -> Message:
        here.process = self._process
        return super().receive()


class SimulatedReader:
    """Reads rows of the world as far as they are there, a few at a time."""

    lag = 0

    def __init__(self, world: ContinuousWorld, offsets: Mapping[str, int]) -> None:
        self._world = world
        self._positions = dict(offsets)

    def add(self, offsets: Mapping[str, int]) -> None:
        self._positions.update(offsets)

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            del self._positions[name]

    def read(self, timeout_s: float) -> Read:
        moved: dict[str, int] = {}
        values: dict[str, list[str]] = {}
        for name, start in sorted(self._positions.items()):
            end = min(self._world.there(name), start + self._world.rows_per_read)
            if start < end:
                moved[name] = end
                found = self._world.inputs[name][start:end]
                values[name] = [one for one in found if one is not None]
        self._positions.update(moved)
        if not moved:
            self._world.await_rows(min(timeout_s, 0.01))
        return read_of(moved, values)

    def close(self) -> None:
        return


class Hooked:
    """A writer of the product's; what is produced leaves at once, as after `linger.ms`."""

    world: ContinuousWorld
    process: Process

    def open(self, owner: Owner, deadline: Deadline) -> tuple[str, ...]:
        self.process.enter()
        return super().open(owner, deadline)  # type: ignore[misc]

    def begin_transaction(self, attempt: Any) -> Any:
        self.process.enter()
        begun = super().begin_transaction(attempt)  # type: ignore[misc]
        self.world.point("begun")
        return begun

    def invoke(self, transaction: Any, batch: pa.RecordBatch) -> None:
        self.process.enter()
        super().invoke(transaction, batch)  # type: ignore[misc]
        self.sent(transaction)
        self.world.invoked(batch)
        self.world.point("invoked")

    def sent(self, transaction: Any) -> None:
        plain = getattr(transaction, "producer", None)
        (plain or transaction.slot.producer)._producer.flush()

    def flush(self, transaction: Any, source_offsets: Mapping[str, int]) -> None:
        self.process.enter()
        self.world.cut_is_made()
        super().flush(transaction, source_offsets)  # type: ignore[misc]

    def pre_commit(self, transaction: Any) -> Any:
        self.process.enter()
        return super().pre_commit(transaction)  # type: ignore[misc]

    def end(self, transaction: Any) -> None:
        self.process.enter()
        super().end(transaction)  # type: ignore[misc]


class SimulatedWriter(Hooked, KafkaStageWriter):
    """The product's, in transactions."""


class SimulatedPlainWriter(Hooked, PlainStageWriter):
    """The product's, without transactions."""


class SimulatedContractWriter(Hooked, ContractWriter):
    """The product's, for any sink that the driver commits."""

    def sent(self, transaction: Any) -> None:
        return

    def close(self) -> None:
        if not self.process.dead:  # who is killed tidies nothing up
            super().close()


def writer_of(world: ContinuousWorld, process: Process) -> Hooked:
    """Make what `KafkaTask.writer` would."""
    sink = world.make_sink()
    made: Hooked
    if isinstance(sink, KafkaPlainWriter):
        made = SimulatedPlainWriter(sink)
    elif not isinstance(sink, KafkaBothHalves):
        made = SimulatedContractWriter(sink, SINK_SCHEMA)
    else:
        made = SimulatedWriter(sink, carries_offsets=world.carries_offsets)
    made.world, made.process = world, process
    return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedTask:
    """See `connectors.continuous.stage_task.Task`."""

    address: tuple[str, int]
    key: bytes
    stage: str
    world: ContinuousWorld
    timeout_s: float

    @property
    def transform(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        return lambda batch: self.world.transform(batch.select(["value"]))

    def reader(self, offsets: Mapping[str, int]) -> Reader:
        return self.world.make_reader(offsets)

    def stage_writer(self) -> Any:
        return writer_of(self.world, here.process)


class SimulatedJob:
    """Spark's job: it ends when a task fails, and the other tasks may go on for a while."""

    def __init__(
        self,
        world: ContinuousWorld,
        task: SimulatedTask,
        parallelism: int,
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self._world = world
        self._task = task
        self._on_end = on_end
        self._lock = threading.Lock()
        self._left = parallelism
        self._told = False
        self.processes = [
            Process(f"task {task.stage[:4]}.{n}", is_task=True) for n in range(parallelism)
        ]
        self.threads = [
            threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(parallelism)
        ]

    def start(self) -> None:
        for one in self.threads:
            one.start()

    def stop(self, timeout_s: float) -> None:
        for process, thread in zip(self.processes, self.threads, strict=True):
            while thread.is_alive() and not process.frozen:
                thread.join(0.01)

    def _run(self, subtask: int) -> None:
        here.process = self.processes[subtask]
        error: BaseException | None = None
        try:
            run_task(self._task, subtask, next(self._world.attempts))
        except SparkOnceError as failure:
            error = failure
        except Exception as failure:
            error = PhaseOneError("The continuous stage failed.", cause=repr(failure))
        except Killed as killed:
            error = PhaseOneError("Spark has lost a task.", where=str(killed))
        with self._lock:
            self._left -= 1
            tell = not self._told and (error is not None or not self._left)
            self._told = self._told or tell
        if tell:
            self._on_end(error)


def connect(
    world: ContinuousWorld, address: tuple[str, int], key: bytes, *, patience_s: float
) -> ControlChannel:
    """What a task of the world connects with."""
    return HookedChannel(
        control_channel.connect(address, key, patience_s=patience_s), world, here.process
    )
