"""Names of our prepared transactions, and which of them the server still holds.

A name is ``<application>.<log id>.<run epoch>.<random>.<subtask>``: an application id has no dot,
so that its end is certain, and the run epoch tells whose sweep may end it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from psycopg import sql

from connectors.postgres.connection import Connection
from transactions.errors import ConfigurationError
from transactions.sink import Owner

#: PostgreSQL's GIDSIZE is 200 with the zero byte.
MOST_BYTES: Final = 199


def new_id(owner: Owner, subtask: int) -> str:
    """Return a name that no other attempt will ever have.

    Raises:
        ConfigurationError: PostgreSQL would not take it.
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
    """Return whose transaction it is, from a name that `new_id` made."""
    application, log_id, epoch, _, _ = gid.split(".")
    return Owner(application_id=application, log_id=log_id, run_epoch=int(epoch))


def prepared_among(connection: Connection, gids: Sequence[str]) -> frozenset[str]:
    """Return which of the names are prepared in this database."""
    rows = connection.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid = ANY(%s)",
        [list(gids)],
    )
    return frozenset(str(gid) for (gid,) in rows)


def prepared_by(connection: Connection, owner: Owner) -> list[str]:
    """Return what is prepared for exactly this application and log, by its run or an older one,
    and by this user: another one's, of another sink of the log perhaps, is not ours to end.
    """
    begin = f"{owner.application_id}.{owner.log_id}."
    rows = connection.execute(
        # Only in its own database can a transaction be ended; the view shows those of all.
        "SELECT gid FROM pg_prepared_xacts"
        " WHERE database = current_database() AND owner = current_user"
        " AND starts_with(gid, %s) ORDER BY gid",
        [begin],
    )
    return [str(gid) for (gid,) in rows if _is_of_run(str(gid).removeprefix(begin), owner)]


def _is_of_run(rest: str, owner: Owner) -> bool:
    parts = rest.split(".")
    return len(parts) == 3 and parts[0].isdigit() and int(parts[0]) <= owner.run_epoch


def statement(command: str, gid: str) -> sql.Composed:
    """Return PREPARE TRANSACTION, COMMIT PREPARED or ROLLBACK PREPARED of a name."""
    return sql.SQL("{} {}").format(sql.SQL(command), sql.Literal(gid))
