"""PostgreSQL as a target: prepared transactions, or one transaction for rows and mark.

The write-ahead variants are in modules that need psycopg: `PostgresCheckpointCommitter` in
`postgres_committer`, `PostgresWriteAheadSink` in `postgres_write_ahead_sink`.
"""

from connectors.postgres.postgres_sink import PostgresSink

__all__ = ["PostgresSink"]
