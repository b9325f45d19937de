"""The file sink of the two-phase contract: a transaction is a file, its commit is a rename.

(Flink: the `TransactionalFileSink` of the article on TwoPhaseCommitSinkFunction, and `FileSink`.)
In a task the records go to a hidden file, which `pre_commit` makes durable; the driver renames it
after the decision. What a rename has done is seen by looking: the final name is there, or the
hidden one, or neither. So nothing is in doubt for longer than the file system is away, and a file
that neither name leads to was removed by somebody: it is lost, and healed.

In an object store the rename is a put-if-absent of another object, see `object_folder`; here only
the folder's own words are different.
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

#: What a value that the format cannot express raises: in the driver's check only its type is known.
_REFUSALS = (pa.ArrowException, ValueError, TypeError, OverflowError)


@dataclasses.dataclass(slots=True)
class FileTransaction:
    """A transaction in the task that writes it; live, never pickled.

    Attributes:
        attempt: whose it is.
        unique: 16 hex digits, in its id, its token and its final name.
        lifecycle: where it stands.
        fingerprint: of its records.
        file: the hidden file, from the first record on.
        writer: its format.
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
    """Writes Arrow batches of any schema that the format carries; see `FileSink.check_columns`.

    Attributes:
        options: what the user said.
    """

    def __init__(self, options: FileSink) -> None:
        self.options = options
        self._folder = open_folder(options.path, options.store)
        self._made_durable = False

    @property
    def name(self) -> str:
        """See `TwoPhaseCommitSink.name`."""
        return self.options.name

    # --- in the task ------------------------------------------------------------------------

    def new_fingerprint(self) -> RowFingerprint:
        """Return an empty one, for rows that are compared with what was decided."""
        return RowFingerprint()

    def begin_transaction(self, attempt: Attempt) -> FileTransaction:
        """See `TwoPhaseCommitSink.begin_transaction`; the file is made with the first record."""
        unique = secrets.token_hex(8)
        lifecycle = Lifecycle(unique)
        lifecycle.advance(Event.BEGIN)
        return FileTransaction(attempt, unique, lifecycle)

    def invoke(self, transaction: FileTransaction, batch: pa.RecordBatch) -> None:
        """See `TwoPhaseCommitSink.invoke`.

        Args:
            transaction: from `begin_transaction`.
            batch: every batch of a transaction has the same columns.

        Raises:
            PhaseOneError: the file cannot be written.
            RecordRefusedError: a value has no place in the format.
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
        """See `TwoPhaseCommitSink.pre_commit`: the file is whole and survives a power cut. Offsets
        of the source are not in it; they are in the decision.

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
        """See `TwoPhaseCommitSink.abort`: the hidden file is removed, prepared or not."""
        if transaction.file is None:
            return
        transaction.lifecycle.advance(Event.ABORT)
        if not transaction.file.closed:
            # Arrow's writer would do it later by itself, on a file that is closed.
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
        """Say in four parts what a write has met."""
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
        """Look whether files can be committed to the target. At start, before any data moves.

        Raises:
            ConfigurationError: they cannot.
            BrokerUnavailableError: it does not answer.
        """
        with self._reached():
            self._folder.check()

    def close(self) -> None:
        """Nothing is held."""

    def check_prepared(
        self,
        committables: Sequence[Committable],
        deadline: Deadline,  # noqa: ARG002
    ) -> list[Committable]:
        """See `TwoPhaseCommitSink.check_prepared`: every file is there with its size, and can be
        renamed. The manifest of the checkpoint is written here, for after the decision nothing may
        be left that could fail.
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
        """See `TwoPhaseCommitSink.commit`: every file is renamed, then the folders are synced.

        A rename tells by itself what it found, so this is also how a recovery commits.
        """
        found = self._for_each(committables, lambda one: self._publish(one, deadline))
        outcomes = {one.token: outcome for one, outcome in zip(committables, found, strict=True)}
        try:
            # Also when all had been renamed before: by a process that may have died before this.
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
        """Do something with every file, some at a time where that is quicker."""
        if self._folder.at_once == 1:
            return [do(one) for one in all_of_them]
        with ThreadPoolExecutor(self._folder.at_once) as pool:
            return list(pool.map(do, all_of_them))

    def recover_and_commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `TwoPhaseCommitSink.recover_and_commit`. ABORTED: the file is under neither name."""
        return self.commit(committables, deadline)

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `TwoPhaseCommitSink.lingering`: hidden files, also manifests that are not whole.

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
        """See `TwoPhaseCommitSink.recover_and_abort`: without its file no writer can commit.

        Raises:
            BrokerUnavailableError: the folder cannot be written now.
        """
        with self._reached():
            self._for_each(transaction_ids, self._folder.discard)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Say in our words, for the restart strategy, that the folder is away."""
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
        """See `TwoPhaseCommitSink.hidden`: what is renamed is seen."""
        return []

    def retired(self) -> frozenset[str]:
        """See `TwoPhaseCommitSink.retired`: an id is used once."""
        return frozenset()
