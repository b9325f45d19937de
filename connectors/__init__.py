"""Exactly-once Kafka connectors for Spark.

`KafkaSource` and `KafkaSink` say what to read and write; `connectors.spark` runs it on Spark. Each
folder's content is named in README.md beside this file; the protocol itself is in `transactions`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connectors.kafka.sink.kafka_sink import KafkaSink
    from connectors.options.kafka_source import KafkaSource

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
