"""The proof of a commit: a row that is written in the transaction that it is about.

COMMIT PREPARED of an unknown name says only that it is gone, not how it ended. Its mark says it:
mark and rows are one transaction, so a mark that can be read proves that the rows are visible, and
a mark that is absent, of a transaction that is no longer prepared, proves that they never will be.

Marks are pruned, and a pruned mark is absent too. The newest mark of a log tells how far that has
gone: pruning at checkpoint M leaves those of M and of `KEPT` checkpoints before, and only a commit
of M prunes. So absence is no proof about a checkpoint that lies further back (a decision log that
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
#: Checkpoints whose marks stay, behind the newest. Only the last decision is ever asked about.
KEPT: Final = 16


@dataclasses.dataclass(frozen=True, slots=True)
class CommitMarks:
    """The table of marks beside the target table; plain data, it travels to the tasks.

    Attributes:
        schema: where it stands: the schema of the target table.
    """

    schema: str

    @property
    def table(self) -> sql.Identifier:
        """Its name in SQL."""
        return sql.Identifier(self.schema, TABLE)

    def create(self, connection: Connection) -> None:
        """Make the table where it is missing. On the driver, at start."""
        if self._exists(connection):  # then the right to create one is not needed
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
        """Return which of the rights on the table the user does not have."""
        name = self.table.as_string(connection)
        rights = ("INSERT", "SELECT", "DELETE")
        query = "SELECT " + ", ".join(["has_table_privilege(%s, %s)"] * len(rights))
        row = connection.execute(query, [one for right in rights for one in (name, right)])
        held = row.fetchone() or ()
        return [right for right, has in zip(rights, held, strict=True) if not has]

    def write(self, connection: Connection, attempt: Attempt, token: str) -> None:
        """Write the mark of the transaction that is open on this connection. In a task."""
        owner = attempt.owner
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (application, log_id, checkpoint_id, subtask, token)"
                " VALUES (%s, %s, %s, %s, %s)"
            ).format(self.table),
            [owner.application_id, owner.log_id, attempt.checkpoint_id, attempt.subtask, token],
        )

    def proof(self, connection: Connection, one: Committable) -> Outcome:
        """Tell how a transaction ended that is not prepared any more. On the driver.

        It must have been looked for before: a statement that asks both could look at the marks
        first, and miss a commit in between.

        Returns:
            ALREADY_COMMITTED, ABORTED, or UNKNOWN when its mark may have been pruned.
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
        """Delete marks that nobody will ask for. On the driver, after a commit of `committed`."""
        # What fails here is deleted by the next commit.
        with contextlib.suppress(psycopg.Error), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")  # nobody waits for it
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
