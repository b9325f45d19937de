"""The user's options of a PostgreSQL sink, parsed once and checked as a whole."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Final, Self

import pyarrow as pa

from connectors.options.option import NAME
from connectors.options.sink_table import POSTGRES_SINK
from connectors.postgres.copy_lines import check_types
from transactions.clock import Deadline
from transactions.errors import ConfigurationError
from transactions.sink import OpenSink, SinkContext

_START_S: Final = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSink:
    """A PostgreSQL table as the target of a branch, exactly once.

    Attributes:
        conninfo: libpq's connection string, as a URI or as keywords. Missing parts come from
            libpq's own places (PGPASSWORD, ~/.pgpass, a service file), which must then be the
            same on the driver and on every worker.
        table: target table, as in SQL: ``schema.table``, ``"Odd name"``; without a schema, the
            search path of the driver's session finds it, once.
        name: unique in the driver and the same at every restart; the table by default.
    """

    conninfo: str = dataclasses.field(repr=False)  # it may contain a password
    table: str
    name: str = ""

    def __post_init__(self) -> None:
        """Check every option; this asks no server.

        Raises:
            ConfigurationError: an option is wrong, or psycopg is not installed.
        """
        if not self.conninfo.strip():
            raise _wrong("A PostgreSQL sink needs a server.", "conninfo=(absent)")
        if not self.table.strip():
            raise _wrong("A PostgreSQL sink needs a table.", "table=(absent)")
        if not self.name:
            object.__setattr__(self, "name", re.sub(r"[^A-Za-z0-9_-]", "-", self.table))
        if not NAME.fullmatch(self.name):
            raise _wrong("A sink's name has letters, digits, _ and -.", f"name={self.name}")
        _server_of(self.conninfo)

    def identity(self) -> Mapping[str, str]:
        """Return what must be the same at every restart: the table and its database. Never the user
        or the password, which may change.
        """
        return {"kind": "postgres", "table": self.table, **_server_of(self.conninfo)}

    def check_columns(self, schema: pa.Schema) -> None:
        """Check that COPY can write every column's type; this asks no server. On the driver, when
        the branch is made; `PostgresWriter.check_columns` knows the table.

        Raises:
            ConfigurationError: COPY cannot; the text names the first such column.
        """
        check_types(schema, f"sink {self.name!r}, table {self.table}")

    def open(self, context: SinkContext) -> OpenSink:
        """See `Sink.open`. It checks everything that the protocol needs from the server, and
        creates the table of marks if it is missing.

        Raises:
            ConfigurationError: the server has no prepared transactions, or the table, a column or
                a right is missing.
            AuthenticationError: the server refused the user.
            BrokerUnavailableError: the server did not answer.
        """
        # Imported here: see _server_of.
        from connectors.postgres.commit_marks import CommitMarks  # noqa: PLC0415
        from connectors.postgres.postgres_writer import PostgresWriter  # noqa: PLC0415
        from connectors.postgres.prepared_committer import (  # noqa: PLC0415
            PreparedTransactionCommitter,
        )
        from connectors.postgres.server_needs import ready_table  # noqa: PLC0415

        timeout_s = context.task_timeout_s
        deadline = Deadline(min(timeout_s, _START_S))
        table = ready_table(self.name, self.conninfo, self.table, deadline)
        writer = PostgresWriter(
            name=self.name, conninfo=self.conninfo, table=table, checkpoint_timeout_s=timeout_s
        )
        if context.schema is not None:
            writer.check_columns(context.schema)
        committer = PreparedTransactionCommitter(
            name=self.name, conninfo=self.conninfo, marks=CommitMarks(table.schema)
        )
        return OpenSink(writer, committer)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Read the options of a job file or of Spark; their names are case-insensitive.

        Raises:
            ConfigurationError: an option is unknown or wrong.
        """
        given: dict[str, str] = {}
        for name, value in options.items():
            option = POSTGRES_SINK.find(name)
            if option is None:
                # Its value may be a connection string under a wrong name: never show it.
                raise ConfigurationError(
                    f"The PostgreSQL sink has no option {name!r}.",
                    where="sink options",
                    cause=POSTGRES_SINK.hint(name),
                    option=name,
                )
            given[option.name] = value
        return cls(
            conninfo=given.get("conninfo", ""),
            table=given.get("table", ""),
            name=given.get("name", ""),
        )


def _server_of(conninfo: str) -> dict[str, str]:
    # psycopg is an optional part of the package; these options must be importable without it.
    from connectors.postgres.connection import server_of  # noqa: PLC0415

    return server_of(conninfo)


def _wrong(what: str, option: str) -> ConfigurationError:
    return ConfigurationError(what, where="sink options", cause="a wrong option", option=option)
