"""Marks in a table of an SQLite database; in the target's own, they share its transaction."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from connectors.wal.checkpoint_committer import CheckpointCommitter
from connectors.wal.folder import absolute_folder
from transactions.errors import ConfigurationError

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class SQLiteCheckpointCommitter(CheckpointCommitter):
    """One row per mark. Only the driver opens the database; no worker needs to see it.

    A committed row survives a power cut, because of ``synchronous=EXTRA``. With FULL the removal of
    the journal, which is the commit, may be undone, and the records are discarded after it.

    Args:
        database: file of the database; created if missing, but its folder is not.
        table: of the marks.
        busy_timeout_s: how long to wait for another writer of the database.

    Raises:
        ConfigurationError: the table's name is not one of SQL.
    """

    def __init__(
        self,
        database: str | Path,
        *,
        table: str = "sparkonce_checkpoints",
        busy_timeout_s: float = 5.0,
    ) -> None:
        if not _TABLE.fullmatch(table):
            raise ConfigurationError(
                "The table of the marks needs a plain name.",
                where="SQLiteCheckpointCommitter",
                cause="letters, digits and _ only, at most 63 of them",
                option=f"table={table}",
            )
        self._database = absolute_folder(database, option="database")
        self._table = table
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection out when the options of a sink are pickled."""
        return {**self.__dict__, "_connection": None}

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for a sink whose target is this database. It is in autocommit mode. Call
        neither ``commit()`` nor ``rollback()`` on it inside `transaction`.
        """
        assert self._connection is not None, "call open() first"
        return self._connection

    def create_resource(self) -> None:
        """See `CheckpointCommitter.create_resource`."""
        with contextlib.closing(self._connected()) as connection:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} (job_id TEXT, operator_id TEXT, "
                "subtask INTEGER, checkpoint_id INTEGER NOT NULL, "
                "PRIMARY KEY (job_id, operator_id, subtask)) WITHOUT ROWID"
            )

    def open(self) -> None:
        """See `CheckpointCommitter.open`."""
        if self._connection is None:
            self._connection = self._connected()

    def close(self) -> None:
        """See `CheckpointCommitter.close`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        """See `CheckpointCommitter.commit_checkpoint`; inside a `transaction` the mark becomes
        durable at the end of that transaction.
        """
        self.connection.execute(
            f"INSERT INTO {self._table} VALUES (?, ?, ?, ?) "  # noqa: S608 - a checked name
            "ON CONFLICT DO UPDATE SET checkpoint_id = max(checkpoint_id, excluded.checkpoint_id)",
            (self.job_id, self.operator_id, subtask, checkpoint_id),
        )

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
        """See `CheckpointCommitter.is_checkpoint_committed`."""
        found = self.connection.execute(
            f"SELECT 1 FROM {self._table} WHERE job_id = ? AND operator_id = ? "  # noqa: S608
            "AND subtask = ? AND checkpoint_id >= ?",
            (self.job_id, self.operator_id, subtask, checkpoint_id),
        )
        return found.fetchone() is not None

    def describe(self) -> str:
        """See `CheckpointCommitter.describe`."""
        return f"sqlite:{self._database}#{self._table}"

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `CheckpointCommitter.transaction`. It first takes the write lock. So a driver of an
        older run that still lives cannot act between the question and the mark.

        Raises:
            ConfigurationError: the transaction was ended inside the block; earlier writes are
                visible without their mark.
            sqlite3.OperationalError: another writer held the lock for too long.
        """
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._check_in_transaction()
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def _check_in_transaction(self) -> None:
        if not self.connection.in_transaction:
            raise ConfigurationError(
                "send_values ended the transaction that holds its records and their mark.",
                where=f"{self.describe()}, sink {self.operator_id!r}",
                cause="commit() or rollback() was called on the committer's connection",
                option="send_values: leave the transaction to the sink",
            )

    def _connected(self) -> sqlite3.Connection:
        # One thread at a time, but not always the same: Spark calls from its callback threads.
        connection = sqlite3.connect(
            self._database,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA synchronous = EXTRA")
        return connection
