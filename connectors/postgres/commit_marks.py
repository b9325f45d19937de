"""The proof of a commit: a row (the mark) that the transaction itself writes.

COMMIT PREPARED of an unknown name says only that the transaction is gone, not how it ended. Its
mark shows that: mark and rows are one transaction. So a readable mark proves that the rows are
visible. If a transaction is no longer prepared and has no mark, its rows will never be visible.

Marks are pruned, and a pruned mark is absent too. The newest mark of a log shows how far pruning
has gone: pruning at checkpoint M keeps the marks of M and of `KEPT` checkpoints before, and only a
commit of M prunes. So a missing mark proves nothing about an older checkpoint (a decision log that
was restored from a backup asks about one).
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Final

import psycopg
from psycopg import sql

from connectors.postgres.connection import Connection
from connectors.postgres.prepared_id import owner_of
from transactions.committable import Committable, Outcome
from transactions.sink import Attempt, Owner

TABLE: Final = "sparkonce_commits"
#: How many checkpoints keep their marks, before the newest. Only the last decision needs its marks.
KEPT: Final = 16


@dataclasses.dataclass(frozen=True, slots=True)
class CommitMarks:
    """The table of marks beside the target table; plain data, it travels to the tasks.

    Attributes:
        schema: the schema of the table, which is that of the target table.
    """

    schema: str

    @property
    def table(self) -> sql.Identifier:
        """The table's name in SQL."""
        return sql.Identifier(self.schema, TABLE)

    def create(self, connection: Connection) -> None:
        """Create the table if it is missing. On the driver, at start."""
        if self._exists(connection):  # then we do not need the right to create it
            return
        try:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE {} (application text, log_id text, checkpoint_id bigint,"
                    " subtask integer, token text,"
                    " PRIMARY KEY (application, log_id, checkpoint_id, token))"
                ).format(self.table)
            )
        except psycopg.Error:
            if not self._exists(connection):  # else another driver was faster
                raise

    def missing_rights(self, connection: Connection) -> list[str]:
        """Return the rights on the table that the user lacks."""
        name = self.table.as_string(connection)
        rights = ("INSERT", "SELECT", "DELETE")
        query = "SELECT " + ", ".join(["has_table_privilege(%s, %s)"] * len(rights))
        row = connection.execute(query, [one for right in rights for one in (name, right)])
        held = row.fetchone() or ()
        return [right for right, has in zip(rights, held, strict=True) if not has]

    def write(self, connection: Connection, attempt: Attempt, token: str) -> None:
        """Write the mark of this connection's open transaction. In a task."""
        owner = attempt.owner
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (application, log_id, checkpoint_id, subtask, token)"
                " VALUES (%s, %s, %s, %s, %s)"
            ).format(self.table),
            [owner.application_id, owner.log_id, attempt.checkpoint_id, attempt.subtask, token],
        )

    def proof(self, connection: Connection, one: Committable) -> Outcome:
        """Return how a transaction ended that is no longer prepared. On the driver.

        The caller must have checked before that it is not prepared: one statement for both could
        read the marks first, and miss a commit in between.

        Returns:
            ALREADY_COMMITTED, ABORTED, or UNKNOWN if its mark may have been pruned.
        """
        owner = owner_of(one.transactional_id)
        key = [owner.application_id, owner.log_id]
        row = connection.execute(
            sql.SQL(
                "SELECT bool_or(token = %s AND checkpoint_id = %s), max(checkpoint_id)"
                " FROM {} WHERE application = %s AND log_id = %s"
            ).format(self.table),
            [one.token, one.checkpoint_id, *key],
        ).fetchone()
        assert row is not None, "an aggregate has one row"
        present, newest = row
        if present:
            return Outcome.ALREADY_COMMITTED
        pruned = newest is not None and newest - KEPT > one.checkpoint_id
        return Outcome.UNKNOWN if pruned else Outcome.ABORTED

    def prune(self, connection: Connection, owner: Owner, committed: int) -> None:
        """Delete marks that nobody will need. On the driver, after a commit of `committed`."""
        # The next commit deletes what this one fails to delete.
        with contextlib.suppress(psycopg.Error), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")  # nothing waits for it
            connection.execute(
                sql.SQL(
                    "DELETE FROM {} WHERE application = %s AND log_id = %s AND checkpoint_id < %s"
                ).format(self.table),
                [owner.application_id, owner.log_id, committed - KEPT],
            )

    def _exists(self, connection: Connection) -> bool:
        name = self.table.as_string(connection)
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone()
        return bool(row and row[0])
