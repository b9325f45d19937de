"""A session with PostgreSQL that gives up at a deadline, and raises its refusals as our errors."""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from transactions.clock import Deadline
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ConfigurationError,
    SparkOnceError,
)

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import Conninfo
except ImportError as missing:
    raise ConfigurationError(
        "The PostgreSQL sink needs the package psycopg.",
        cause="it is an optional part: pip install '.[postgres]' in a clone of sparkonce",
        option="kind=postgres",
    ) from missing

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

#: A stopped server and a full disk recover; a refused password does not. libpq has no error code
#: for a refused connection, only the server's text, which is English unless lc_messages says
#: otherwise. A text that we do not recognise counts as "away" and is tried again.
_REFUSED_USER: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist"
    r"|not permitted to log in|permission denied for database"
)
_NO_DATABASE: Final = re.compile(r"database .* does not exist")
#: The server's own timeout comes first: it leaves a usable session.
_GRACE_S: Final = 0.5
_MOST_CONNECT_S: Final = 10


def server_of(conninfo: str) -> dict[str, str]:
    """Return host, port and dbname of a connection string, with libpq's defaults. No password.

    Raises:
        ConfigurationError: libpq cannot read it.
    """
    given = _parsed(conninfo)
    return {
        "host": given.get("host") or given.get("hostaddr") or "",
        "port": given.get("port") or "",
        "dbname": given.get("dbname") or given.get("user") or "",
    }


def place(conninfo: str) -> str:
    """Return the target of a connection string, for error texts. No password."""
    server = server_of(conninfo)
    user = _parsed(conninfo).get("user") or "(the process's user)"
    return f"{server['host']}:{server['port']}/{server['dbname']} as {user}"


def _parsed(conninfo: str) -> dict[str, str]:
    try:
        given = conninfo_to_dict(conninfo)
    except psycopg.Error:
        # libpq's text, and so the cause of this error, would repeat the string with its password.
        raise ConfigurationError(
            "The connection string of a PostgreSQL sink cannot be read.",
            where="sink options",
            cause="it is neither a URI (postgresql://user@host:5432/database) nor keywords "
            "(host=... dbname=...)",
            option="conninfo=(not shown)",
        ) from None
    defaults = {one.keyword.decode(): one.val for one in Conninfo.get_defaults()}
    known = {name: value.decode() for name, value in defaults.items() if value is not None}
    return {**known, **{name: str(value) for name, value in given.items()}}


def connect(conninfo: str, deadline: Deadline) -> Connection:
    """Connect; each statement is its own transaction until a BEGIN. In a task or on the driver.

    Raises:
        AuthenticationError: the server refused the user.
        ConfigurationError: the database does not exist.
        BrokerUnavailableError: no writable server answered before the deadline.
    """
    asked = _parsed(conninfo).get("connect_timeout", "")
    # A host that drops packets must not take a checkpoint's whole time from other sinks.
    seconds = min(max(1, math.ceil(deadline.remaining())), _MOST_CONNECT_S)
    if asked.isdigit() and int(asked):
        seconds = min(seconds, int(asked))
    try:
        return psycopg.connect(
            conninfo,
            autocommit=True,
            connect_timeout=seconds,
            client_encoding="utf8",
            fallback_application_name="sparkonce",
            # A standby does not show prepared transactions: they would look as if they were gone.
            target_session_attrs="primary",
        )
    except psycopg.Error as error:
        raise _unreachable(conninfo, error) from error


@contextlib.contextmanager
def connected(conninfo: str, deadline: Deadline) -> Iterator[Connection]:
    """Connect for one step of the driver, with one deadline for the whole step.

    Raises:
        SparkOnceError: see `connect`.
        psycopg.Error: the error of a statement; `OperationalError` when the deadline passed.
    """
    connection = connect(conninfo, deadline)
    with contextlib.closing(connection), limited(connection, deadline):
        yield connection


@contextlib.contextmanager
def asking(what: str, conninfo: str, deadline: Deadline) -> Iterator[Connection]:
    """Connect for one question, with one deadline for the whole of it.

    Args:
        what: what fails if it gets no answer, as one sentence.
        conninfo: the connection string.
        deadline: of the question.

    Raises:
        SparkOnceError: see `connect` and `driver_error`.
    """
    try:
        with connected(conninfo, deadline) as connection:
            yield connection
    except psycopg.Error as error:
        raise driver_error(what, conninfo, error) from error


@contextlib.contextmanager
def limited(connection: Connection, deadline: Deadline) -> Iterator[None]:
    """End every statement in this block at the deadline. The server cancels it
    (`statement_timeout`); if a frozen server or a lost network does not, we cut the connection.
    """
    lock, over = threading.Lock(), False

    def cut() -> None:
        with lock, contextlib.suppress(OSError, psycopg.Error):
            if not over:
                with socket.socket(fileno=os.dup(connection.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(deadline.remaining() + _GRACE_S, cut)
    timer.daemon = True
    timer.start()
    try:
        set_statement_timeout(connection, max(1, int(deadline.remaining() * 1000)))
        yield
    finally:
        timer.cancel()
        with lock:
            over = True


def set_statement_timeout(connection: Connection, milliseconds: int) -> None:
    """Set after which time the server cancels a statement; 0 for never."""
    connection.execute("SELECT set_config('statement_timeout', %s, false)", [str(milliseconds)])


def said(error: psycopg.Error) -> str:
    """Return PostgreSQL's error text, in one line."""
    return " ".join(str(error).split())


def driver_error(what: str, conninfo: str, error: psycopg.Error) -> SparkOnceError:
    """Return the error for a question of the driver that got no answer.

    Args:
        what: what failed, as one sentence.
        conninfo: the connection string; it is not shown.
        error: PostgreSQL's or libpq's error.
    """
    state = error.sqlstate or ""
    kind: type[SparkOnceError] = BrokerUnavailableError
    if state.startswith(("28", "42501")):
        kind = AuthenticationError
    elif state.startswith(("42", "0A", "3D", "3F")):
        kind = ConfigurationError
    return kind(what, where=place(conninfo), cause=said(error), option="conninfo")


def _unreachable(conninfo: str, error: psycopg.Error) -> SparkOnceError:
    text = said(error)
    if _REFUSED_USER.search(text):
        return AuthenticationError(
            "PostgreSQL refused the user of the sink.",
            where=place(conninfo),
            cause=text,
            option="conninfo: user, password; pg_hba.conf of the server",
        )
    if _NO_DATABASE.search(text):
        return ConfigurationError(
            "The database of the sink does not exist.",
            where=place(conninfo),
            cause=text,
            option="conninfo: dbname",
        )
    return BrokerUnavailableError(
        "PostgreSQL does not answer.", where=place(conninfo), cause=text, option="conninfo"
    )
