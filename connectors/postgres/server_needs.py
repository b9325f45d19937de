"""What a server must offer before a row moves; the driver checks it at every start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from connectors.postgres.commit_marks import TABLE, CommitMarks
from connectors.postgres.connection import Connection, asking, place
from connectors.postgres.target_table import TargetTable, look_up
from transactions.clock import Deadline
from transactions.errors import AuthenticationError, ConfigurationError

_OLDEST_SERVER: Final = 12_00_00


def ready_table(name: str, conninfo: str, table: str, deadline: Deadline) -> TargetTable:
    """Check that the server can do everything that the protocol needs; return the target table. It
    creates the table of marks if it is missing.

    Args:
        name: of the sink.
        conninfo: the connection string.
        table: the target table, as in SQL.
        deadline: of all checks together.

    Raises:
        ConfigurationError, AuthenticationError, BrokerUnavailableError: see `PostgresSink.open`.
    """
    where = f"sink {name!r}, {place(conninfo)}"
    what = f"PostgreSQL cannot be prepared for the sink {name!r}."
    with asking(what, conninfo, deadline) as connection:
        _check_server(connection, where)
        found = look_up(connection, table, where)
        if not any(one.writable for one in found.columns):
            raise _missing_right(str(found), ["INSERT"], where)
        marks = CommitMarks(found.schema)
        marks.create(connection)
        if missing := marks.missing_rights(connection):
            raise _missing_right(f"{found.schema}.{TABLE}", missing, where)
        return found


def _check_server(connection: Connection, where: str) -> None:
    version = connection.info.server_version
    if version < _OLDEST_SERVER:
        raise ConfigurationError(
            "This PostgreSQL is too old for the sink.",
            where=where,
            cause=f"it needs version {_OLDEST_SERVER // 10_000} or newer",
            option=f"server_version_num={version}",
        )
    row = connection.execute("SELECT current_setting('max_prepared_transactions')").fetchone()
    if row is None or int(row[0]) == 0:
        raise ConfigurationError(
            "This PostgreSQL has no prepared transactions, and so no two-phase commit.",
            where=where,
            cause="they are switched off by default; a change needs a restart of the server",
            option="max_prepared_transactions=0 (postgresql.conf): at least two for each task",
        )


def _missing_right(table: str, rights: Sequence[str], where: str) -> AuthenticationError:
    return AuthenticationError(
        f"The user may not {', '.join(rights)} on {table}.",
        where=where,
        cause="a right is missing",
        option=f"GRANT {', '.join(rights)} ON {table} TO ...",
    )
