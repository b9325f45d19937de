"""One task of a stage: it reads, transforms and writes until its driver ends it.

Two threads. The *reading* thread consumes, transforms and writes into the transaction that is
open. The *control* thread waits for the driver; at a barrier it takes over the open transaction and
the positions, and flushes the transaction, in one step. The reading thread then goes on in the next
transaction, on the other producer, while this one gets its offsets, is decided and committed.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
import traceback
from collections.abc import Collection, Mapping
from multiprocessing import AuthenticationError
from typing import Any, Protocol

import pyarrow as pa

from connectors.continuous.control_channel import (
    Acknowledge,
    Barrier,
    ChannelClosedError,
    Commit,
    Committed,
    ControlChannel,
    Failed,
    Moved,
    Ready,
    Register,
    Start,
    connect,
)
from connectors.continuous.read_pause import ReadPause
from connectors.records.arrow_transform import ArrowFunction, load_function, normalised
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import PhaseOneError
from transactions.sink import Attempt, Owner

#: How long the reading thread waits for data before it checks whether to stop.
_WAIT_S = 0.1
#: What comes within this time is read together; a barrier cuts it short.
_PAUSE_S = 0.005
#: The same, if a record that was read waits for its barrier anyway.
_PAUSE_FOR_BARRIER_S = 0.05
#: Two busy threads share the interpreter: Python's default would add 5 ms to each step.
_SWITCH_S = 0.0005


class Read(Protocol):
    """What one read brought."""

    @property
    def positions(self) -> Mapping[str, int]:
        """The next offset to read of each partition that moved."""

    @property
    def batch(self) -> pa.RecordBatch | None:
        """The records; None when only positions moved."""

    def without(self, names: Collection[str]) -> Read:
        """Return the rest without these partitions."""


class Reader(Protocol):
    """What a task reads from; see `connectors.kafka.source.partition_reader`."""

    lag: int

    def add(self, offsets: Mapping[str, int]) -> None:
        """Read these partitions as well."""

    def remove(self, names: Collection[str]) -> None:
        """Read these partitions no more."""

    def read(self, timeout_s: float) -> Read:
        """Return what has come."""

    def close(self) -> None:
        """Leave the brokers."""


class StageWriter(Protocol):
    """What a task writes with: a sink's writer, and what only a stage needs."""

    @property
    def ends_transactions(self) -> bool:
        """Return whether the task ends what it prepared, when the driver sends the decision. If
        not, the driver ends it, and the task gets no message about it.
        """

    @property
    def shows_at_barriers(self) -> bool:
        """Return whether readers see a record only behind its barrier, and not at once."""

    def open(self, owner: Owner, deadline: Deadline) -> tuple[str, ...]:
        """Make what transactions are written with, and return the transactional ids."""

    def begin_transaction(self, attempt: Attempt) -> Any:
        """See `transactions.sink.Writer`. The attempt's source offsets are of the partitions that
        moved in the read that brought the first record, so they exist; there are none where no
        record came. The offsets that the transaction carries come with `flush`.
        """

    def invoke(self, transaction: Any, batch: pa.RecordBatch) -> None:
        """See `transactions.sink.Writer`."""

    def flush(self, transaction: Any, source_offsets: Mapping[str, int]) -> None:
        """Wait until the target has every record; nothing else is written meanwhile.

        Args:
            transaction: from `begin_transaction`.
            source_offsets: next offset to read of the partitions that moved; they are known only
                now.
        """

    def pre_commit(self, transaction: Any) -> Committable | None:
        """See `transactions.sink.Writer`; after `flush`, while the next transaction fills."""

    def end(self, transaction: Any) -> None:
        """Commit a decided transaction, with a clear answer; only if the task ends them."""

    def serve(self) -> None:
        """Run waiting callbacks. An idle source makes no barriers, and statistics that nobody takes
        from the clients would fill the memory. No `invoke` or `flush` runs meanwhile.
        """

    def close(self) -> None:
        """Forget everything; an open transaction is aborted, or swept later."""


class Task(Protocol):
    """What a stage's closure carries to each task."""

    @property
    def address(self) -> tuple[str, int]:
        """Where the driver listens."""

    @property
    def key(self) -> bytes:
        """The stage's secret."""

    @property
    def stage(self) -> str:
        """Its random name."""

    @property
    def transform(self) -> str | ArrowFunction:
        """The user's function."""

    @property
    def timeout_s(self) -> float:
        """How long making producers may take."""

    def reader(self, offsets: Mapping[str, int]) -> Reader:
        """Make what the task reads from."""

    def stage_writer(self) -> StageWriter:
        """Make what the task writes with."""


def run_task(task: Task, subtask: int, attempt: int) -> None:
    """Run one task of a stage. In a worker; returns when the driver has ended the stage.

    Raises:
        SparkOnceError: why the task ended; it was sent to the driver too, if there is one.
    """
    sys.setswitchinterval(_SWITCH_S)
    try:
        channel = connect(task.address, task.key, patience_s=task.timeout_s)
    except AuthenticationError as error:
        raise PhaseOneError(
            "A task connected to a driver that does not know it.",
            where=f"subtask {subtask}",
            cause="the task belongs to an older stage; it stops",
        ) from error
    except (OSError, EOFError) as error:
        raise PhaseOneError(
            "The driver of the stage cannot be reached, or does not answer.",
            where=f"subtask {subtask}, driver at {task.address[0]}:{task.address[1]}",
            cause=f"the driver has ended the stage, or the network failed ({error!r})",
        ) from error
    try:
        register = Register(
            stage=task.stage, subtask=subtask, attempt=attempt, host=socket.gethostname()
        )
        channel.send(register)
        start = channel.receive()
        assert isinstance(start, Start)
        channel.patience(0)  # from now on the driver may be silent for ever
        _Loop(task, channel, start, subtask, attempt).run()
    except ChannelClosedError as error:
        raise PhaseOneError(
            "The driver is gone, or has ended the stage.",
            where=f"subtask {subtask}",
            cause=f"{type(error).__name__}: {error}",
        ) from error
    except BaseException:
        with contextlib.suppress(OSError):
            channel.send(Failed(error=traceback.format_exc()))
        raise
    finally:
        channel.close()


class _Loop:
    """The two threads and what they share."""

    def __init__(
        self, task: Task, channel: ControlChannel, start: Start, subtask: int, attempt: int
    ) -> None:
        self._task = task
        self._channel = channel
        self._start = start
        self._owner = Owner(
            application_id=start.application_id,
            log_id=start.log_id,
            run_epoch=start.run_epoch,
        )
        self._subtask = subtask
        self._attempt_id = f"{start.run_epoch}.{attempt}"
        self._transform = load_function(task.transform)
        self._lock = threading.Lock()
        self._positions = dict(start.offsets)
        self._before = dict(start.offsets)
        self._checkpoint_id = start.checkpoint_id
        self._transaction: Any = None  # begun with its first record
        self._told_moved = False
        self._torn = False
        #: Barriers that changed what is read; the reading thread has not done it yet.
        self._changes: list[Barrier] = []
        #: Partitions whose next reader begins at the last barrier: what this task has read behind
        #: it and not yet written must never be written.
        self._leaving: set[str] = set()
        self._busy_s = 0.0
        self._waited_in_function_s = 0.0
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        reader = self._task.reader(self._start.offsets)
        self._writer = self._task.stage_writer()
        longest_s = _PAUSE_FOR_BARRIER_S if self._writer.shows_at_barriers else _PAUSE_S
        self._pause = ReadPause(_PAUSE_S, longest_s)
        try:
            ids = self._writer.open(self._owner, Deadline(self._task.timeout_s))
            self._channel.send(Ready(transactional_ids=ids))
            control = threading.Thread(target=self._control, name="sparkonce-control", daemon=True)
            self._reader = reader
            control.start()
            self._read()
            control.join()
            if self._failure is not None:
                raise self._failure
        finally:
            self._writer.close()
            reader.close()

    # --- the reading thread -------------------------------------------------------------------

    def _read(self) -> None:
        try:
            hurried = False
            while not self._ended.is_set():
                while self._changes:
                    self._change(self._changes.pop(0))
                came = self._read_once(0.0 if hurried else _WAIT_S)
                self._pause.over()
                hurried = came > 0 and not self._reader.lag and self._pause.take(came)
        finally:
            self._pause.over()

    def _change(self, barrier: Barrier) -> None:
        self._reader.remove(barrier.removed)
        with self._lock:
            self._leaving.difference_update(barrier.removed)
        self._reader.add(barrier.added)

    def _read_once(self, wait_s: float) -> int:
        """Write what has come, and return how much: records, and moves without a record."""
        read = self._reader.read(wait_s)
        came = len(read.positions) if read.batch is None else read.batch.num_rows
        while read.positions and not self._write(read, self._transformed(read.batch)):
            read = read.without(self._leaving)
        with self._lock:
            self._writer.serve()
        self._busy_s = time.thread_time() + self._waited_in_function_s
        return came

    def _transformed(self, batch: pa.RecordBatch | None) -> pa.RecordBatch | None:
        if batch is None:
            return None
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        made = normalised(self._transform(batch))
        self._waited_in_function_s += time.perf_counter() - began_s - time.thread_time() + cpu_s
        return made

    def _write(self, read: Read, batch: pa.RecordBatch | None) -> bool:
        """Write what was made of a read; nothing after the last barrier. Return False, and write
        nothing, if one of its partitions is leaving: it was read after that partition's last
        barrier, and who comes next reads it again.
        """
        with self._lock:
            if self._ended.is_set():
                return True
            if not self._leaving.isdisjoint(read.positions):
                return False
            # If this fails half-way, the transaction holds records that no position counts.
            self._torn = True
            if batch is not None and batch.num_rows:
                self._writer.invoke(self._begun(read.positions), batch)
            self._positions.update(read.positions)
            self._torn = False
            tell, self._told_moved = not self._told_moved, True
        if tell:
            self._channel.send(Moved())
        return True

    # --- the control thread -------------------------------------------------------------------

    def _control(self) -> None:
        try:
            while not self._ended.is_set():
                message = self._channel.receive()
                assert isinstance(message, Barrier), f"{message} where a Barrier is due"
                self._prepare(message)
            self._await_close()
        except BaseException as error:  # noqa: BLE001 - raised on the reading thread
            self._failure = error
        finally:
            self._ended.set()

    def _prepare(self, barrier: Barrier) -> None:
        """Prepare a transaction at its barrier and end it, while the other one fills."""
        number = barrier.checkpoint_id
        self._pause.cut_short()
        with self._lock:
            if self._torn:
                raise PhaseOneError(
                    "A barrier came while the task was failing.",
                    where=f"checkpoint {number}, subtask {self._subtask}",
                    cause="its last records are partly written; the reading thread reports why",
                )
            positions = dict(self._positions)
            transaction = self._transaction
            if transaction is None:
                transaction = self._begin(number, {})
            self._transaction, self._checkpoint_id = None, number + 1
            self._told_moved = False
            if barrier.last:
                self._ended.set()
            if barrier.added or barrier.removed:
                kept = {name: positions[name] for name in positions.keys() - {*barrier.removed}}
                self._positions = {**kept, **barrier.added}
                self._leaving.update(barrier.removed)
                self._changes.append(barrier)
            moved = {name: at for name, at in positions.items() if at != self._before.get(name)}
            self._before = positions
            # Nothing is written into the next transaction until all of this one is at the broker:
            # the other producer writes it, and its records could overtake what waits here (seen).
            self._writer.flush(transaction, moved)
        committable = self._writer.pre_commit(transaction)
        self._channel.send(
            Acknowledge(
                checkpoint_id=number,
                committable=None if committable is None else committable.to_dict(),
                positions=positions,
                lag=self._reader.lag,
                busy_s=self._busy_s,
            )
        )
        crash_points.reach("acknowledged", number)
        if barrier.removed:
            crash_points.reach("partitions_left", number)
        if barrier.added:
            crash_points.reach("partitions_came", number)
        if committable is None or not committable.needs_commit:
            return
        if not self._writer.ends_transactions:
            return  # the driver ends it: the next message is another barrier
        decided = self._channel.receive()
        assert isinstance(decided, Commit), f"{decided} where a Commit is due"
        assert decided.checkpoint_id == number
        crash_points.reach("commit_received", number)
        self._writer.end(transaction)
        crash_points.reach("transaction_ended", number)
        self._channel.send(Committed(checkpoint_id=number))

    def _await_close(self) -> None:
        """Stay after the last checkpoint: a driver that still waits for other tasks takes a closed
        channel for a dead task.
        """
        with contextlib.suppress(ChannelClosedError):
            self._channel.receive()

    def _begun(self, partitions: Collection[str]) -> Any:
        """Return the transaction that fills; these partitions begin it if nothing has yet."""
        if self._transaction is None:
            begins = {name: self._positions[name] for name in partitions}
            self._transaction = self._begin(self._checkpoint_id, begins)
        return self._transaction

    def _begin(self, checkpoint_id: int, positions: Mapping[str, int]) -> Any:
        attempt = Attempt(
            owner=self._owner,
            checkpoint_id=checkpoint_id,
            subtask=self._subtask,
            attempt_id=self._attempt_id,
            source_offsets=positions,
        )
        return self._writer.begin_transaction(attempt)
