"""The target table as the server knows it, and the rows that fit into it."""

from __future__ import annotations

import dataclasses
from typing import Final

import pyarrow as pa
from psycopg import sql

from connectors.postgres.connection import Connection
from connectors.postgres.copy_lines import sql_types, takes
from transactions.errors import ConfigurationError

_RELATION: Final = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       row_security_active(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
# A domain reads and refuses the same values as its base type.
_COLUMNS: Final = """
SELECT a.attname, format_type(b.oid, NULL), b.typcategory::text, a.attgenerated <> '',
       has_column_privilege(a.attrelid, a.attnum, 'INSERT'),
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
     JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclasses.dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of the target.

    Attributes:
        name: as in the catalogue.
        sql_type: by `format_type`; for a domain its base type.
        category: PostgreSQL's `typcategory`.
        generated: its value is computed, never written.
        writable: the user may INSERT into it.
        required: a row without it is refused.
    """

    name: str
    sql_type: str
    category: str
    generated: bool
    writable: bool
    required: bool


@dataclasses.dataclass(frozen=True, slots=True)
class TargetTable:
    """A table that was found; plain data, it travels to the tasks.

    Attributes:
        schema: the schema that contains it.
        name: without the schema.
        columns: in the table's order.
        given: how the sink's options name it.
    """

    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    given: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def copy_into(self, schema: pa.Schema) -> sql.Composed:
        """Return the COPY statement for the `copy_lines` of a batch."""
        return sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(self.schema, self.name),
            sql.SQL(", ").join(sql.Identifier(name) for name in schema.names),
        )

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Check that rows of a schema fit into the table.

        Raises:
            ConfigurationError: a column is missing, generated, not writable for us, of another
                type, or required and not given.
        """
        columns = {one.name: one for one in self.columns}
        for field in schema:
            if field.name not in columns:
                raise ConfigurationError(
                    f"The table has no column {field.name!r}.",
                    where=f"{where}, table {self}",
                    cause=f"it has {', '.join(columns)}",
                    option=f"{field.name}: {field.type}",
                )
            if problem := _misfit(columns[field.name], field.type):
                raise ConfigurationError(
                    f"The column {field.name!r} cannot be written into the table: {problem}.",
                    where=f"{where}, table {self}, column of type {columns[field.name].sql_type}",
                    cause="the rows and the table do not fit; cast the column, or alter the table",
                    option=f"{field.name}: {field.type}",
                )
        if absent := [
            one.name for one in self.columns if one.required and one.name not in schema.names
        ]:
            raise ConfigurationError(
                f"The table needs the column {absent[0]!r}, and the rows do not have it.",
                where=f"{where}, table {self}",
                cause="it is NOT NULL and has no default",
                option=f"columns={', '.join(schema.names)}",
            )


def _misfit(column: TableColumn, arrow_type: pa.DataType) -> str:
    if column.generated:
        return "its values are generated"
    if not column.writable:
        return "the user has no INSERT right on it"
    if not takes(column.sql_type, column.category, arrow_type):
        return f"{arrow_type} goes into {', '.join(sql_types(arrow_type)) or 'nothing'}"
    return ""


def look_up(connection: Connection, table: str, where: str) -> TargetTable:
    """Find the target table, by SQL's own rules for names. On the driver, at start.

    Raises:
        ConfigurationError: it is missing, or a prepared transaction's rows would not last in it.
    """
    row = connection.execute(_RELATION, [table]).fetchone()
    if row is None:
        raise ConfigurationError(
            "The table of the sink does not exist.",
            where=where,
            cause="it was never created, its schema is not in search_path or the user may not use "
            "it, or its name needs quotes",
            option=f"table={table}",
        )
    oid, schema, name, kind, persistence, filtered = row
    problem = ""
    if kind not in ("r", "p"):
        problem = "it is not a table: writes to a view or foreign table cannot be prepared"
    elif persistence != "p":
        problem = "it is unlogged or temporary: a crash of the server would empty it"
    elif filtered:
        problem = "row-level security is active for this user: COPY does not work with it"
    if problem:
        raise ConfigurationError(
            "The table of the sink cannot store rows exactly once.",
            where=where,
            cause=problem,
            option=f"table={table}",
        )
    rows = connection.execute(_COLUMNS, [oid])
    return TargetTable(schema, name, tuple(TableColumn(*one) for one in rows), table)
