"""What the tests of parity share: reads as a user of Spark's own source writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from connectors.spark.data_source import NAME


@pytest.fixture
def source(spark: SparkSession, bootstrap: str) -> Callable[..., DataFrame]:
    """Read as a user of Spark's own source does, but for the one word."""

    def load(*, stream: bool, **options: object) -> DataFrame:
        reader = spark.readStream if stream else spark.read
        given = {name: str(value) for name, value in options.items()}
        return (
            reader.format(NAME).option("kafka.bootstrap.servers", bootstrap).options(**given).load()
        )

    return load


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """The checkpoint of a query."""
    return str(tmp_path / "checkpoint")
