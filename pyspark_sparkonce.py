"""Lets PySpark find the source `kafka-exactly-once`; nobody else imports this file.

PySpark imports each installed module whose name begins with `pyspark_`, and registers its
`DefaultSource` (`pyspark/sql/worker/lookup_data_sources.py`). So the file lies at the top level.
"""

from connectors.spark.data_source import KafkaExactlyOnceSource as DefaultSource

__all__ = ["DefaultSource"]
