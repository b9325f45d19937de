"""The last, narrow stage of a batch: every task writes its rows and returns its committables.

The stage is a part of the streaming plan, which is made once. Values that change with the batch
reach the tasks in a local property of the job. (Adding the stage to each batch's DataFrame would
plan every batch a second time.) The class is importable, so Spark pickles only its few fields. Live
objects of a worker (producers) stay in the worker's modules.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from connectors.spark.worker_heap import settle_worker_heap
from transactions.committable import Committable
from transactions.errors import PhaseOneError
from transactions.healing import Replayed
from transactions.sink import AnyWriter, Attempt, DecidedToken, Owner

logger = logging.getLogger(__name__)

#: One row per committable, as JSON; Spark's declared schema is built from the same text.
COMMITTABLE_SCHEMA = pa.schema([pa.field("committable", pa.string())])
COMMITTABLE_DDL = "committable string"
ROUTE = "sparkonce_route"

Reading: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


#: Local property that Spark sets on the query's thread, and passes on to tasks.
BATCH_ID = "streaming.sql.batchId"
#: Local property of the job that carries a batch's order to its tasks.
ORDER_PROPERTY = "sparkonce.batch"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrder:
    """The driver's order to every task of one batch.

    Attributes:
        checkpoint_id: N.
        write: False when an earlier run decided N: then the plan runs for its state only.
        source_offsets: for each subtask, its even split of the source's ListState.
        offsets_sink: number of the branch whose transactions carry these offsets, -1 for none.
        last_decided: see `Attempt`.
        retired: see `Attempt`.
        compares: also return count and fingerprint of subtasks that write nothing. The run makes
            the engine's state, and its output must equal what was decided.
        only: the (branch, subtask) pairs to write again, when transactions of a decided
            checkpoint were lost; None writes all of them.
    """

    checkpoint_id: int
    write: bool
    compares: bool = False
    only: tuple[tuple[int, int], ...] | None = None
    source_offsets: tuple[Mapping[str, int], ...] = ()
    offsets_sink: int = -1
    last_decided: Mapping[str, DecidedToken] = dataclasses.field(default_factory=dict)
    retired: frozenset[str] = frozenset()

    def to_json(self) -> str:
        """Return the text of the local property."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the text of `to_json`, in a task."""
        return msgspec.json.decode(text, type=cls)

    def wants(self, branch: int, subtask: int) -> bool:
        """Return whether a task must write a branch."""
        return self.write and (self.only is None or (branch, subtask) in self.only)

    def writes_again(self, subtask: int) -> bool:
        """Return whether a task writes the first branch of a decided checkpoint once more."""
        return self.only is not None and (0, subtask) in self.only

    def for_lost(self, lost: Sequence[Committable], sinks: Sequence[str]) -> BatchOrder:
        """Return the order to write lost transactions again, with the offsets that were decided.

        This run can have another sink than the run that decided, or none, for the offsets: a user
        names the cluster in another way, or an older version compared these names. Healing
        compares the offsets, so they come from the decision.

        Args:
            lost: what the broker aborted.
            sinks: names of the sinks, in the order of the branches.
        """
        carrier = next((one.sink for one in lost if one.source_offsets), None)
        decided = {one.subtask: one.source_offsets for one in lost if one.sink == carrier}
        return dataclasses.replace(
            self,
            only=tuple((sinks.index(one.sink), one.subtask) for one in lost),
            source_offsets=tuple(decided.get(n, {}) for n in range(len(self.source_offsets))),
            offsets_sink=-1 if carrier is None else sinks.index(carrier),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SinkStage:
    """The function of the stage; a part of the query's plan, so Spark plans it with every batch.

    Attributes:
        writers: by branch number. With one sink, rows have its columns. With several, rows have the
            column `ROUTE` and a struct column per branch, named by its number.
        owner: the owner of the transactions.
    """

    writers: tuple[AnyWriter, ...]
    owner: Owner

    def __call__(
        self, batches: Iterator[pa.RecordBatch], reading: Reading | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Run one task of a streaming driver's plan, and yield what it wrote as one record batch.

        Args:
            batches: the task's rows.
            reading: turns them into the records, if the rows are only ranges.

        Raises:
            PhaseOneError: the order is for another batch: another action runs the plan.
        """
        context = TaskContext.get()
        assert context is not None
        told = self.write(batches, _order_of(context), context, reading)
        rows = [one.to_json() for one in told]
        yield pa.record_batch([_text_array(rows)], schema=COMMITTABLE_SCHEMA)
        settle_worker_heap()

    def write(
        self,
        batches: Iterator[pa.RecordBatch],
        order: BatchOrder,
        context: TaskContext,
        reading: Reading | None = None,
    ) -> list[Committable | Replayed]:
        """Write the rows of one task: begin, invoke for every batch, pre-commit; or abort all.

        Args:
            batches: the task's rows, in the columns of `writers`.
            order: the driver's.
            context: the task's.
            reading: see `__call__`. It is not called if the task has nothing to write: a plan of
                ranges has no state that must be made.

        Returns:
            Per branch what the task has prepared, or has only compared.
        """
        open_transactions: dict[int, tuple[Any, Any]] = {}
        try:
            for number, sink in enumerate(self._writers(order, context.partitionId())):
                if sink is not None:
                    attempt = self._attempt(order, number, context)
                    open_transactions[number] = (sink, sink.begin_transaction(attempt))
            if reading is not None and open_transactions:
                batches = reading(batches)
            for batch in batches:  # always to the end: a stateful plan must run completely
                for number, part in self._routed(batch) if open_transactions else ():
                    if number in open_transactions:
                        sink, transaction = open_transactions[number]
                        sink.invoke(transaction, part)
            told = [sink.pre_commit(one) for sink, one in open_transactions.values()]
        except BaseException:
            # This is a Python worker's last chance to abort; the sweep ends the rest.
            for sink, transaction in open_transactions.values():
                _abort(sink, transaction)
            raise
        return [one for one in told if one is not None]

    def _writers(self, order: BatchOrder, subtask: int) -> Iterator[Any]:
        """Yield for each branch the object that takes its rows; None if there is none."""
        for number, sink in enumerate(self.writers):
            if order.wants(number, subtask):
                yield sink
            else:
                yield Comparing(sink) if order.compares and has_fingerprint(sink) else None

    def _attempt(self, order: BatchOrder, number: int, context: TaskContext) -> Attempt:
        subtask = context.partitionId()
        carries = number == order.offsets_sink
        return Attempt(
            owner=self.owner,
            checkpoint_id=order.checkpoint_id,
            subtask=subtask,
            attempt_id=f"{self.owner.run_epoch}.{context.taskAttemptId()}",
            source_offsets=order.source_offsets[subtask] if carries else {},
            last_decided=order.last_decided,
            retired=order.retired,
        )

    def _routed(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        if len(self.writers) == 1:
            yield 0, batch
            return
        route = batch.column(ROUTE)
        for number in range(len(self.writers)):
            mine = pc.equal(route, number)
            column = batch.column(str(number)).filter(mine)
            if len(column):
                yield number, pa.RecordBatch.from_struct_array(column)


def has_fingerprint(sink: AnyWriter) -> bool:
    """Return whether a sink can compute its records' fingerprint: see its `new_fingerprint`."""
    return hasattr(sink, "new_fingerprint")


class Comparing:
    """Replaces a sink whose records are already decided: computes only their fingerprint."""

    def __init__(self, sink: Any) -> None:
        self.name = sink.name
        self._new_fingerprint = sink.new_fingerprint

    def begin_transaction(self, attempt: Attempt) -> tuple[int, Any]:
        """See `Writer`; nothing is opened."""
        return attempt.subtask, self._new_fingerprint()

    def invoke(self, transaction: tuple[int, Any], batch: pa.RecordBatch) -> None:
        """See `Writer`; nothing is written."""
        if batch.num_rows:
            transaction[1].add(batch)

    def pre_commit(self, transaction: tuple[int, Any]) -> Replayed:
        """Return the count and the fingerprint of the records."""
        subtask, found = transaction
        return Replayed(
            sink=self.name,
            subtask=subtask,
            record_count=found.count,
            fingerprint=found.hex(),
        )

    def abort(self, transaction: tuple[int, Any]) -> None:
        """See `Writer`; there is nothing to undo."""


def told_by_tasks(
    told: Iterable[Mapping[str, Any]],
) -> tuple[list[Committable], list[Replayed]]:
    """Return what tasks wrote, and the results of those that only compared.

    Args:
        told: what tasks returned, each as the object of its JSON.
    """
    written, replayed = [], []
    for one in told:
        if "replayed" in one:
            replayed.append(Replayed(**one["replayed"]))
        else:
            written.append(Committable.from_dict(one))
    return written, replayed


def _order_of(context: TaskContext) -> BatchOrder:
    text = context.getLocalProperty(ORDER_PROPERTY)
    batch = context.getLocalProperty(BATCH_ID)
    order = BatchOrder.from_json(text) if text else None
    if order is None or str(order.checkpoint_id) != batch:
        raise PhaseOneError(
            "A task of the sink stage has no order for its batch.",
            where=f"batch {batch}, order {text!r}",
            cause="the streaming driver did not run this plan",
        )
    return order


def _text_array(values: list[bytes]) -> pa.Array:
    """Build from buffers: `pa.array(list)` imports pandas, a second in each new worker (seen)."""
    ends = np.cumsum([0, *(len(value) for value in values)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _abort(sink: AnyWriter, transaction: Any) -> None:
    try:
        sink.abort(transaction)
    except Exception:
        logger.exception("aborting a transaction of sink %s failed; the sweep ends it", sink.name)
