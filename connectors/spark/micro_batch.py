"""One micro-batch as one checkpoint: what foreachBatch does between offsets/N and commits/N."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.sink.transactional_sink import KafkaTransactionalSink
from connectors.kafka.source.offsets import parse_offsets
from connectors.spark.batch_offsets import BatchOffsets, read_batch_offsets
from connectors.spark.sink_stage import ORDER_PROPERTY, BatchOrder
from transactions.committable import Committable
from transactions.coordinator import Checkpoint, CheckpointCoordinator, CheckpointReport, Replay
from transactions.list_state import offsets_of, offsets_state


class MicroBatches:
    """Runs the batches of one query, one at a time. Lives on the driver.

    Args:
        coordinator: makes the checkpoints.
        sinks: by name, in the order of the branches.
        clusters: brokers of all sources; their offsets can be part of a transaction only on the
            cluster they belong to.
        spark_checkpoint: Spark's own part of the checkpoint folder.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        sinks: Mapping[str, KafkaTransactionalSink],
        *,
        clusters: frozenset[str],
        spark_checkpoint: Path,
    ) -> None:
        self._coordinator = coordinator
        self._sinks = tuple(sinks.values())
        self._state = spark_checkpoint / "state"
        self._offsets_sink = next(
            (n for n, s in enumerate(self._sinks) if {s.options.bootstrap_servers} == clusters), -1
        )

    def run(self, query: StreamingQuery, frame: DataFrame, batch_id: int) -> CheckpointReport:
        """Make checkpoint `batch_id`; returns only when every record of it is committed.

        Raises:
            SparkOnceError: see `CheckpointCoordinator.commit_batch`.
            Exception: what Spark raised while the job ran.
        """
        offsets = read_batch_offsets(query, batch_id)
        tasks = _partitions(frame)
        checkpoint = Checkpoint(
            checkpoint_id=batch_id,
            query_id=offsets.query_id,
            start_offsets=offsets.start,
            end_offsets=offsets.end,
            partitioning={"sink_tasks": str(tasks)},
        )
        if self._coordinator.replay_of(checkpoint) is Replay.DECIDED:
            report = self._coordinator.finish_decided(checkpoint)
            if self._state.exists():
                # A stateful plan must run once more, or its state is corrupt (seen).
                self._run_job(frame, BatchOrder(checkpoint_id=batch_id, write=False))
            return report

        def phase_one() -> list[Committable]:
            return self._run_job(frame, self._order(offsets, tasks, batch_id))

        return self._coordinator.commit_batch(checkpoint, phase_one)

    def _run_job(self, frame: DataFrame, order: BatchOrder) -> list[Committable]:
        """Run the plan: one action, because each further one would recompute the batch."""
        context = frame.sparkSession.sparkContext
        context.setLocalProperty(ORDER_PROPERTY, order.to_json())
        try:
            # `DataFrame.collect` serves its rows through a socket of their own (30 ms a batch,
            # measured). A list of rows of one JSON object each prints as JSON: one call.
            rows: Any = frame._jdf.collectAsList()  # noqa: SLF001
            return [Committable.from_dict(row[0]) for row in orjson.loads(rows.toString())]
        finally:
            context.setLocalProperty(ORDER_PROPERTY, None)

    def _order(self, offsets: BatchOffsets, tasks: int, batch_id: int) -> BatchOrder:
        state = offsets_state(_merged(offsets.end) if self._offsets_sink >= 0 else {})
        return BatchOrder(
            checkpoint_id=batch_id,
            write=True,
            source_offsets=tuple(offsets_of(part) for part in state.even_split(max(1, tasks))),
            offsets_sink=self._offsets_sink,
            last_decided=self._coordinator.last_decided(),
            retired=self._coordinator.retired(),
        )


def _partitions(frame: DataFrame) -> int:
    execution: Any = frame._jdf.queryExecution()  # noqa: SLF001 - plans, but runs nothing
    return int(execution.toRdd().getNumPartitions())


def _merged(ends: tuple[str, ...]) -> dict[str, int]:
    """Merge the ends of all sources; of a partition that two of them read, the smaller one."""
    merged: dict[str, int] = {}
    for text in ends:
        for name, offset in parse_offsets(text).items():
            merged[name] = min(offset, merged.get(name, offset))
    return merged
