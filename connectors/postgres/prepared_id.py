"""Names of our prepared transactions: which of them the server still holds, and their rollback.

A name is ``<application>.<log id>.<run epoch>.<random>.<subtask>``. An application id has no dot,
so its end is certain. The run epoch says which sweep may end the transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from psycopg import errors, sql

from connectors.postgres.connection import Connection, asking
from transactions.clock import Deadline
from transactions.errors import ConfigurationError
from transactions.sink import Owner

#: PostgreSQL's GIDSIZE is 200, including the zero byte.
MOST_BYTES: Final = 199
#: Another session is ending the same transaction.
Busy = errors.ObjectNotInPrerequisiteState
Gone = errors.UndefinedObject
#: What is prepared in this database (the view shows that of all databases, and a transaction can be
#: ended only in its own), and whether this user may end it, by the server's own condition. One text
#: for both questions: the sweep must find everything whose commit the check accepts.
_PREPARED: Final = (
    "SELECT gid, owner, current_user, owner = current_user"
    " OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)"
    " FROM pg_prepared_xacts WHERE database = current_database()"
)


def new_id(owner: Owner, subtask: int) -> str:
    """Return a name that no other attempt ever has.

    Raises:
        ConfigurationError: PostgreSQL would refuse it.
    """
    gid = (
        f"{owner.application_id}.{owner.log_id}.{owner.run_epoch}.{secrets.token_hex(8)}.{subtask}"
    )
    if len(gid.encode()) > MOST_BYTES:
        raise ConfigurationError(
            f"The name of a prepared transaction may have {MOST_BYTES} bytes.",
            where=gid,
            cause="the application id is too long",
            option=f"app_id={owner.application_id}",
        )
    return gid


def owner_of(gid: str) -> Owner:
    """Return the owner of a transaction, from a name that `new_id` made."""
    application, log_id, epoch, _, _ = gid.split(".")
    return Owner(application_id=application, log_id=log_id, run_epoch=int(epoch))


def run_of(gid: str) -> str:
    """Return how the names of all transactions of its run begin."""
    return f"{gid.rsplit('.', 2)[0]}."


class Roles(NamedTuple):
    """Who is concerned with one prepared transaction.

    Attributes:
        owner: the role that prepared it.
        user: the role of the session that asks.
        may_end: whether `user` may commit it and roll it back.
    """

    owner: str
    user: str
    may_end: bool


def prepared_among(connection: Connection, gids: Sequence[str]) -> dict[str, Roles]:
    """Return which of the names are prepared in this database."""
    rows = connection.execute(_PREPARED + " AND gid = ANY(%s)", [list(gids)])
    return {str(gid): Roles(str(owner), str(user), bool(may)) for gid, owner, user, may in rows}


def prepared_by(connection: Connection, owner: Owner) -> list[str]:
    """Return the prepared transactions of exactly this application and log, of its run or an older
    one, that this user may end. The others are perhaps of another sink of the log.
    """
    begin = f"{owner.application_id}.{owner.log_id}."
    rows = connection.execute(_PREPARED + " AND starts_with(gid, %s) ORDER BY gid", [begin])
    mine = [str(gid) for gid, _, _, may_end in rows if may_end]
    return [gid for gid in mine if _is_of_run(gid.removeprefix(begin), owner)]


def _is_of_run(rest: str, owner: Owner) -> bool:
    parts = rest.split(".")
    return len(parts) == 3 and parts[0].isdigit() and int(parts[0]) <= owner.run_epoch


def statement(command: str, gid: str) -> sql.Composed:
    """Return PREPARE TRANSACTION, COMMIT PREPARED or ROLLBACK PREPARED of a name."""
    return sql.SQL("{} {}").format(sql.SQL(command), sql.Literal(gid))


def roll_back(conninfo: str, gids: Sequence[str], deadline: Deadline) -> None:
    """End prepared transactions by ROLLBACK PREPARED. One that has ended is passed over.

    Raises:
        AuthenticationError: another user prepared it.
        BrokerUnavailableError: some could not be ended before the deadline.
    """
    what = "Prepared transactions could not be ended."
    with asking(what, conninfo, deadline) as connection:
        for gid in gids:
            while True:
                try:
                    connection.execute(statement("ROLLBACK PREPARED", gid))
                except Gone:
                    pass  # it has ended; if it was decided, its mark shows how
                except Busy:
                    if deadline.expired():
                        raise
                    deadline.pause(0.1)
                    continue
                break
