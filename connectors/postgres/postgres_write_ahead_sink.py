"""PostgresWriteAheadSink: one transaction for rows and mark, and no prepared transactions.

It does the work of `PostgresSink` on a server without prepared transactions
(`max_prepared_transactions = 0`, most managed ones): the records wait in the sink's own buffer, and
reach the database after the decision of their checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import psycopg
import pyarrow as pa
from psycopg import errors

from connectors.postgres.connection import Connection, connected, limited, said
from connectors.postgres.copy_lines import check_types, copy_lines, payload
from connectors.postgres.postgres_committer import PostgresCheckpointCommitter
from connectors.postgres.target_table import look_up
from connectors.wal.table_sink import TableWriteAheadSink
from transactions.clock import Deadline
from transactions.errors import BrokerUnavailableError, RecordRefusedError
from transactions.sink import OpenSink, SinkContext


@dataclasses.dataclass(frozen=True, kw_only=True)
class PostgresWriteAheadSink(TableWriteAheadSink):
    """Copies the rows into a table of the committer's database: exactly-once.

    Attributes:
        committer: its database is the target.
        table: the table of the rows, as in SQL; it exists, and has the frame's columns by name.
        timeout_s: how long the server may take for one batch of a buffer.

    Raises:
        ConfigurationError: an option is wrong.
    """

    database = "a PostgreSQL"
    committer_kind = PostgresCheckpointCommitter

    committer: PostgresCheckpointCommitter
    timeout_s: float = 60.0

    def check_columns(self, schema: pa.Schema) -> None:
        """See `WriteAheadSink.check_columns`; COPY must be able to write them."""
        check_types(schema, f"sink {self.name!r}, table {self.table}")

    def open(self, context: SinkContext) -> OpenSink:
        """See `WriteAheadSink.open`; it checks the table before any data moves.

        Raises:
            ConfigurationError: the table is missing, or the rows do not fit into it.
            BrokerUnavailableError: the server did not answer.
        """
        with connected(self.committer.conninfo, Deadline(self.timeout_s)) as connection:
            where = f"sink {self.name!r}"
            target = look_up(connection, self.table, where)
            if context.schema is not None:
                target.check_columns(context.schema, where)
        return super().open(context)

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
            ConfigurationError: the table is missing, or the rows do not fit into it.
            RecordRefusedError: the table will never take a row.
            BrokerUnavailableError: the server took too long.
            psycopg.Error: the server is gone, or failed.
        """
        connection = self.committer.connection
        where = f"sink {self.name!r}"
        with self._refusals():
            with self._limited(connection):
                target = look_up(connection, self.table, where)
            for batch in records:
                target.check_columns(batch.schema, where)
                with (
                    self._limited(connection),
                    connection.cursor() as cursor,
                    cursor.copy(target.copy_into(batch.schema)) as sending,
                ):
                    for lines in copy_lines(batch):
                        sending.write(payload(lines))
            with self._limited(connection):
                # A refusal at COMMIT would look like a commit whose answer is lost.
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return True

    def _limited(self, connection: Connection) -> contextlib.AbstractContextManager[None]:
        return limited(connection, Deadline(self.timeout_s))

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Raise a permanent refusal and a timeout as our errors; leave others, which may pass."""
        try:
            yield
        except errors.QueryCanceled as error:
            raise BrokerUnavailableError(
                "PostgreSQL did not take the rows of a decided checkpoint.",
                where=f"sink {self.name!r}, table {self.table}",
                cause=said(error),
                option=f"timeout_s={self.timeout_s:g}, for each batch",
            ) from error
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise RecordRefusedError(
                "The table refused a row of a decided checkpoint.",
                where=f"sink {self.name!r}, table {self.table}",
                cause=said(error),
                option="change the table so that it accepts the row, and start again",
            ) from error
