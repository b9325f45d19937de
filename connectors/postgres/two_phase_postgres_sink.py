"""The PostgreSQL sink of the two-phase contract: PREPARE TRANSACTION and COMMIT PREPARED.

One object, two lives. In a task it holds one session from the first record to PREPARE. The prepared
transaction belongs to the server and survives its crash, and any session of the same user can end
it. On the driver each step is a session of its own.

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

import psycopg
import pyarrow as pa
from psycopg import errors

from connectors.postgres.commit_marks import CommitMarks
from connectors.postgres.connection import (
    Connection,
    asking,
    connect,
    connected,
    driver_error,
    limited,
    place,
    said,
    set_statement_timeout,
)
from connectors.postgres.copy_lines import LinesFingerprint, copy_lines, payload
from connectors.postgres.postgres_sink import PostgresSink
from connectors.postgres.prepared_id import (
    Busy,
    Gone,
    new_id,
    owner_of,
    prepared_among,
    prepared_by,
    roll_back,
    statement,
)
from connectors.postgres.server_needs import ready_table
from connectors.postgres.target_table import TargetTable
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    DeliveryError,
    PhaseOneError,
    RecordRefusedError,
)
from transactions.sink import Attempt, Owner
from transactions.two_phase import Event, Lifecycle

logger = logging.getLogger(__name__)

_START_S: Final = 30.0
_ABORT_S: Final = 10.0
#: A value that does not fit its type (22), a constraint (23): the same row fails again.
_OF_A_ROW: Final = ("22", "23")


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


class TwoPhasePostgresSink:
    """Writes Arrow batches into one table, in transactions that the driver commits.

    Attributes:
        options: the user's options.
        table: the target, as the server described it at the start.

    Args:
        options: see above.
        table: see above.
        checkpoint_timeout_s: how long any one task may take.
    """

    def __init__(
        self, options: PostgresSink, table: TargetTable, *, checkpoint_timeout_s: float
    ) -> None:
        self.options = options
        self.table = table
        self._marks = CommitMarks(table.schema)
        self._checkpoint_timeout_s = checkpoint_timeout_s

    @classmethod
    def opened(cls, options: PostgresSink, *, checkpoint_timeout_s: float) -> Self:
        """Return a sink whose server can do all that it needs: see `PostgresSink.open`."""
        deadline = Deadline(min(checkpoint_timeout_s, _START_S))
        table = ready_table(options.name, options.conninfo, options.table, deadline)
        return cls(options, table, checkpoint_timeout_s=checkpoint_timeout_s)

    @property
    def name(self) -> str:
        """See `Writer.name`."""
        return self.options.name

    def close(self) -> None:
        """Do nothing: each step of the driver has a session of its own."""

    def check_columns(self, schema: pa.Schema) -> None:
        """Check that rows of a schema fit into the table. On the driver, before any data moves; and
        in a task, before its first record.

        Raises:
            ConfigurationError: they do not; the text names the column.
        """
        self.options.check_columns(schema)
        self.table.check_columns(schema, f"sink {self.name!r}")

    # --- in the task ------------------------------------------------------------------------

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
            attempt, gid, token, Deadline(self._checkpoint_timeout_s), lifecycle
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
        if transaction.connection is None:
            self.check_columns(batch.schema)
            transaction.connection = self._begun(transaction)
        connection = transaction.connection
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
            self._marks.write(connection, attempt, transaction.token)
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
        """See `Writer.abort`. It closes the session, which rolls back an open
        transaction. A (perhaps) prepared one is rolled back by name, or else by the sweep.
        """
        if transaction.connection is None:  # nothing was begun, or it was empty
            return
        transaction.lifecycle.advance(Event.ABORT)
        transaction.connection.close()
        if transaction.prepare_sent:
            try:
                roll_back(self.options.conninfo, [transaction.gid], Deadline(_ABORT_S))
            except (BrokerUnavailableError, AuthenticationError) as error:
                logger.warning("abort of %s: %s; the sweep ends it", transaction.token, error)

    def _begun(self, transaction: PostgresTransaction) -> Connection:
        try:
            connection = connect(self.options.conninfo, transaction.deadline)
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
            raise kind(
                f"The table {self.table} did not take the rows of a task.",
                where=self._where(transaction.attempt),
                cause=f"PostgreSQL: {said(error)}",
                option=f"table={self.options.table}",
            ) from error

    def _where(self, attempt: Attempt) -> str:
        return (
            f"sink {self.name!r}, table {self.table}, checkpoint {attempt.checkpoint_id}, "
            f"subtask {attempt.subtask}"
        )

    # --- on the driver ----------------------------------------------------------------------

    def check_prepared(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> list[Committable]:
        """See `Committer.check_prepared`: each is in `pg_prepared_xacts`."""
        what = "Prepared transactions could not be looked for."
        with asking(what, self.options.conninfo, deadline) as connection:
            found = prepared_among(connection, [one.transactional_id for one in committables])
        for one in committables:
            if one.transactional_id not in found:
                raise PhaseOneError(
                    "A prepared transaction is not there any more.",
                    where=f"checkpoint {one.checkpoint_id}, subtask {one.subtask}, "
                    f"{one.transactional_id}",
                    cause="an operator ended it, or another server answers than the task's",
                    option=f"conninfo: {place(self.options.conninfo)}",
                )
        return list(committables)

    def commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer.commit`: COMMIT PREPARED, one after the other.

        Raises:
            AuthenticationError: the server refuses this commit for this user.
        """
        return self._commit(committables, deadline, look_first=False)

    def recover_and_commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer.recover_and_commit`: prepared transactions are committed; for the
        others, the mark shows how they ended (see `CommitMarks`).

        Raises:
            AuthenticationError: the server refuses this commit for this user.
        """
        return self._commit(committables, deadline, look_first=True)

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:
        """See `Committer.lingering`: it covers all PostgreSQL sinks of the log in this
        database, because a name does not say which sink wrote it.
        """
        what = "Prepared transactions could not be listed."
        with asking(what, self.options.conninfo, deadline) as connection:
            return prepared_by(connection, owner)

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:
        """See `Committer.recover_and_abort`: ROLLBACK PREPARED. No writer needs a fence: a
        task can do nothing more with a prepared transaction.

        Raises:
            AuthenticationError: another user prepared it.
            BrokerUnavailableError: some could not be ended before the deadline.
        """
        roll_back(self.options.conninfo, transaction_ids, deadline)

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `Committer.hidden`: every committed row is visible."""
        return []

    def retired(self) -> frozenset[str]:
        """See `Committer.retired`: no name is ever used twice."""
        return frozenset()

    def _commit(
        self, committables: Sequence[Committable], deadline: Deadline, *, look_first: bool
    ) -> dict[str, Outcome]:
        outcomes = dict.fromkeys((one.token for one in committables), Outcome.UNKNOWN)
        try:
            with connected(self.options.conninfo, deadline) as connection:
                gids = [one.transactional_id for one in committables]
                open_ones = prepared_among(connection, gids) if look_first else frozenset(gids)
                # A timeout would end the wait for a standby, and the server would answer success.
                set_statement_timeout(connection, 0)
                for one in committables:
                    if deadline.expired():
                        break
                    if one.transactional_id in open_ones:
                        outcomes[one.token] = self._commit_one(connection, one)
                    else:
                        outcomes[one.token] = self._marks.proof(connection, one)
                self._prune(connection, committables, outcomes)
        except errors.InsufficientPrivilege as error:
            what = "A decided transaction may not be committed by this user."
            raise driver_error(what, self.options.conninfo, error) from error
        except (psycopg.Error, BrokerUnavailableError) as error:
            logger.warning("sink %s: the end of a commit is not known: %s", self.name, error)
        return outcomes

    def _commit_one(self, connection: Connection, one: Committable) -> Outcome:
        try:
            connection.execute(statement("COMMIT PREPARED", one.transactional_id))
        except Gone:
            return self._marks.proof(connection, one)
        except Busy:  # the session whose answer was lost is still ending it
            return Outcome.UNKNOWN
        return Outcome.COMMITTED

    def _prune(
        self,
        connection: Connection,
        committables: Sequence[Committable],
        outcomes: Mapping[str, Outcome],
    ) -> None:
        """Prune older marks, if a commit of this checkpoint succeeded: see `CommitMarks`."""
        for one in committables:
            if outcomes[one.token] is Outcome.COMMITTED:
                owner = owner_of(one.transactional_id)
                self._marks.prune(connection, owner, one.checkpoint_id)
                return
