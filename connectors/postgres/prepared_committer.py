"""The PostgreSQL sink's half on the driver: it ends transactions that tasks have prepared.

It needs nothing of those tasks: a prepared transaction belongs to the server. Each step is a
session of its own.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import errors

from connectors.postgres.commit_marks import CommitMarks
from connectors.postgres.connection import (
    Connection,
    asking,
    connected,
    driver_error,
    place,
    set_statement_timeout,
)
from connectors.postgres.prepared_id import (
    Busy,
    Gone,
    owner_of,
    prepared_among,
    prepared_by,
    roll_back,
    run_of,
    statement,
)
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import AuthenticationError, BrokerUnavailableError, PhaseOneError
from transactions.sink import Owner

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransactionCommitter:
    """Commits prepared transactions and proves how they ended, or rolls them back.

    Attributes:
        name: see `Committer.name`.
        conninfo: the connection string.
        marks: of the transactions that have ended.
    """

    name: str
    conninfo: str = dataclasses.field(repr=False)  # it may contain a password
    marks: CommitMarks

    def check_prepared(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> list[Committable]:
        """See `Committer.check_prepared`: each is in `pg_prepared_xacts`, and this user may commit
        it. The server itself checks the user only at COMMIT PREPARED, after the decision.

        Raises:
            AuthenticationError: he may not. No retry: it would leave more that no sweep may end.
        """
        what = "PostgreSQL could not be searched for prepared transactions."
        with asking(what, self.conninfo, deadline) as connection:
            found = prepared_among(connection, [one.transactional_id for one in committables])
        for one in committables:
            where = f"checkpoint {one.checkpoint_id}, subtask {one.subtask}, {one.transactional_id}"
            roles = found.get(one.transactional_id)
            if roles is None:
                raise PhaseOneError(
                    "A prepared transaction is gone.",
                    where=where,
                    cause="an operator ended it, or the driver reached another server than the "
                    "task",
                    option=f"conninfo: {place(self.conninfo)}",
                )
            if not roles.may_end:
                raise AuthenticationError(
                    "The driver's user may not commit a prepared transaction.",
                    where=where,
                    cause=f"the task was the role {roles.owner!r}, the driver is {roles.user!r}; "
                    "only the role that prepared it, or a superuser, may end it",
                    option=f"conninfo: {place(self.conninfo)}; give a user, because without one "
                    "each process takes its own (PGUSER, a service file, the user of its operating "
                    f"system). What is left holds its locks: a start as {roles.owner!r} rolls it "
                    f"back. Or connect as {roles.owner!r}, and "
                    f"ROLLBACK PREPARED '{one.transactional_id}', and each other gid in "
                    f"pg_prepared_xacts that begins with '{run_of(one.transactional_id)}'",
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
        """See `Committer.recover_and_commit`: prepared transactions are committed; for the others,
        the mark shows how they ended (see `CommitMarks`).

        Raises:
            AuthenticationError: the server refuses this commit for this user.
        """
        return self._commit(committables, deadline, look_first=True)

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:
        """See `Committer.lingering`: it covers all PostgreSQL sinks of the log in this database,
        because a name does not say which sink wrote it.
        """
        what = "Prepared transactions could not be listed."
        with asking(what, self.conninfo, deadline) as connection:
            return prepared_by(connection, owner)

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:
        """See `Committer.recover_and_abort`: ROLLBACK PREPARED. No writer needs a fence: a task can
        do nothing more with a prepared transaction.

        Raises:
            AuthenticationError: another user prepared it.
            BrokerUnavailableError: some could not be ended before the deadline.
        """
        roll_back(self.conninfo, transaction_ids, deadline)

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `Committer.hidden`: every committed row is visible."""
        return []

    def retired(self) -> frozenset[str]:
        """See `Committer.retired`: no name is ever used twice."""
        return frozenset()

    def close(self) -> None:
        """Do nothing: each step has a session of its own."""

    def _commit(
        self, committables: Sequence[Committable], deadline: Deadline, *, look_first: bool
    ) -> dict[str, Outcome]:
        outcomes = dict.fromkeys((one.token for one in committables), Outcome.UNKNOWN)
        try:
            with connected(self.conninfo, deadline) as connection:
                gids = [one.transactional_id for one in committables]
                open_ones = frozenset(prepared_among(connection, gids) if look_first else gids)
                # A timeout would end the wait for a standby, and the server would answer success.
                set_statement_timeout(connection, 0)
                for one in committables:
                    if deadline.expired():
                        break
                    if one.transactional_id in open_ones:
                        outcomes[one.token] = self._commit_one(connection, one)
                    else:
                        outcomes[one.token] = self.marks.proof(connection, one)
                self._prune(connection, committables, outcomes)
        except errors.InsufficientPrivilege as error:
            what = "This user has no right to commit a decided transaction."
            raise driver_error(what, self.conninfo, error) from error
        except (psycopg.Error, BrokerUnavailableError) as error:
            logger.warning("sink %s: the outcome of a commit is unknown: %s", self.name, error)
        return outcomes

    def _commit_one(self, connection: Connection, one: Committable) -> Outcome:
        try:
            connection.execute(statement("COMMIT PREPARED", one.transactional_id))
        except Gone:
            return self.marks.proof(connection, one)
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
                self.marks.prune(connection, owner, one.checkpoint_id)
                return
