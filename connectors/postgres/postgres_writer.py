"""The PostgreSQL sink's half in the tasks: it writes Arrow batches in prepared transactions.

A task holds one session from the first record to PREPARE TRANSACTION. The prepared transaction
belongs to the server and survives its crash, and any session of the same user can end it.

These end a transaction without a decision:

* open, and its task is dead: PostgreSQL, when the connection ends, or when it was idle for a
  checkpoint's timeout (the machine is gone, the process is frozen);
* prepared: the sweep, by ROLLBACK PREPARED. A frozen task may wake up after a sweep and prepare.
  The next sweep finds that transaction; nobody can commit it, because nobody has its committable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Iterator
from typing import Final

import psycopg
import pyarrow as pa
from psycopg import errors

from connectors.postgres.commit_marks import CommitMarks
from connectors.postgres.connection import Connection, connect, limited, said
from connectors.postgres.copy_lines import LinesFingerprint, check_types, copy_lines, payload
from connectors.postgres.prepared_id import new_id, roll_back, statement
from connectors.postgres.target_table import TargetTable
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import (
    BrokerUnavailableError,
    DeliveryError,
    PhaseOneError,
    RecordRefusedError,
    SparkOnceError,
)
from transactions.sink import Attempt
from transactions.two_phase import Event, Lifecycle

logger = logging.getLogger(__name__)

_ABORT_S: Final = 10.0
#: A value that does not fit its type (22), a constraint (23): the same row fails again.
_OF_A_ROW: Final = ("22", "23")
_FOREIGN_KEY: Final = (
    ": rows of other sinks and subtasks are visible only after their checkpoint, so a foreign key "
    "to them is refused"
)


@dataclasses.dataclass(slots=True)
class PostgresTransaction:
    """A transaction in the task that writes it; live, never pickled."""

    attempt: Attempt
    gid: str
    token: str
    deadline: Deadline
    lifecycle: Lifecycle
    fingerprint: LinesFingerprint = dataclasses.field(default_factory=LinesFingerprint)
    connection: Connection | None = None
    prepare_sent: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PostgresWriter:
    """Writes Arrow batches into one table, in transactions that the driver commits.

    Attributes:
        name: see `Writer.name`.
        conninfo: the connection string.
        table: the target, as the server described it at the start.
        checkpoint_timeout_s: how long any one task may take.
    """

    name: str
    conninfo: str = dataclasses.field(repr=False)  # it may contain a password
    table: TargetTable
    checkpoint_timeout_s: float

    def check_columns(self, schema: pa.Schema) -> None:
        """Check that rows of a schema fit into the table. On the driver, before any data moves; and
        in a task, before its first record.

        Raises:
            ConfigurationError: they do not; the text names the column.
        """
        where = f"sink {self.name!r}"
        check_types(schema, f"{where}, table {self.table.given}")
        self.table.check_columns(schema, where)

    def new_fingerprint(self) -> LinesFingerprint:
        """Return an empty fingerprint, for rows to compare with the decided ones."""
        return LinesFingerprint()

    def begin_transaction(self, attempt: Attempt) -> PostgresTransaction:
        """See `Writer.begin_transaction`; the first record begins the session."""
        token = f"{attempt.checkpoint_id}.{attempt.subtask}.{secrets.token_hex(8)}"
        lifecycle = Lifecycle(token)
        lifecycle.advance(Event.BEGIN)
        gid = new_id(attempt.owner, attempt.subtask)
        return PostgresTransaction(
            attempt, gid, token, Deadline(self.checkpoint_timeout_s), lifecycle
        )

    def invoke(self, transaction: PostgresTransaction, batch: pa.RecordBatch) -> None:
        """See `Writer.invoke`: one COPY.

        Args:
            transaction: from `begin_transaction`.
            batch: columns of the table, by name, in any order; see `copy_lines` for the types.

        Raises:
            RecordRefusedError: the table will never take a row.
            DeliveryError: the rows did not reach the table.
            ConfigurationError: the columns do not fit into the table.
        """
        if batch.num_rows == 0:
            return
        transaction.lifecycle.advance(Event.INVOKE)
        connection = transaction.connection
        if connection is None:
            self.check_columns(batch.schema)
            connection = self._begun(transaction)
        copy = self.table.copy_into(batch.schema)
        with (
            self._delivering(transaction),
            limited(connection, transaction.deadline),
            connection.cursor() as cursor,
            cursor.copy(copy) as sending,
        ):
            for lines in copy_lines(batch):
                sending.write(payload(lines))
                transaction.fingerprint.add_texts(lines)

    def pre_commit(self, transaction: PostgresTransaction) -> Committable | None:
        """See `Writer.pre_commit`: the mark, then PREPARE TRANSACTION.

        Returns:
            None if no row was written. It carries no source offsets: the decision log has them,
            and here the mark is the proof.

        Raises:
            RecordRefusedError: a deferred constraint refused a row.
            DeliveryError: the transaction is not known to be prepared.
        """
        attempt, connection = transaction.attempt, transaction.connection
        if connection is None:
            transaction.lifecycle.advance(Event.PRE_COMMIT_EMPTY)
            return None
        crash_points.reach("records_queued", attempt.checkpoint_id)
        with self._delivering(transaction), limited(connection, transaction.deadline):
            CommitMarks(self.table.schema).write(connection, attempt, transaction.token)
            crash_points.reach("records_flushed", attempt.checkpoint_id)
            transaction.prepare_sent = True
            prepared = connection.execute(statement("PREPARE TRANSACTION", transaction.gid))
        connection.close()
        if prepared.statusmessage != "PREPARE TRANSACTION":
            # For a failed transaction PostgreSQL answers like this: ROLLBACK, and no error.
            raise DeliveryError(
                "PostgreSQL rolled a transaction back instead of preparing it.",
                where=self._where(attempt),
                cause=f"a statement in it had failed; the answer was {prepared.statusmessage}",
            )
        transaction.lifecycle.advance(Event.PRE_COMMIT)
        crash_points.reach("offsets_sent", attempt.checkpoint_id)
        return Committable(
            sink=self.name,
            transactional_id=transaction.gid,
            producer_id=-1,
            producer_epoch=-1,
            timeout_ms=0,
            checkpoint_id=attempt.checkpoint_id,
            subtask=attempt.subtask,
            attempt=attempt.attempt_id,
            token=transaction.token,
            record_count=transaction.fingerprint.count,
            fingerprint=transaction.fingerprint.hex(),
        )

    def abort(self, transaction: PostgresTransaction) -> None:
        """See `Writer.abort`. It closes the session, which rolls back an open transaction. A
        (perhaps) prepared one is rolled back by name, or else by the sweep.
        """
        if transaction.connection is None:  # nothing was begun, or it was empty
            return
        transaction.lifecycle.advance(Event.ABORT)
        transaction.connection.close()
        if transaction.prepare_sent:
            try:
                roll_back(self.conninfo, [transaction.gid], Deadline(_ABORT_S))
            except SparkOnceError as error:
                logger.warning(
                    "the abort of %s failed: %s; the sweep ends it", transaction.token, error
                )

    def _begun(self, transaction: PostgresTransaction) -> Connection:
        try:
            connection = transaction.connection = connect(self.conninfo, transaction.deadline)
        except BrokerUnavailableError as error:
            raise PhaseOneError(
                error.what,
                where=self._where(transaction.attempt),
                cause=error.cause,
                option=error.option,
            ) from error
        with self._delivering(transaction), limited(connection, transaction.deadline):
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
            # Without this, a frozen task would keep its locks for as long as it is frozen.
            idle = max(1, int(transaction.deadline.remaining() * 1000))
            connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = {idle}")
        return connection

    @contextlib.contextmanager
    def _delivering(self, transaction: PostgresTransaction) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if transaction.connection is not None:
                transaction.connection.close()
            refused = (error.sqlstate or "").startswith(_OF_A_ROW)
            kind = RecordRefusedError if refused else DeliveryError
            hint = _FOREIGN_KEY if isinstance(error, errors.ForeignKeyViolation) else ""
            raise kind(
                f"The table {self.table} refused the rows of a task.",
                where=self._where(transaction.attempt),
                cause=f"PostgreSQL: {said(error)}",
                option=f"table={self.table.given}{hint}",
            ) from error

    def _where(self, attempt: Attempt) -> str:
        return (
            f"sink {self.name!r}, table {self.table}, checkpoint {attempt.checkpoint_id}, "
            f"subtask {attempt.subtask}"
        )
