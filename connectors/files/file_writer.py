"""The file sink's half in the tasks: a transaction is a hidden file.

`pre_commit` makes the file durable. From then on the committer can publish it, and needs nothing of
this process. In an object store `pre_commit` uploads it, see `object_folder`. Here only the
folder's own texts differ. (Flink: the `FileWriter` of its `FileSink`.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Iterator
from typing import BinaryIO, Final

import pyarrow as pa

from connectors.files.json_lines import JsonLines
from connectors.files.parquet_rows import ParquetRows
from connectors.files.prepared_file import PreparedFile, final_name
from connectors.files.target_folder import TargetFolder
from connectors.records.row_fingerprint import RowFingerprint
from transactions import crash_points
from transactions.committable import Committable
from transactions.errors import PhaseOneError, RecordRefusedError
from transactions.sink import Attempt
from transactions.two_phase import Event, Lifecycle

logger = logging.getLogger(__name__)

PARQUET: Final = "parquet"
JSON: Final = "json"
#: Format -> the end of its files' names.
_SUFFIXES: Final = {PARQUET: ".parquet", JSON: ".jsonl"}

#: Raised for a value that the format cannot express: the driver's check knows only its type.
_REFUSALS = (pa.ArrowException, ValueError, TypeError, OverflowError)


@dataclasses.dataclass(slots=True)
class FileTransaction:
    """A transaction in the task that writes it; live, never pickled.

    Attributes:
        attempt: the attempt that writes it.
        unique: 16 hex digits, in its id, its token and its final name.
        lifecycle: its state.
        fingerprint: of its records.
        file: the hidden file, from the first record on.
        writer: the writer of its format.
    """

    attempt: Attempt
    unique: str
    lifecycle: Lifecycle
    fingerprint: RowFingerprint = dataclasses.field(default_factory=RowFingerprint)
    file: BinaryIO | None = None
    writer: ParquetRows | JsonLines | None = None

    @property
    def transaction_id(self) -> str:
        """``<application>.<log>.<run>.<unique>.<subtask>``; also the hidden file's name."""
        owner = self.attempt.owner
        run = f"{owner.application_id}.{owner.log_id}.{owner.run_epoch}"
        return f"{run}.{self.unique}.{self.attempt.subtask}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileWriter:
    """Writes Arrow batches of any schema that the format can express; see `FileSink.check_columns`.

    Attributes:
        name: see `Writer.name`.
        path: see `FileSink`.
        folder: the folder at that path.
        format: see `FileSink`.
        compression: see `FileSink`.
    """

    name: str
    path: str
    folder: TargetFolder
    format: str
    compression: str

    def new_fingerprint(self) -> RowFingerprint:
        """Return an empty fingerprint, for rows to compare with the decided ones."""
        return RowFingerprint()

    def begin_transaction(self, attempt: Attempt) -> FileTransaction:
        """See `Writer.begin_transaction`; the first record creates the file."""
        unique = secrets.token_hex(8)
        lifecycle = Lifecycle(unique)
        lifecycle.advance(Event.BEGIN)
        return FileTransaction(attempt, unique, lifecycle)

    def invoke(self, transaction: FileTransaction, batch: pa.RecordBatch) -> None:
        """See `Writer.invoke`.

        Args:
            transaction: from `begin_transaction`.
            batch: every batch of a transaction has the same columns.

        Raises:
            PhaseOneError: the file cannot be written.
            RecordRefusedError: the format cannot express a value.
        """
        if batch.num_rows == 0:
            return
        transaction.lifecycle.advance(Event.INVOKE)
        with self._telling(transaction.attempt):
            if transaction.writer is None:
                transaction.file = self.folder.create(transaction.transaction_id)
                transaction.writer = self._writer(transaction.file)
            transaction.fingerprint.add(batch)
            transaction.writer.write(batch)

    def pre_commit(self, transaction: FileTransaction) -> Committable | None:
        """See `Writer.pre_commit`: the file is whole and survives a power cut. It has
        no source offsets; they are in the decision.

        Raises:
            PhaseOneError, RecordRefusedError: see `invoke`.
        """
        attempt = transaction.attempt
        number, subtask = attempt.checkpoint_id, attempt.subtask
        if transaction.writer is None or transaction.file is None:
            transaction.lifecycle.advance(Event.PRE_COMMIT_EMPTY)
            return None
        crash_points.reach("records_queued", number)
        name = final_name(number, subtask, transaction.unique, _SUFFIXES[self.format])
        with self._telling(attempt):
            transaction.writer.close()
            size = self.folder.seal(transaction.file, transaction.transaction_id, name)
        transaction.lifecycle.advance(Event.PRE_COMMIT)
        crash_points.reach("records_flushed", number)
        return Committable(
            sink=self.name,
            transactional_id=transaction.transaction_id,
            producer_id=-1,
            producer_epoch=-1,
            timeout_ms=0,
            checkpoint_id=number,
            subtask=subtask,
            attempt=attempt.attempt_id,
            token=f"{number}.{subtask}.{transaction.unique}",
            record_count=transaction.fingerprint.count,
            fingerprint=transaction.fingerprint.hex(),
            marker_partition=str(PreparedFile(name, size)),
        )

    def abort(self, transaction: FileTransaction) -> None:
        """See `Writer.abort`: removes the hidden file, prepared or not."""
        if transaction.file is None:
            return
        transaction.lifecycle.advance(Event.ABORT)
        if not transaction.file.closed:
            # Otherwise Arrow's writer would close later by itself, on a closed file.
            with contextlib.suppress(OSError, *_REFUSALS):
                if transaction.writer is not None:
                    transaction.writer.close()
            with contextlib.suppress(OSError):
                transaction.file.close()
        try:
            self.folder.discard(transaction.transaction_id)
        except OSError as error:
            logger.warning(
                "the abort of %s failed: %s; the sweep ends it", transaction.transaction_id, error
            )

    def _writer(self, file: BinaryIO) -> ParquetRows | JsonLines:
        if self.format == JSON:
            return JsonLines(file)
        return ParquetRows(file, self.compression)

    @contextlib.contextmanager
    def _telling(self, attempt: Attempt) -> Iterator[None]:
        """Raise the errors of a write as ours, with four parts."""
        where = f"{self.path}, checkpoint {attempt.checkpoint_id}, subtask {attempt.subtask}"
        try:
            yield
        except MemoryError:  # Arrow's is an ArrowException too, and refuses no value
            raise
        except OSError as error:
            raise PhaseOneError(
                f"The file sink {self.name!r} could not write: {error}.",
                where=where,
                cause=f"{self.folder.trouble}; nothing of the checkpoint is visible",
                option=f"path={self.path}",
            ) from error
        except _REFUSALS as error:
            raise RecordRefusedError(
                f"The format {self.format} cannot store a value: {error}.",
                where=where,
                cause="the value is out of range for the format, or the columns changed within a "
                "task",
                option=f"format={self.format}",
            ) from error
