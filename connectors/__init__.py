"""Exactly-once Kafka connectors for Spark.

`KafkaSource` and `KafkaSink` say what to read and write; `connectors.spark` runs it on Spark. Each
folder's content is named in README.md beside this file; the protocol itself is in `transactions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from transactions.log_location import add_scheme

if TYPE_CHECKING:
    from connectors.kafka.sink.kafka_sink import KafkaSink
    from connectors.options.kafka_source import KafkaSource
    from transactions.log_backend import LogBackend

__all__ = ["KafkaSink", "KafkaSource"]

_MODULES = {
    "KafkaSink": "connectors.kafka.sink.kafka_sink",
    "KafkaSource": "connectors.options.kafka_source",
}


def __getattr__(name: str) -> Any:
    """Import on first use: a process of Spark that looks at options loads no client of Kafka."""
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(import_module(_MODULES[name]), name)


def _hdfs(url: str, options: Mapping[str, str | float]) -> LogBackend:
    """Import on first use: it needs the classes of PySpark."""
    from connectors.spark.hdfs_backend import HdfsBackend  # noqa: PLC0415

    return HdfsBackend(url, options)


add_scheme("hdfs", _hdfs)
