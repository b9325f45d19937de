"""The file sink of the two-phase contract: a transaction is a file, its commit is a rename.

(Flink: the `TransactionalFileSink` of the article on TwoPhaseCommitSinkFunction, and `FileSink`.)
In a task the records go to a hidden file, which `pre_commit` makes durable; the driver renames it
after the decision. A look at the names shows the outcome: the final name exists, or the hidden one,
or neither. So a doubt lasts only while the file system is unreachable. If neither name exists,
somebody removed the file: it is lost, and healed.

In an object store the rename is a put-if-absent of another object, see `object_folder`. Here only
the folder's own texts differ.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeVar

import pyarrow as pa

from connectors.files.checkpoint_manifest import write_manifest
from connectors.files.file_sink import JSON, FileSink
from connectors.files.json_lines import JsonLines
from connectors.files.parquet_rows import ParquetRows
from connectors.files.prepared_file import PreparedFile, final_name
from connectors.files.target_folder import open_folder
from connectors.records.row_fingerprint import RowFingerprint
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import BrokerUnavailableError, PhaseOneError, RecordRefusedError
from transactions.sink import Attempt, Owner
from transactions.two_phase import Event, Lifecycle

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")

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


class TransactionalFileSink:
    """Writes Arrow batches of any schema that the format can express; see `FileSink.check_columns`.

    Attributes:
        options: the user's options.
    """

    def __init__(self, options: FileSink) -> None:
        self.options = options
        self._folder = open_folder(options.path, options.store)
        self._made_durable = False

    @property
    def name(self) -> str:
        """See `Writer.name`."""
        return self.options.name

    # --- in the task ------------------------------------------------------------------------

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
                transaction.file = self._folder.create(transaction.transaction_id)
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
        name = final_name(number, subtask, transaction.unique, self.options.suffix)
        with self._telling(attempt):
            transaction.writer.close()
            size = self._folder.seal(transaction.file, transaction.transaction_id, name)
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
            self._folder.discard(transaction.transaction_id)
        except OSError as error:
            logger.warning("abort of %s: %s; the sweep ends it", transaction.transaction_id, error)

    def _writer(self, file: BinaryIO) -> ParquetRows | JsonLines:
        if self.options.format == JSON:
            return JsonLines(file)
        return ParquetRows(file, self.options.compression)

    @contextlib.contextmanager
    def _telling(self, attempt: Attempt) -> Iterator[None]:
        """Raise the errors of a write as ours, with four parts."""
        where = f"{self.options.path}, checkpoint {attempt.checkpoint_id}, subtask "
        where += str(attempt.subtask)
        try:
            yield
        except OSError as error:
            raise PhaseOneError(
                f"The file sink {self.name!r} could not write: {error}.",
                where=where,
                cause=f"{self._folder.trouble}; nothing of the checkpoint is visible",
                option=f"path={self.options.path}",
            ) from error
        except _REFUSALS as error:
            raise RecordRefusedError(
                f"The format {self.options.format} has no place for a value: {error}.",
                where=where,
                cause="a value is outside of what the format can express, or the columns changed "
                "within a task",
                option=f"format={self.options.format}",
            ) from error

    # --- on the driver ----------------------------------------------------------------------

    def check_target(self) -> None:
        """Check that the target can commit files. At start, before any data moves.

        Raises:
            ConfigurationError: it cannot.
            BrokerUnavailableError: it does not answer.
        """
        with self._reached():
            self._folder.check()

    def close(self) -> None:
        """Do nothing: the driver holds nothing."""

    def check_prepared(
        self,
        committables: Sequence[Committable],
        deadline: Deadline,  # noqa: ARG002
    ) -> list[Committable]:
        """See `Committer.check_prepared`: every file exists with its size, and can be
        renamed. This also writes the manifest of the checkpoint, because after the decision no step
        may be left that could fail.
        """
        if not committables:
            return []
        try:
            if not self._made_durable:
                self._folder.make_durable()
                self._made_durable = True
            obstacle = self._folder.obstacle()
            problems = self._for_each(committables, self._not_prepared)
            for one, its_own in zip(committables, problems, strict=True):
                if problem := obstacle or its_own:
                    raise self._unprepared(one, problem)
            write_manifest(self._folder, committables)
        except OSError as error:
            raise self._unprepared(committables[0], str(error)) from error
        return list(committables)

    def _not_prepared(self, one: Committable) -> str:
        file = PreparedFile.of(one)
        size = self._folder.size_of(one.transactional_id, file.name)
        if size is None:
            return "its file is gone"
        return "" if size == file.size else f"its file has {size} bytes, {file.size} were written"

    def _unprepared(self, one: Committable, problem: str) -> PhaseOneError:
        return PhaseOneError(
            f"A prepared file cannot be committed: {problem}.",
            where=f"{self.options.path}, checkpoint {one.checkpoint_id}, subtask {one.subtask}, "
            f"{one.transactional_id}",
            cause=f"somebody removed or changed it; {self._folder.trouble}; or the workers write "
            "to another place than the driver sees",
            option=f"path={self.options.path}",
        )

    def commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer.commit`: rename every file, then sync the folders.

        A rename itself returns what it found, so a recovery commits in the same way.
        """
        found = self._for_each(committables, lambda one: self._publish(one, deadline))
        outcomes = {one.token: outcome for one, outcome in zip(committables, found, strict=True)}
        try:
            # Even if all were renamed before: that process may have died before this step.
            self._folder.sync_published()
        except OSError as error:
            logger.warning("the renames in %s are not durable yet: %s", self.options.path, error)
            return dict.fromkeys(outcomes, Outcome.UNKNOWN)
        return outcomes

    def _publish(self, one: Committable, deadline: Deadline) -> Outcome:
        if deadline.expired():
            return Outcome.UNKNOWN
        crash_points.reach("rename_started", one.checkpoint_id)
        try:
            outcome = self._folder.publish(one.transactional_id, PreparedFile.of(one).name)
        except OSError as error:
            logger.warning("whether %s was renamed is not known: %s", one.transactional_id, error)
            return Outcome.UNKNOWN
        if outcome is Outcome.COMMITTED:
            crash_points.reach("renamed", one.checkpoint_id)
        return outcome

    def _for_each(self, all_of_them: Iterable[_T], do: Callable[[_T], _R]) -> list[_R]:
        """Apply a function to every file, several at a time if that is faster."""
        if self._folder.at_once == 1:
            return [do(one) for one in all_of_them]
        with ThreadPoolExecutor(self._folder.at_once) as pool:
            return list(pool.map(do, all_of_them))

    def recover_and_commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer.recover_and_commit`. ABORTED: the file has neither name."""
        return self.commit(committables, deadline)

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `Committer.lingering`: hidden files, and manifests that are not whole.

        Raises:
            BrokerUnavailableError: the folder cannot be read now.
        """
        mine = [owner.application_id, owner.log_id]
        with self._reached():
            return [
                name
                for name in self._folder.open_ids()
                if (parts := name.split("."))[:2] == mine and int(parts[2]) <= owner.run_epoch
            ]

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:  # noqa: ARG002
        """See `Committer.recover_and_abort`: without its file a writer cannot commit.

        Raises:
            BrokerUnavailableError: the folder cannot be written now.
        """
        with self._reached():
            self._for_each(transaction_ids, self._folder.discard)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Raise our error, for the restart strategy, if the folder is unreachable."""
        try:
            yield
        except OSError as error:
            raise BrokerUnavailableError(
                "The folder of a file sink cannot be used.",
                where=f"sink {self.name!r}, {self.options.path}",
                cause=str(error),
                option=f"path={self.options.path}",
            ) from error

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `Committer.hidden`: readers see every renamed file."""
        return []

    def retired(self) -> frozenset[str]:
        """See `Committer.retired`: an id is used once."""
        return frozenset()
