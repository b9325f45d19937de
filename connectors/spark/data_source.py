"""The data source `kafka-exactly-once`, for reads and writes of streams and batches; no logic here.

Options, columns and types are those of Spark's own Kafka source and sink. The stream reader runs in
a process of its own beside the driver; `read` and `write` run in Spark's Python workers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from connectors.options.java_settings import tell_elsewhere
from connectors.options.kafka_source import PLACE, KafkaSource
from connectors.spark.batch_size import SIZE_FILE_OPTION
from connectors.spark.source_columns import COLUMNS, HEADERS, RANGES, RANGES_OPTION
from connectors.spark.start_file import START_FILE_OPTION
from connectors.spark.worker_daemon import keep_quiet
from transactions.errors import ConfigurationError

NAME = "kafka-exactly-once"

keep_quiet()  # each process that Spark makes for the source, or a sink, loads this module


def register(spark: SparkSession) -> None:
    """Make the data source known to a session; a second call is harmless.

    PySpark finds the source of an installed package by itself (`pyspark_sparkonce.py`).
    """
    spark.dataSource.register(KafkaExactlyOnceSource)


def _loaded(module: str) -> Any:
    """Import what reads, or writes. Spark makes the data source in several processes, one after the
    other, and each loads only what it is asked for (0.4 s of CPU).

    Raises:
        ConfigurationError: a package that it needs is not installed there.
    """
    try:
        return import_module(f"connectors.spark.{module}")
    except ImportError as error:
        raise ConfigurationError(
            f"{NAME} cannot be imported where Spark plans a query.",
            where=sys.executable,
            cause=str(error),
            option="the installation of sparkonce in this Python",
        ) from error


class KafkaExactlyOnceSource(DataSource):  # type: ignore[misc]
    """The data source; see the module."""

    _is_copy = False

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return NAME

    def schema(self) -> StructType:
        """Return Spark's Kafka columns; called first, so all options are checked here."""
        source = self._source(is_first=START_FILE_OPTION not in self.options)
        if self._gives_ranges():
            return StructType([*RANGES])
        return StructType([*COLUMNS, HEADERS] if source.include_headers else [*COLUMNS])

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return the batch reader."""
        readers, source = _loaded("source_readers"), self._source()
        source.check_batch()
        return readers.KafkaBatchReader(source)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the stream reader."""
        readers, source = _loaded("source_readers"), self._source()
        source.check_stream()
        files = self._file(START_FILE_OPTION), self._file(SIZE_FILE_OPTION)
        return readers.KafkaStreamReader(source, *files, gives_ranges=self._gives_ranges())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        """Return the writer of a streaming query: where Spark plans a batch, with the plan of its
        tasks; where Spark commits one, without.
        """
        ours = _loaded("query_writer")
        options = _loaded("query_options").QueryOptions.of_query(self.options)
        plan = None if self._is_copy else ours.planned(options, schema)
        return ours.KafkaStreamWriter(options, plan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch job, with the plan of its tasks."""
        ours = _loaded("query_writer")
        options = _loaded("query_options").QueryOptions.of_job(self.options)
        if overwrite:
            raise ConfigurationError(
                "A topic cannot be overwritten.",
                where=f"sink {options.sink.name!r}",
                cause="Kafka only appends",
                option='mode("append")',
            )
        return ours.KafkaJobWriter(options, ours.planned(options, schema))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Note that this is a copy: PySpark makes the source where it plans a write, and sends it
        to where it commits.
        """
        self.__dict__.update(state, _is_copy=True)

    def _source(self, *, is_first: bool = False) -> KafkaSource:
        """Parse the options, in each process that Spark makes the source in.

        Args:
            is_first: nobody has parsed them yet, so this process names those without effect. For a
                driver, the driver did.
        """
        if not is_first:
            tell_elsewhere(PLACE)
        options = dict(self.options)
        for ours in (START_FILE_OPTION, SIZE_FILE_OPTION, RANGES_OPTION):
            options.pop(ours, None)
        return KafkaSource.from_options(options)

    def _gives_ranges(self) -> bool:
        return RANGES_OPTION in self.options

    def _file(self, option: str) -> Path | None:
        name = self.options.get(option)
        return None if name is None else Path(name)
