"""Marks in a PostgreSQL table; in the target's own database they share its transaction."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from connectors.postgres.connection import (
    Connection,
    connect,
    connected,
    limited,
    server_of,
    set_statement_timeout,
)
from connectors.wal.checkpoint_committer import CheckpointCommitter
from transactions.clock import Deadline
from transactions.errors import BrokerUnavailableError, ConfigurationError

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class PostgresCheckpointCommitter(CheckpointCommitter):
    """One row per mark. Only the driver connects to the server.

    Args:
        conninfo: libpq's connection string; no error text contains it.
        table: the table of the marks, in the first schema of the search path; created if missing.
        timeout_s: how long the server may take for one mark, and how long it waits for the next
            statement of a transaction.

    Raises:
        ConfigurationError: the table's name is not a plain one, or psycopg is not installed.
    """

    def __init__(
        self, conninfo: str, *, table: str = "sparkonce_checkpoints", timeout_s: float = 60.0
    ) -> None:
        if not _TABLE.fullmatch(table):
            raise ConfigurationError(
                "The table of the marks needs a plain name.",
                where="PostgresCheckpointCommitter",
                cause="letters, digits and _ only, at most 63 of them",
                option=f"table={table}",
            )
        self.conninfo = conninfo
        self._server = server_of(conninfo)
        self._table = table
        self._timeout_s = timeout_s
        self._connection: Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection out when the options of a sink are pickled."""
        return {**self.__dict__, "_connection": None}

    @property
    def connection(self) -> Connection:
        """The connection, for a sink whose target is this database. It is in autocommit mode. Call
        neither ``commit()`` nor ``rollback()`` on it inside `transaction`.
        """
        assert self._connection is not None, "call open() first"
        return self._connection

    def create_resource(self) -> None:
        """See `CheckpointCommitter.create_resource`."""
        with connected(self.conninfo, self._deadline()) as connection:
            if self._exists(connection):  # then we do not need the right to create it
                return
            create = (
                "CREATE TABLE {} (job_id text, operator_id text, subtask integer,"
                " checkpoint_id bigint NOT NULL, PRIMARY KEY (job_id, operator_id, subtask))"
            )
            try:
                connection.execute(sql.SQL(create).format(sql.Identifier(self._table)))
            except psycopg.Error:
                if not self._exists(connection):  # else another driver was faster
                    raise

    def open(self) -> None:
        """See `CheckpointCommitter.open`; it replaces a broken connection."""
        if self._connection is not None and not self._connection.closed:
            return
        self._connection = connect(self.conninfo, self._deadline())
        with limited(self._connection, self._deadline()):
            # If the server could forget a mark, its records would be sent again.
            self._connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
            )

    def close(self) -> None:
        """See `CheckpointCommitter.close`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        """See `CheckpointCommitter.commit_checkpoint`; inside a `transaction` the mark becomes
        durable at the end of that transaction.
        """
        insert = (
            "INSERT INTO {0} AS old VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (job_id, operator_id, subtask) DO UPDATE"
            " SET checkpoint_id = greatest(old.checkpoint_id, excluded.checkpoint_id)"
        )
        key = [self.job_id, self.operator_id, subtask, checkpoint_id]
        with limited(self.connection, self._deadline()):
            self.connection.execute(sql.SQL(insert).format(sql.Identifier(self._table)), key)

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
        """See `CheckpointCommitter.is_checkpoint_committed`."""
        select = (
            "SELECT 1 FROM {} WHERE job_id = %s AND operator_id = %s AND subtask = %s"
            " AND checkpoint_id >= %s"
        )
        key = [self.job_id, self.operator_id, subtask, checkpoint_id]
        with limited(self.connection, self._deadline()):
            found = self.connection.execute(
                sql.SQL(select).format(sql.Identifier(self._table)), key
            )
            return found.fetchone() is not None

    def describe(self) -> str:
        """See `CheckpointCommitter.describe`."""
        server = self._server
        return f"postgres:{server['host']}:{server['port']}/{server['dbname']}#{self._table}"

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `CheckpointCommitter.transaction`. It first locks the sink's name. So a driver of an
        older run that still lives cannot act between the question and the mark.

        Raises:
            ConfigurationError: the transaction was ended inside the block; earlier writes are
                visible without their mark.
            psycopg.Error: the server refused, or is gone. After a COMMIT without an answer the
                result is unknown: a new question for the mark shows it.
        """
        connection = self.connection
        if connection.info.transaction_status != TransactionStatus.IDLE:
            raise BrokerUnavailableError(
                "The connection of the marks is busy with another transaction.",
                where=f"{self.describe()}, sink {self.operator_id!r}",
                cause="a stopped run still uses it",
            )
        try:
            with limited(connection, self._deadline()):
                connection.execute("BEGIN")
                # A driver that freezes in this block loses the lock, and the rows it has sent.
                idle = (
                    f"SET LOCAL idle_in_transaction_session_timeout = {self._timeout_s * 1000:.0f}"
                )
                connection.execute(idle)
                lock = f"{self.describe()} {self.operator_id}"
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock])
            yield
            self._check_in_transaction()
            with limited(connection, self._deadline()):
                # If a COMMIT is cancelled while it waits for a standby, the server answers success.
                set_statement_timeout(connection, 0)
                connection.execute("COMMIT")
        except BaseException:
            self.close()  # this rolls back, even on a server that does not answer
            raise

    def _check_in_transaction(self) -> None:
        if self.connection.info.transaction_status != TransactionStatus.INTRANS:
            raise ConfigurationError(
                "send_values ended the transaction that holds its records and their mark.",
                where=f"{self.describe()}, sink {self.operator_id!r}",
                cause="commit() or rollback() was called on the committer's connection",
                option="send_values: leave the transaction to the sink",
            )

    def _exists(self, connection: Connection) -> bool:
        name = sql.Identifier(self._table).as_string(connection)
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone()
        return bool(row and row[0])

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_s)
