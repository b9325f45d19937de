"""Exactly-once Kafka connectors for Spark.

`connectors` says what to read and write, `connectors.kafka` talks to Kafka, `connectors.spark`
runs it on Spark; the protocol itself is in `transactions`.
"""

from connectors.options import KafkaSource
from connectors.sink_options import KafkaSink

__all__ = ["KafkaSink", "KafkaSource"]
