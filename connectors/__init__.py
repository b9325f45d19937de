"""Exactly-once Kafka connectors for Spark.

`connectors` says what to read and write, `connectors.kafka` talks to Kafka, `connectors.spark`
runs it on Spark; the protocol itself is in `transactions`.
"""

from connectors.options.kafka_sink import KafkaSink
from connectors.options.kafka_source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource"]
