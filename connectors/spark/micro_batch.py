"""One micro-batch as one checkpoint: what foreachBatch does between offsets/N and commits/N."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import orjson
from pyspark.sql import DataFrame

from connectors.kafka.source.offsets import merged_offsets, parse_offsets
from connectors.spark.batch_offsets import BatchOffsets, read_batch_offsets
from connectors.spark.batch_size import BatchSize
from connectors.spark.failures import error_in
from connectors.spark.query_files import RunFiles
from connectors.spark.sink_stage import ORDER_PROPERTY, BatchOrder, told_by_tasks
from transactions.clock import SYSTEM_CLOCK
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator, CheckpointReport
from transactions.decision_log import DecisionLog
from transactions.errors import DataLossError
from transactions.healing import Replayed, check_replayed, refusal
from transactions.list_state import offsets_of, offsets_state
from transactions.replay import Checkpoint


class MicroBatches:
    """Runs the batches of one query, one at a time. Lives on the driver.

    Args:
        coordinator: makes the checkpoints.
        log: receives the coordinator's decisions.
        sinks: their names, in the order of the branches.
        offsets_sink: the sink whose transactions carry the sources' offsets; None for none.
        only_moved: commit no offset of a partition that a batch has not read: its topic may not
            exist (`failOnDataLoss=false`), and a broker then refuses the offset.
        files: Spark's own part of the checkpoint.
        size: adapts to the duration of each batch; None if batches have no target.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        log: DecisionLog,
        sinks: Sequence[str],
        *,
        offsets_sink: str | None,
        only_moved: bool = False,
        files: RunFiles,
        size: BatchSize | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._log = log
        self._only_moved = only_moved
        self._size = size
        self._sinks = tuple(sinks)
        self._files = files
        self._offsets_sink = -1 if offsets_sink is None else self._sinks.index(offsets_sink)

    def run(self, execution: Any, frame: DataFrame, batch_id: int) -> CheckpointReport:
        """Make checkpoint `batch_id`; return only when every record of it is committed.

        Args:
            execution: the query's, in the JVM: see `connectors.spark.batch_offsets`.
            frame: the batch behind the sink stage.
            batch_id: Spark's number of the batch.

        Raises:
            SparkOnceError: see `CheckpointCoordinator.run`; or Spark's files could not be made
                durable.
            Exception: Spark's error while the job ran.
        """
        began = SYSTEM_CLOCK.monotonic()
        offsets = read_batch_offsets(execution, batch_id)
        tasks = _partitions(frame)
        checkpoint = Checkpoint(
            checkpoint_id=batch_id,
            query_id=offsets.query_id,
            start_offsets=offsets.start,
            end_offsets=offsets.end,
            partitioning={"sink_tasks": str(tasks)},
        )
        order = self._order(offsets, tasks, batch_id)

        def phase_one() -> list[Committable]:
            written_before = self._files.begin()
            committables, _ = self._run_job(frame, order)
            written_before()  # a replay's files must be durable before the decision is
            return committables

        def rerun(lost: Sequence[Committable]) -> list[Committable]:
            again = order.for_lost(lost, self._sinks)
            again = dataclasses.replace(again, compares=self._files.has_state())
            try:
                written, replayed = self._run_job(frame, again)
            except Exception as error:
                if isinstance(error_in(str(error)), DataLossError):
                    raise refusal(lost, "the source has deleted them") from error
                raise
            check_replayed(self._log.state, replayed)
            return written

        report = self._coordinator.run(checkpoint, phase_one, rerun)
        if report.replayed and self._files.has_state() and not report.healed:
            # A stateful plan must run once more, or its state is corrupt (seen).
            again = dataclasses.replace(order, write=False, compares=True)
            check_replayed(self._log.state, self._run_job(frame, again)[1])
        self._files.make_state_durable()  # before Spark writes commits/N, which names it
        if self._size is not None and not report.replayed:
            self._size.after(_most_read(offsets), SYSTEM_CLOCK.monotonic() - began)
        return report

    def _run_job(
        self, frame: DataFrame, order: BatchOrder
    ) -> tuple[list[Committable], list[Replayed]]:
        """Run the plan as one action, because each further action would compute the batch again.
        Return what was written, and the results of the subtasks that only compare.
        """
        context = frame.sparkSession.sparkContext
        context.setLocalProperty(ORDER_PROPERTY, order.to_json())
        try:
            # `DataFrame.collect` opens a socket for its rows (30 ms a batch, measured). A list of
            # rows, each one JSON object, prints as JSON: one call.
            rows: Any = frame._jdf.collectAsList()  # noqa: SLF001
            return told_by_tasks(row[0] for row in orjson.loads(rows.toString()))
        finally:
            context.setLocalProperty(ORDER_PROPERTY, None)

    def _to_commit(self, offsets: BatchOffsets) -> dict[str, int]:
        """Return the offsets for the batch's transactions; a replay gets the same."""
        end = merged_offsets(offsets.end)
        if not self._only_moved:
            return end
        start = merged_offsets(filter(None, offsets.start))
        return {name: at for name, at in end.items() if start.get(name) != at}

    def _order(self, offsets: BatchOffsets, tasks: int, batch_id: int) -> BatchOrder:
        state = offsets_state(self._to_commit(offsets) if self._offsets_sink >= 0 else {})
        return BatchOrder(
            checkpoint_id=batch_id,
            write=True,
            source_offsets=tuple(offsets_of(part) for part in state.even_split(max(1, tasks))),
            offsets_sink=self._offsets_sink,
            last_decided=self._coordinator.last_decided(),
            retired=self._coordinator.retired(),
        )


def _most_read(offsets: BatchOffsets) -> int:
    """Return the offset count of the source that has most: each source has the same limit."""
    read = [0]
    for before, after in zip(offsets.start, offsets.end, strict=True):
        start = parse_offsets(before) if before else {}
        read.append(sum(end - start.get(name, 0) for name, end in parse_offsets(after).items()))
    return max(read)


def _partitions(frame: DataFrame) -> int:
    execution: Any = frame._jdf.queryExecution()  # noqa: SLF001 - plans, but runs nothing
    return int(execution.toRdd().getNumPartitions())
