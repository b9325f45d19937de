"""Start the Python workers while the driver still plans, checks and recovers.

A worker needs half a second to start and to import what a task needs, a batch wants two of them for
each task, and the JVM compiles its side of a Python stage in the first job. One job of tasks that
only import, in the background, takes that out of the way of the first batch (1.7 s of 10 from the
driver's making to the first commit, on two cores), and after a crash of the first record visible
again.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# A large cluster starts the rest when the first batch needs them.
_MOST_TASKS = 32
_MODULES = (
    "connectors.kafka.sink.transactional_sink",
    "connectors.kafka.source.range_reader",
    "connectors.spark.sink_stage",
)


def warm_workers(spark: SparkSession) -> threading.Thread:
    """Run the job on a thread of its own; whatever becomes of it, no query depends on it."""
    thread = threading.Thread(target=_run, args=(spark,), name="sparkonce-warm-up", daemon=True)
    thread.start()
    return thread


def _run(spark: SparkSession) -> None:
    try:
        tasks = min(spark.sparkContext.defaultParallelism, _MOST_TASKS)
        rows = spark.range(0, tasks, 1, tasks)
        # Two stages, as source and sink: both workers of a task are alive at once.
        rows.mapInArrow(_load, "id long").mapInArrow(_load, "id long").collect()
    except Exception as error:  # noqa: BLE001 - the session may have been stopped meanwhile
        logger.debug("the workers were not warmed up: %s", error)


def _load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for module in _MODULES:
        importlib.import_module(module)
    yield from batches
