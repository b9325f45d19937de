"""The half of a write-ahead sink that works on the driver: it sends what is decided, and marks it
as sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from connectors.wal.buffer_folder import BufferFolder, run_of
from connectors.wal.checkpoint_committer import CheckpointCommitter
from connectors.wal.record_buffer import BufferCorruptedError, PreparedBuffer
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import PhaseOneError, RecordRefusedError, SparkOnceError
from transactions.sink import Owner

logger = logging.getLogger(__name__)

_BACK_OFF_S: Final = 1.0


class _NotTakenError(Exception):
    """`send_values` returned False; an exception, so that a surrounding transaction rolls back."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriteAheadCommitter:
    """Phase 2. It calls the user's sink and the marks, one call at a time.

    Attributes:
        name: see `Committer.name`.
        buffer: folder of the buffers.
        marks: the storage of the marks, bound to the sink.
        send_values: see `WriteAheadSink.send_values`.
        release: see `WriteAheadSink.close`.
    """

    name: str
    buffer: Path
    marks: CheckpointCommitter
    send_values: Callable[..., bool]
    release: Callable[[], None]

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
                    f"A prepared buffer has changed: {reason}",
                    where=f"{self._buffers.path(one.transactional_id)}, "
                    f"checkpoint {one.checkpoint_id}, subtask {one.subtask}",
                    cause="the driver does not see the folder of its workers, or the buffer was "
                    "swept",
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
            RecordRefusedError: the target will never take a record; no later buffer is sent.
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

    def close(self) -> None:
        """See `Committer.close`: the sink releases what it holds, the marks too."""
        self.release()

    def _send(self, one: Committable) -> Outcome:
        """Bring one buffer to its end; return UNKNOWN if that is not proven, and log the reason."""
        try:
            self.marks.open()
            self.marks.set_job_id(run_of(one.transactional_id))
            with self.marks.transaction():
                outcome = self._send_unless_marked(one)
        except RecordRefusedError as error:
            raise self._refused(one, error) from error
        except Exception as error:  # the user's code, the target's, the storage's
            if isinstance(error, SparkOnceError) and error.permanent:
                raise
            self._tell_not_sent(one, error)
            return Outcome.UNKNOWN
        if outcome.is_committed:
            self._discard(one)
        return outcome

    def _send_unless_marked(self, one: Committable) -> Outcome:
        if self.marks.is_checkpoint_committed(one.subtask, one.checkpoint_id):
            return Outcome.ALREADY_COMMITTED
        prepared = self._verified(one)
        if prepared is None:
            # A fenced driver that still lives may have sent, marked and removed it just now.
            marked = self.marks.is_checkpoint_committed(one.subtask, one.checkpoint_id)
            return Outcome.ALREADY_COMMITTED if marked else Outcome.ABORTED
        taken = self.send_values(
            prepared.batches(),
            checkpoint_id=one.checkpoint_id,
            subtask=one.subtask,
            timestamp_ms=prepared.seal.sealed_at_ms,
        )
        if not taken:
            raise _NotTakenError("send_values returned False")
        self.marks.commit_checkpoint(one.subtask, one.checkpoint_id)
        return Outcome.COMMITTED

    def _verified(self, one: Committable) -> PreparedBuffer | None:
        """Return the buffer, None if it is gone. An unmounted folder proves no loss."""
        with contextlib.suppress(FileNotFoundError):
            return self._buffers.verified(one)
        self._buffers.check_mounted()
        with contextlib.suppress(FileNotFoundError):  # it may have been mounted only now
            return self._buffers.verified(one)
        return None

    def _discard(self, one: Committable) -> None:
        """Remove a sent and marked buffer; if that fails, the sweep removes it."""
        try:
            self._buffers.remove([one.transactional_id])
        except OSError as error:
            logger.warning("the sweep will remove the buffer of %s: %s", one.token, error)

    @property
    def _buffers(self) -> BufferFolder:
        return BufferFolder(self.buffer / self.name)

    def _refused(self, one: Committable, error: RecordRefusedError) -> RecordRefusedError:
        """Add what `send_values` does not know: the transaction, and how to go on without it."""
        place = f"checkpoint {one.checkpoint_id}, subtask {one.subtask}, {one.transactional_id}"
        command = (
            f"sparkonce transactions resolve {one.transactional_id} --accept-loss "
            "--checkpoint FOLDER --bootstrap HOST:PORT (or --job JOB.toml)"
        )
        return RecordRefusedError(
            error.what,
            where=f"{error.where or f'sink {self.name!r}'}, {place}",
            cause=error.cause,
            option=f"{error.option}; to go on without its records: {command}".removeprefix("; "),
        )

    def _tell_not_sent(self, one: Committable, error: Exception) -> None:
        problem = SparkOnceError(
            "The records of a decided checkpoint were not sent yet; they are kept and sent again.",
            where=f"sink {self.name!r}, checkpoint {one.checkpoint_id}, subtask {one.subtask}, "
            f"{self._buffers.path(one.transactional_id)}",
            cause=f"{type(error).__name__}: {error}",
            option=f"buffer={self.buffer}, committer={self.marks.describe()}",
        )
        logger.warning("%s", problem, exc_info=error)
