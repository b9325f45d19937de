"""The half of a write-ahead sink that works in tasks: it fills a buffer, seals it and syncs it."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from pathlib import Path

import pyarrow as pa

from connectors.records.row_fingerprint import RowFingerprint
from connectors.wal.buffer_folder import BufferFolder, transactional_id_of
from connectors.wal.record_buffer import RecordBuffer
from transactions import crash_points
from transactions.clock import SYSTEM_CLOCK
from transactions.committable import Committable
from transactions.errors import DeliveryError
from transactions.sink import Attempt

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class WriteAheadTransaction:
    """A buffer on the worker that writes it; live, never pickled."""

    attempt: Attempt
    transactional_id: str
    token: str
    fingerprint: RowFingerprint = dataclasses.field(default_factory=RowFingerprint)
    buffer: RecordBuffer | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriteAheadWriter:
    """Phase 1. It sends nothing, so neither the user's sink nor the place of the marks travels.

    Attributes:
        name: see `Writer.name`.
        buffer: folder of the buffers; absolute, because workers run in another folder.
        start: random id of the start, `START_LENGTH` digits.
    """

    name: str
    buffer: Path
    start: str

    def new_fingerprint(self) -> RowFingerprint:
        """Return an empty fingerprint, for rows to compare with the decided ones."""
        return RowFingerprint()

    def begin_transaction(self, attempt: Attempt) -> WriteAheadTransaction:
        """See `Writer.begin_transaction`; the first record creates the file, so an idle
        branch costs nothing.
        """
        unique = self.start + secrets.token_hex(8)
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
                logger.warning(
                    "the abort of %s failed: %s; the sweep ends it", transaction.token, error
                )

    @property
    def _buffers(self) -> BufferFolder:
        return BufferFolder(self.buffer / self.name)

    def _not_written(self, transaction: WriteAheadTransaction, error: Exception) -> DeliveryError:
        attempt = transaction.attempt
        return DeliveryError(
            f"The buffer of a write-ahead sink could not be written: {error}",
            where=f"{self._buffers.path(transaction.transactional_id)}, checkpoint "
            f"{attempt.checkpoint_id}, subtask {attempt.subtask}",
            cause="the disk is full, read-only or gone, or the rows changed their columns",
            option=f"buffer={self.buffer}",
        )
