"""What Spark's own execution says of a query: its checkpoint, its sources, a batch's offset range.

Only this file reaches into MicroBatchExecution. The text of offsets/N on disk changes with
Spark's log format; the objects in memory do not change (seen for formats 1 and 2).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from connectors.spark.sink_stage import BATCH_ID
from transactions.errors import ConfigurationError, SparkOnceError

#: Local property that Spark sets on the query's thread; `BATCH_ID` is another.
_QUERY_ID: Final = "sql.streaming.queryId"
#: The folder that Spark makes for a query without a checkpoint, and deletes at the query's end.
_TEMPORARY: Final = re.compile(r"temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchOffsets:
    """What one batch covers.

    Attributes:
        query_id: Spark's id of the query; the same at every restart on one checkpoint.
        start: JSON per source, "" where the source has no offset yet.
        end: JSON per source.
    """

    query_id: str
    start: tuple[str, ...]
    end: tuple[str, ...]


def execution_of(query: StreamingQuery) -> Any:
    """Return the JVM's execution of a query that this process has started."""
    java: Any = query._jsq  # noqa: SLF001 - Spark has no public way to a batch's offsets
    return java.streamingQuery() if hasattr(java, "streamingQuery") else java


def execution_around(frame: DataFrame, batch_id: int) -> Any:
    """Return the JVM's execution that has called foreachBatch. Called on the thread of that call.

    The frame's session is a copy that Spark has made for the query, and knows no queries. The state
    that all sessions share does.

    Raises:
        ConfigurationError: this is not the thread of foreachBatch, or not its batch.
    """
    context = frame.sparkSession.sparkContext
    query_id, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(BATCH_ID)
    if query_id is None or batch != str(batch_id):
        told = "no batch" if batch is None else f"batch {batch} of the query {query_id}"
        raise _other_thread(batch_id, told)
    shared: Any = frame._jdf.sparkSession().sharedState()  # noqa: SLF001 - no public way
    jvm: Any = context._jvm  # noqa: SLF001
    execution = shared.activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
    if execution is None:
        raise SparkOnceError(
            "Spark does not run the query of this call any more.",
            where=f"batch {batch_id} of the query {query_id}",
            cause="the function of a stopped query is still running",
        )
    # PySpark's InheritableThread takes the query's properties along.
    here = jvm.java.lang.Thread.currentThread().getId()
    if here != execution.queryExecutionThread().getId():
        raise _other_thread(batch_id, f"batch {batch} of the query {query_id} in another thread")
    return execution


def _other_thread(batch_id: int, runs: str) -> ConfigurationError:
    return ConfigurationError(
        "The writer of a batch was not called by foreachBatch.",
        where=f"batch {batch_id}; this thread runs {runs}",
        cause="another thread calls it, it was called with another batch's number, or "
        "PYSPARK_PIN_THREAD is false: only the thread that Spark calls knows the batch",
        option="foreachBatch(writer), or call writer(frame, batch_id) in your own function",
    )


def checkpoint_of(execution: Any) -> str:
    """Return the address of a query's checkpoint folder, as Hadoop writes it.

    Raises:
        ConfigurationError: Spark deletes it at the end of the query.
    """
    address = str(execution.resolvedCheckpointRoot())
    if _TEMPORARY.fullmatch(address.rpartition("/")[2]):
        raise ConfigurationError(
            "The query has no checkpoint of its own.",
            where=f"query {execution.id()}, {address}",
            cause="Spark deletes this folder at the end of the query; the next start could not "
            "know what was written",
            option="option('checkpointLocation', FOLDER) of writeStream",
        )
    return address


def source_names(execution: Any) -> list[str]:
    """Return the class and the description of each source of a query."""
    return [f"{each.getClass().getSimpleName()} ({each})" for each in _sources(execution)]


def read_batch_offsets(execution: Any, batch_id: int) -> BatchOffsets:
    """Return the range of the batch that is running now. Called in foreachBatch, on the driver.

    Raises:
        SparkOnceError: the execution runs another batch: the caller is a zombie of a stopped query.
    """
    running = execution.lastExecution().currentBatchId()
    if running != batch_id:
        raise SparkOnceError(
            "Spark runs another batch than the batch of this call.",
            where=f"checkpoint {batch_id}, Spark is at {running}",
            cause="the function of a stopped query is still running",
        )
    every = list(_sources(execution))
    committed, available = execution.committedOffsets(), execution.availableOffsets()
    return BatchOffsets(
        query_id=str(execution.id()),
        start=tuple(_json(committed.get(source)) for source in every),
        end=tuple(_json(available.get(source)) for source in every),
    )


def _sources(execution: Any) -> Iterator[Any]:
    sources = execution.sources()
    yield from (sources.apply(number) for number in range(sources.size()))


def _json(option: Any) -> str:
    return str(option.get().json()) if option.isDefined() else ""
