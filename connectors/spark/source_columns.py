"""The columns of the source `kafka-exactly-once` in Spark's types, as Spark's own source has them.

The same as `connectors.records.message_schema` says in Arrow's types; this module loads no Arrow.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

#: Option of the data source, not for users: hand on the ranges of a batch, not their records.
RANGES_OPTION: Final = "sparkonce.ranges"

#: A row of the source without headers.
COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
#: With `includeHeaders=true` the last column.
HEADERS: Final = StructField("headers", ArrayType(_HEADER))
#: One row per range, as JSON; see `connectors.spark.range_rows`.
RANGES: Final = (StructField("range", StringType()),)
