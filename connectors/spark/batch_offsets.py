"""The exact offset range of a running micro-batch, read from Spark's own execution.

Only this file reaches into MicroBatchExecution. The text of offsets/N on disk changes with
Spark's log format; the objects in memory do not change (seen for formats 1 and 2).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from transactions.errors import SparkOnceError


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


def read_batch_offsets(query: StreamingQuery, batch_id: int) -> BatchOffsets:
    """Return the range of the batch that is running now. Called in foreachBatch, on the driver.

    Raises:
        SparkOnceError: the execution runs another batch: the caller is a zombie of a stopped query.
    """
    java: Any = query._jsq  # noqa: SLF001 - Spark has no public way to a batch's offsets
    execution = java.streamingQuery() if hasattr(java, "streamingQuery") else java
    running = execution.lastExecution().currentBatchId()
    if running != batch_id:
        raise SparkOnceError(
            "Spark runs another batch than the batch of this call.",
            where=f"checkpoint {batch_id}, Spark is at {running}",
            cause="the function of a stopped query is still running",
        )
    sources = execution.sources()
    every = [sources.apply(number) for number in range(sources.size())]
    committed, available = execution.committedOffsets(), execution.availableOffsets()
    return BatchOffsets(
        query_id=str(query.id),
        start=tuple(_json(committed.get(source)) for source in every),
        end=tuple(_json(available.get(source)) for source in every),
    )


def _json(option: Any) -> str:
    return str(option.get().json()) if option.isDefined() else ""
