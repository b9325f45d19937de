"""Exactly-once Kafka connectors for Spark.

`KafkaSource` and `KafkaSink` say what to read and write; `connectors.spark` runs it on Spark. Each
folder's content is named in README.md beside this file; the protocol itself is in `transactions`.
"""

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.options.kafka_source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource"]
