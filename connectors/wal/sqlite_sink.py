"""SQLiteWriteAheadSink: rows and mark in one transaction, so no window for duplicates remains.

It shows what any database can do if it keeps the marks beside the rows: the committer's
`transaction` encloses both, and `send_values` writes over the committer's connection.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from connectors.wal.sqlite_committer import SQLiteCheckpointCommitter
from connectors.wal.table_sink import TableWriteAheadSink
from transactions.errors import ConfigurationError, RecordRefusedError

_TAKEN: Final = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_null,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SQLiteWriteAheadSink(TableWriteAheadSink):
    """Inserts the rows into a table of the committer's database: exactly-once.

    Attributes:
        committer: its database is the target.
        table: the table of the rows; it exists, and has the frame's columns by name.

    Raises:
        ConfigurationError: an option is wrong.
    """

    database = "an SQLite"
    committer_kind = SQLiteCheckpointCommitter

    committer: SQLiteCheckpointCommitter

    def check_columns(self, schema: pa.Schema) -> None:
        """See `WriteAheadSink.check_columns`: numbers, text and bytes. SQLite stores NaN as
        NULL.
        """
        for field in schema:
            if not any(takes(field.type) for takes in _TAKEN):
                raise ConfigurationError(
                    f"SQLite has no column for the type {field.type}.",
                    where=f"sink {self.name!r}, column {field.name!r}",
                    cause="SQLite stores numbers, text and bytes",
                    option=f"table={self.table}: cast the column in the frame",
                )

    def send_values(
        self,
        records: Iterator[pa.RecordBatch],
        *,
        checkpoint_id: int,  # noqa: ARG002
        subtask: int,  # noqa: ARG002
        timestamp_ms: int,  # noqa: ARG002
    ) -> bool:
        """See `WriteAheadSink.send_values`; visible when the surrounding transaction commits.

        Raises:
            RecordRefusedError: the table will never take a row.
            sqlite3.Error: the database is locked, or failed.
        """
        connection = self.committer.connection
        for batch in records:
            names = ", ".join(_quoted(name) for name in batch.schema.names)
            places = ", ".join("?" * batch.num_columns)
            insert = f"INSERT INTO {_quoted(self.table)} ({names}) VALUES ({places})"  # noqa: S608
            try:
                connection.executemany(insert, _rows(batch))
            except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
                raise RecordRefusedError(
                    "The table refused a row of a decided checkpoint.",
                    where=f"sink {self.name!r}, table {self.table}",
                    cause=str(error),
                    option="change the table so that it accepts the row, and start again",
                ) from error
        return True


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
