"""Every Python process of a local Spark imports the PySpark that is installed, not Spark's zip."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tests.tiers import long


@long  # `unit/test_spark_home.py` makes the folder in `make test`
@pytest.mark.skipif("SPARK_HOME" in os.environ, reason="a SPARK_HOME of yours is used")
def test_planners_and_workers_import_what_is_installed(spark: SparkSession):
    class WhereFrom(DataSource):
        @classmethod
        def name(cls) -> str:
            return "where-from"

        def schema(self) -> str:
            return "planned string, read string"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            import pyspark

            return [InputPartition(pyspark.__file__)]

        def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
            import pyspark

            yield partition.value, pyspark.__file__

    spark.dataSource.register(WhereFrom)
    (row,) = spark.read.format("where-from").load().collect()
    assert {Path(row.planned), Path(row.read)} == {Path(pyspark.__file__)}
