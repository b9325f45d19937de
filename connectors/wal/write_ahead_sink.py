"""WriteAheadSink: records wait in a durable buffer until their checkpoint is decided.

It is Flink's `GenericWriteAheadSink`, as a user of the two-phase contract. Phase 1, in a task:
records go to a buffer, which is sealed and synced. Phase 2, on the driver, for each buffer in
order, unless its mark exists: `send_values`, then the mark (`CheckpointCommitter`), then removal.

It promises at-least-once, with two windows for duplicates, both of them crashes:

* inside `send_values`: the part of this buffer that the target took is sent again;
* between `send_values` and the mark: all of this buffer is sent again.

If a fenced older driver still sends, that is such a crash for the driver that took over. If target
and marks share a transaction (`CheckpointCommitter.transaction`), neither window remains:
exactly-once. See `connectors.wal.sqlite_sink`, and docs/write_ahead_sink.md.

Three faults of Flink's class are not here. There, a refused send stops the order only by an
exception, so a later checkpoint can overtake; exceptions are logged and dropped; and marks have a
random name, so a job that is submitted again does not find them.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

from connectors.options.option import NAME
from connectors.records.row_fingerprint import RowFingerprint, check_comparable
from connectors.wal.buffer_folder import START_LENGTH, BufferFolder, run_of, transactional_id_of
from connectors.wal.checkpoint_committer import CheckpointCommitter
from connectors.wal.folder import absolute_folder
from connectors.wal.record_buffer import BufferCorruptedError, RecordBuffer
from transactions import crash_points
from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import ConfigurationError, DeliveryError, PhaseOneError, SparkOnceError
from transactions.sink import Attempt, OpenSink, Owner, SinkContext

logger = logging.getLogger(__name__)

_BACK_OFF_S: Final = 1.0


@dataclasses.dataclass(slots=True)
class WriteAheadTransaction:
    """A buffer on the worker that writes it; live, never pickled."""

    attempt: Attempt
    transactional_id: str
    token: str
    fingerprint: RowFingerprint = dataclasses.field(default_factory=RowFingerprint)
    buffer: RecordBuffer | None = None


class _NotTakenError(Exception):
    """`send_values` returned False; an exception, so that a surrounding transaction rolls back."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteAheadSink(abc.ABC):
    """The base of a user's sink: subclass it, implement `send_values`, and write a frame to it.

    It is description and sink in one: frozen, and only its fields are pickled. So what a method
    keeps in it (a `functools.cached_property` with a connection) stays in its process. A subclass
    with fields of its own is also a ``dataclass(frozen=True, kw_only=True)``.

    Attributes:
        name: unique in the driver and the same at every restart; also the committer's operator.
        buffer: folder that every worker and the driver see: a local one in local mode, one on a
            shared file system on a cluster. It outlives driver and workers.
        committer: stores the marks.

    Raises:
        ConfigurationError: an option is wrong.
    """

    name: str
    buffer: str | Path
    committer: CheckpointCommitter
    _start: ClassVar[str] = "0" * START_LENGTH

    def __post_init__(self) -> None:
        """Check the options, and make the folder absolute: workers run in another folder."""
        if not NAME.fullmatch(self.name):
            raise ConfigurationError(
                "A sink's name has letters, digits, _ and -.",
                where=type(self).__name__,
                cause="it names a folder of buffers and the operator of the marks",
                option=f"name={self.name}",
            )
        object.__setattr__(self, "buffer", absolute_folder(self.buffer, option="buffer"))

    def __getstate__(self) -> dict[str, Any]:
        """Return the options, and the id of the start; live objects stay in this process."""
        state = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return state if "_start" not in self.__dict__ else {**state, "_start": self._start}

    # --- what a user writes -----------------------------------------------------------------

    @abc.abstractmethod
    def send_values(
        self,
        records: Iterator[pa.RecordBatch],
        *,
        checkpoint_id: int,
        subtask: int,
        timestamp_ms: int,
    ) -> bool:
        """Send the records of one subtask and checkpoint to the target. On the driver, after the
        decision; one call at a time, so subtasks of a checkpoint one after the other.

        It may be called again with the same records (see the two windows of this module), and then
        with the same `checkpoint_id`, `subtask` and `committer.job_id`. A target can use these to
        drop what it has. (Without the job id the numbers repeat after a restored savepoint.)

        Args:
            records: in the order of their writing; read from the buffer as they are taken, one
                batch in memory at a time. Its bytes are verified already.
            checkpoint_id: N.
            subtask: the subtask that wrote them.
            timestamp_ms: wall clock when the buffer was sealed, milliseconds since 1970 UTC.

        Returns:
            True: the target has all of them, durably. False: not now; it is called again until the
            checkpoint's timeout, and then after a restart.

        Raises:
            Exception: has the effect of False, and is logged. But a permanent `SparkOnceError` ends
                the driver.
        """

    def check_columns(self, schema: pa.Schema) -> None:
        """Check the columns of the frame, at start, before any data moves. On the driver.

        Raises:
            ConfigurationError: the target cannot take them; by default: rows cannot be compared.
        """
        check_comparable(schema, f"sink {self.name!r}")

    # --- what a driver needs from any sink's options ------------------------------------------

    def identity(self) -> dict[str, str]:
        """Return what must be the same at every restart on one checkpoint.

        Without its marks, records would be sent again. The buffer may move, with its files.
        """
        return {"kind": "write-ahead", "committer": self.committer.describe()}

    def open(self, context: SinkContext) -> OpenSink:  # noqa: ARG002 - a subclass checks its target
        """See `Sink.open`: it opens the storage of the marks.

        Raises:
            ConfigurationError: the storage of the marks cannot be created or opened.
        """
        object.__setattr__(self, "_start", secrets.token_hex(START_LENGTH // 2))
        try:
            self._open_committer()
        except SparkOnceError:
            raise
        except Exception as error:
            raise ConfigurationError(
                "The marks of a write-ahead sink cannot be opened.",
                where=f"sink {self.name!r}, {self.committer.describe()}: {error}",
                cause="the folder or database is missing, read-only or not reachable",
                option=f"committer={self.committer.describe()}",
            ) from error
        return OpenSink(self, self)

    # --- phase 1, in the task -----------------------------------------------------------------

    def new_fingerprint(self) -> RowFingerprint:
        """Return an empty fingerprint, for rows to compare with the decided ones."""
        return RowFingerprint()

    def begin_transaction(self, attempt: Attempt) -> WriteAheadTransaction:
        """See `Writer.begin_transaction`; the first record creates the file, so an idle
        branch costs nothing.
        """
        unique = self._start + secrets.token_hex(8)
        return WriteAheadTransaction(
            attempt,
            transactional_id=transactional_id_of(attempt, unique),
            token=f"{attempt.checkpoint_id}.{attempt.subtask}.{unique}",
        )

    def invoke(self, transaction: WriteAheadTransaction, batch: pa.RecordBatch) -> None:
        """See `Writer.invoke`.

        Args:
            transaction: from `begin_transaction`.
            batch: of any schema, the same in all batches of a transaction.

        Raises:
            DeliveryError: the buffer could not be written.
        """
        if batch.num_rows == 0:
            return
        try:
            if transaction.buffer is None:
                path = self._buffers.path(transaction.transactional_id)
                transaction.buffer = RecordBuffer(path, batch.schema)
            transaction.fingerprint.add(batch)
            transaction.buffer.append(batch)
        except (OSError, pa.ArrowException, TypeError) as error:
            raise self._not_written(transaction, error) from error

    def pre_commit(self, transaction: WriteAheadTransaction) -> Committable | None:
        """See `Writer.pre_commit`: the seal and two fsyncs; it sends nothing.

        Returns:
            None if nothing was written. Offsets alone need no committable: they are in the
            decision, and the target does not have them.

        Raises:
            DeliveryError: the buffer could not be made durable.
            PhaseOneError: a sweep has removed it meanwhile.
        """
        if transaction.buffer is None:
            return None
        attempt = transaction.attempt
        number, count = attempt.checkpoint_id, transaction.fingerprint.count
        crash_points.reach("records_queued", number)
        try:
            transaction.buffer.end_stream()
            crash_points.reach("records_flushed", number)
            transaction.buffer.seal(
                token=transaction.token,
                checkpoint_id=number,
                subtask=attempt.subtask,
                records=count,
                now_ms=SYSTEM_CLOCK.now_ms(),
            )
        except OSError as error:
            raise self._not_written(transaction, error) from error
        crash_points.reach("offsets_sent", number)
        return Committable(
            sink=self.name,
            transactional_id=transaction.transactional_id,
            producer_id=-1,
            producer_epoch=-1,
            timeout_ms=0,  # a buffer does not time out
            checkpoint_id=number,
            subtask=attempt.subtask,
            attempt=attempt.attempt_id,
            token=transaction.token,
            record_count=count,
            fingerprint=transaction.fingerprint.hex(),
            source_offsets=dict(attempt.source_offsets),
        )

    def abort(self, transaction: WriteAheadTransaction) -> None:
        """See `Writer.abort`: the buffer is removed."""
        if transaction.buffer is not None:
            try:
                transaction.buffer.remove()
            except OSError as error:
                logger.warning("abort of %s: %s; the sweep ends it", transaction.token, error)

    # --- phase 2, on the driver ---------------------------------------------------------------

    def close(self) -> None:
        """Close the storage of the marks. A subclass that holds more closes it and calls this."""
        self.committer.close()

    def check_prepared(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> list[Committable]:
        """See `Committer.check_prepared`: the driver reads every buffer, byte for byte.

        This also proves that the driver sees the folder of the workers.
        """
        for one in committables:
            try:
                if deadline.expired():
                    raise TimeoutError(f"the checkpoint's {deadline.seconds:g} s are over")
                self._buffers.verified(one)
            except (OSError, BufferCorruptedError) as error:
                reason = error.what if isinstance(error, SparkOnceError) else error
                raise PhaseOneError(
                    f"A buffer is not as it was prepared: {reason}",
                    where=f"{self._buffers.path(one.transactional_id)}, "
                    f"checkpoint {one.checkpoint_id}, subtask {one.subtask}",
                    cause="the driver does not see the folder of its workers, or it was swept",
                    option=f"buffer={self.buffer}",
                ) from error
        return list(committables)

    def commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer.commit`: send, mark, remove, in order of checkpoint and subtask.

        A buffer that the target did not take stops the order: it and all later ones are UNKNOWN,
        and `recover_and_commit` tries them again. No later checkpoint overtakes a lost one
        (ABORTED: neither buffer nor mark). The other subtasks of the lost checkpoint go on, because
        a checkpoint is healed when all of it is settled.

        Raises:
            BufferCorruptedError: a prepared buffer has other bytes; neither it nor a later one is
                sent.
        """
        outcomes = dict.fromkeys((one.token for one in committables), Outcome.UNKNOWN)
        lost_at: int | None = None
        for one in sorted(committables, key=lambda one: (one.checkpoint_id, one.subtask)):
            if deadline.expired() or (lost_at is not None and one.checkpoint_id > lost_at):
                break
            outcome = outcomes[one.token] = self._send(one)
            if outcome is Outcome.UNKNOWN:
                break
            if outcome is Outcome.ABORTED:
                lost_at = one.checkpoint_id
        return outcomes

    def recover_and_commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer.recover_and_commit`: like `commit`, which looks for the marks
        first. If the target does not take a buffer, it pauses for a moment before the next try.
        """
        outcomes = self.commit(committables, deadline)
        if Outcome.UNKNOWN in outcomes.values():
            deadline.pause(_BACK_OFF_S)
        return outcomes

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `Committer.lingering`: buffers of the log, of its run or an older one."""
        return self._buffers.ids_of(owner)

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:  # noqa: ARG002
        """See `Committer.recover_and_abort`. A writer that still lives misses its file
        when it seals it, and after that `check_prepared` misses it.
        """
        self._buffers.remove(transaction_ids)

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `Committer.hidden`: every sent record is visible."""
        return []

    def retired(self) -> frozenset[str]:
        """See `Committer.retired`: no id is used twice."""
        return frozenset()

    # --- steps --------------------------------------------------------------------------------

    def _send(self, one: Committable) -> Outcome:
        """Bring one buffer to its end; return UNKNOWN if that is not proven, and log the reason."""
        try:
            committer = self._open_committer()
            committer.set_job_id(run_of(one.transactional_id))
            with committer.transaction():
                outcome = self._send_unless_marked(one, committer)
        except Exception as error:  # the user's code, the target's, the storage's
            if isinstance(error, SparkOnceError) and error.permanent:
                raise
            self._tell_not_sent(one, error)
            return Outcome.UNKNOWN
        if outcome.is_committed:
            self._discard(one)
        return outcome

    def _send_unless_marked(self, one: Committable, committer: CheckpointCommitter) -> Outcome:
        if committer.is_checkpoint_committed(one.subtask, one.checkpoint_id):
            return Outcome.ALREADY_COMMITTED
        try:
            prepared = self._buffers.verified(one)
        except FileNotFoundError:
            self._buffers.check_mounted()  # an unmounted folder proves no loss
            # A fenced driver that still lives may have sent, marked and removed it just now.
            marked = committer.is_checkpoint_committed(one.subtask, one.checkpoint_id)
            return Outcome.ALREADY_COMMITTED if marked else Outcome.ABORTED
        taken = self.send_values(
            prepared.batches(),
            checkpoint_id=one.checkpoint_id,
            subtask=one.subtask,
            timestamp_ms=prepared.seal.sealed_at_ms,
        )
        if not taken:
            raise _NotTakenError("send_values returned False")
        committer.commit_checkpoint(one.subtask, one.checkpoint_id)
        return Outcome.COMMITTED

    def _discard(self, one: Committable) -> None:
        """Remove a sent and marked buffer; if that fails, the sweep removes it."""
        try:
            self._buffers.remove([one.transactional_id])
        except OSError as error:
            logger.warning("the buffer of %s is left to the sweep: %s", one.token, error)

    def _open_committer(self) -> CheckpointCommitter:
        if "_opened" not in self.__dict__:
            self.committer.bind(self.name)
            object.__setattr__(self, "_opened", True)
        self.committer.open()
        return self.committer

    @property
    def _buffers(self) -> BufferFolder:
        return BufferFolder(Path(self.buffer) / self.name)

    def _not_written(self, transaction: WriteAheadTransaction, error: Exception) -> DeliveryError:
        attempt = transaction.attempt
        return DeliveryError(
            f"The buffer of a write-ahead sink could not be written: {error}",
            where=f"{self._buffers.path(transaction.transactional_id)}, checkpoint "
            f"{attempt.checkpoint_id}, subtask {attempt.subtask}",
            cause="the disk is full, read-only or gone, or the rows changed their columns",
            option=f"buffer={self.buffer}",
        )

    def _tell_not_sent(self, one: Committable, error: Exception) -> None:
        problem = SparkOnceError(
            "The records of a decided checkpoint were not sent yet; they are kept and sent again.",
            where=f"sink {self.name!r}, checkpoint {one.checkpoint_id}, subtask {one.subtask}, "
            f"{self._buffers.path(one.transactional_id)}",
            cause=f"{type(error).__name__}: {error}",
            option=f"buffer={self.buffer}, committer={self.committer.describe()}",
        )
        logger.warning("%s", problem, exc_info=error)
