"""PostgreSQL as a target: prepared transactions, or rows and mark in one of its own.

The write-ahead variants stand in modules that need psycopg: `PostgresCheckpointCommitter` in
`postgres_committer`, `PostgresWriteAheadSink` in `postgres_write_ahead_sink`.
"""

from connectors.postgres.postgres_sink import PostgresSink

__all__ = ["PostgresSink"]
