"""Start the Python workers while the driver still plans, checks and recovers.

Three kinds of Python processes plan a Python source, and a fourth reads it. The first batch starts
them one after the other, and each imports modules, some for half a second. A batch also needs two
workers for each task, and the JVM compiles its side of a Python stage in the first job. So one
background job over a source without records does all this before the first batch. After a crash,
the first record is then visible sooner.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from connectors.spark.worker_daemon import keep_quiet

logger = logging.getLogger(__name__)

keep_quiet()  # the workers that make this source load no other module of ours

NAME = "kafka-exactly-once-warm-up"
# On a large cluster the first batch starts the rest.
_MOST_TASKS = 32
_MODULES = (
    "connectors.kafka.sink.kafka_writer",
    "connectors.kafka.source.range_reader",
    "connectors.spark.fused_stage",
    "connectors.spark.sink_stage",
)


class WarmUpSource(DataSource):  # type: ignore[misc]
    """Has no records; the option `tasks` is the number of tasks that read it."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return NAME

    def schema(self) -> str:
        """Return a column that nobody reads."""
        return "id long"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return the batch reader."""
        return WarmUpReader(int(self.options["tasks"]))


class WarmUpReader(DataSourceReader):  # type: ignore[misc]
    """Loads what a task of the real source needs."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one task for each core."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Read nothing, in a worker."""
        return _load(iter(()))


def warm_workers(spark: SparkSession) -> threading.Thread:
    """Run the job on a thread of its own; no query depends on its result."""
    thread = threading.Thread(target=_run, args=(spark,), name="sparkonce-warm-up", daemon=True)
    thread.start()
    return thread


def _run(spark: SparkSession) -> None:
    try:
        tasks = min(spark.sparkContext.defaultParallelism, _MOST_TASKS)
        spark.dataSource.register(WarmUpSource)
        rows = spark.read.format(NAME).option("tasks", tasks).load()
        # Two stages, like source and sink: both workers of a task are alive at the same time.
        rows.mapInArrow(_load, "id long").collect()
    except Exception as error:  # noqa: BLE001 - the session may have been stopped meanwhile
        logger.debug("the workers were not warmed up: %s", error)


def _load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for module in _MODULES:
        importlib.import_module(module)
    yield from batches
