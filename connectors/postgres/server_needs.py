"""What a server must offer before a row moves; the driver checks it at every start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg

from connectors.postgres.commit_marks import TABLE, CommitMarks
from connectors.postgres.connection import Connection, connected, driver_error, place
from connectors.postgres.postgres_sink import PostgresSink
from connectors.postgres.target_table import TargetTable, look_up
from transactions.clock import Deadline
from transactions.errors import AuthenticationError, ConfigurationError

_OLDEST_SERVER: Final = 12_00_00


def ready_table(options: PostgresSink, deadline: Deadline) -> TargetTable:
    """Check that the server can do everything that the protocol needs; return the target table. It
    creates the table of marks if it is missing.

    Raises:
        ConfigurationError, AuthenticationError, BrokerUnavailableError: see
            `PostgresSink.open_sink`.
    """
    where = f"sink {options.name!r}, {place(options.conninfo)}"
    try:
        with connected(options.conninfo, deadline) as connection:
            _check_server(connection, where)
            table = look_up(connection, options.table, where)
            if not any(one.writable for one in table.columns):
                raise _missing_right(str(table), ["INSERT"], where)
            marks = CommitMarks(table.schema)
            marks.create(connection)
            if missing := marks.missing_rights(connection):
                raise _missing_right(f"{table.schema}.{TABLE}", missing, where)
            return table
    except psycopg.Error as error:
        what = f"PostgreSQL cannot be prepared for the sink {options.name!r}."
        raise driver_error(what, options.conninfo, error) from error


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
