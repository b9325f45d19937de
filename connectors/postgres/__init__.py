"""PostgreSQL as a target: rows of a checkpoint in transactions that another process can commit."""

from connectors.postgres.postgres_sink import PostgresSink

__all__ = ["PostgresSink"]
