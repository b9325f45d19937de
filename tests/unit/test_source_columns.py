"""The columns of the data source: in Spark's types where Spark asks, in Arrow's where rows come."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from connectors.records.message_schema import SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS
from connectors.spark.data_source import KafkaExactlyOnceSource
from connectors.spark.range_rows import RANGES_SCHEMA
from connectors.spark.source_columns import RANGES_OPTION

OPTIONS = {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "in"}


@pytest.mark.parametrize(
    ("more", "rows"),
    [
        ({}, SOURCE_SCHEMA),
        ({"includeHeaders": "true"}, SOURCE_SCHEMA_WITH_HEADERS),
        ({RANGES_OPTION: "true"}, RANGES_SCHEMA),
    ],
)
def test_spark_is_told_what_the_rows_are(more, rows):
    """Else it fails deep inside the JVM, at the first row."""
    assert KafkaExactlyOnceSource({**OPTIONS, **more}).schema() == from_arrow_schema(rows)


def test_a_look_at_the_columns_loads_no_arrow_and_no_client():
    """Spark starts a process for each look, before the first batch of a query: 0.5 s each."""
    look = (
        "import sys, pyspark_sparkonce as found\n"
        f"found.DefaultSource({OPTIONS}).schema()\n"
        "print(*sorted({'pyarrow', 'numpy', 'confluent_kafka', 'http.client'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
