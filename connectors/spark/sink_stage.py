"""The last, narrow stage of a batch: every task writes its rows and returns its committables.

An instance travels to the workers; the class is importable, so nothing but its few fields is
pickled, and what is live there (producers) stays in the worker's modules.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from transactions.sink import AnySink, Attempt, DecidedToken, Owner

logger = logging.getLogger(__name__)

#: One row per committable, its JSON; Spark's declared schema is built from the same text.
COMMITTABLE_SCHEMA = pa.schema([pa.field("committable", pa.binary())])
COMMITTABLE_DDL = "committable binary"
ROUTE = "sparkonce_route"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SinkStage:
    """What every task of one batch must know.

    Attributes:
        sinks: by branch number. One sink: rows have its columns. Several: rows have the column
            `ROUTE` and a struct column per branch, named by its number.
        owner: whose transactions these are.
        checkpoint_id: N.
        source_offsets: per subtask its even split of the source's ListState.
        offsets_sink: number of the branch whose transactions carry them, -1 for none.
        last_decided: see `Attempt`.
        retired: see `Attempt`.
    """

    sinks: tuple[AnySink, ...]
    owner: Owner
    checkpoint_id: int
    source_offsets: tuple[Mapping[str, int], ...]
    offsets_sink: int
    last_decided: Mapping[str, DecidedToken]
    retired: frozenset[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task: begin, invoke for every batch, pre-commit; or abort all of it."""
        context = TaskContext.get()
        assert context is not None
        open_transactions: list[tuple[AnySink, Any]] = []
        try:
            for number, sink in enumerate(self.sinks):
                attempt = self._attempt(number, context)
                open_transactions.append((sink, sink.begin_transaction(attempt)))
            for batch in batches:
                for number, part in self._routed(batch):
                    sink, transaction = open_transactions[number]
                    sink.invoke(transaction, part)
            committables = [sink.pre_commit(one) for sink, one in open_transactions]
        except BaseException:
            # A Python worker has no other last word: what is not aborted here, the sweep ends.
            for sink, transaction in open_transactions:
                _abort(sink, transaction)
            raise
        rows = [one.to_json() for one in committables if one is not None]
        yield pa.record_batch([_binary_array(rows)], schema=COMMITTABLE_SCHEMA)

    def _attempt(self, number: int, context: TaskContext) -> Attempt:
        subtask = context.partitionId()
        carries = number == self.offsets_sink
        return Attempt(
            owner=self.owner,
            checkpoint_id=self.checkpoint_id,
            subtask=subtask,
            attempt_id=f"{self.owner.run_epoch}.{context.taskAttemptId()}",
            source_offsets=self.source_offsets[subtask] if carries else {},
            last_decided=self.last_decided,
            retired=self.retired,
        )

    def _routed(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        if len(self.sinks) == 1:
            yield 0, batch
            return
        route = batch.column(ROUTE)
        for number in range(len(self.sinks)):
            mine = pc.equal(route, number)
            column = batch.column(str(number)).filter(mine)
            if len(column):
                yield number, pa.RecordBatch.from_struct_array(column)


def _binary_array(values: list[bytes]) -> pa.Array:
    """Build from buffers: `pa.array(list)` imports pandas, a second in each new worker (seen)."""
    ends = np.cumsum([0, *(len(value) for value in values)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _abort(sink: AnySink, transaction: Any) -> None:
    try:
        sink.abort(transaction)
    except Exception:
        logger.exception("aborting a transaction of sink %s failed; the sweep ends it", sink.name)
