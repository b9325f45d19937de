"""Spark adapters: the session, the streaming driver and the data source `kafka-exactly-once`."""

from connectors.spark.data_source import register
from connectors.spark.session import build_session
from connectors.spark.streaming_driver import StreamingDriver

__all__ = ["StreamingDriver", "build_session", "register"]
