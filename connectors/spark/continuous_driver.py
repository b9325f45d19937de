"""The continuous driver: long-running tasks under barriers, each checkpoint a two-phase commit.

    driver = ContinuousDriver(
        spark,
        app_id="flights",
        checkpoint="/data/flights",
        source=KafkaSource(bootstrap_servers=..., subscribe="flights"),
        transform="my_package.flights:clean",
        sink=KafkaSink(bootstrap_servers=..., topic="flights-clean"),
    )
    driver.run()

Micro-batches cannot take less than a few hundred milliseconds. Here a record waits only for the
next barrier. The decision log, committables, recovery, sweep and sink are the same.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import orjson
from pyspark.sql import SparkSession

from connectors.continuous.barrier_pace import BarrierPace
from connectors.continuous.checkpoint_loop import QUERY_ID, CheckpointLoop, LoopOptions
from connectors.continuous.kafka_task import KafkaTask
from connectors.continuous.partition_shares import PartitionShares
from connectors.continuous.running_stage import RunningStage
from connectors.kafka.sink.kafka_sink import kafka_sinks
from connectors.kafka.source.offset_errors import refuse_lower_than, there_again
from connectors.kafka.source.offsets import flatten, format_offsets
from connectors.kafka.source.resting import take_resting
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.kafka.source.source_stream import Nested, SourceStream
from connectors.options.kafka_source import KafkaSource
from connectors.options.modes import (
    MOST_INTERVAL_S,
    check_options,
    check_positive,
    check_source,
    longest_interval_s,
)
from connectors.options.option import checked_app_id
from connectors.options.table import CONTINUOUS
from connectors.pipeline.changed_parts import Engine
from connectors.pipeline.checkpoint_address import checked_location
from connectors.pipeline.driver_metrics import ONLY_THIS_MACHINE, DriverMetrics
from connectors.pipeline.restoring import FromSavepoint, accepts_duplicates
from connectors.pipeline.rewriting import Rewriting
from connectors.pipeline.run import Run
from connectors.pipeline.run_options import RunOptions
from connectors.pipeline.starting_points import decide_start
from connectors.records.arrow_transform import (
    ArrowFunction,
    copy_records,
    fitted,
    load_function,
)
from connectors.spark.barrier_stage import BarrierStage
from connectors.spark.branches import told_columns
from connectors.spark.driver_life import DriverLife
from connectors.spark.failures import error_in
from connectors.spark.restarts import Restarts
from connectors.spark.restored_files import NoFiles
from connectors.spark.session import check_session
from transactions.checkpoint_location import CheckpointLocation
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator, CheckpointReport
from transactions.errors import FencedError, SparkOnceError, StoppedError
from transactions.log_entries import Decision
from transactions.log_location import LogLocation
from transactions.replay import Checkpoint
from transactions.restart_strategy import DEFAULT_RESTART_STRATEGY, RestartStrategy, is_retried
from transactions.sink import Sink

_REPORTS = 1000


class ContinuousDriver(DriverLife):
    """One pipeline from a Kafka source through an Arrow function to a sink.

    Args:
        spark: a classic session with one slot for each task.
        app_id: stable name of the pipeline, unique on its Kafka clusters; letters, digits, _, -.
        checkpoint: a folder of its own, or an address in an object store (a `CheckpointLocation`
            has options of the store), for the decision log.
        source: what to read.
        sink: what to write: a `KafkaSink`, or another two-phase sink.
        transform: see `connectors.records.arrow_transform`; a function or its ``module:name``.
        columns: the columns of `SINK_SCHEMA` for a sink that is not Kafka's; a column that the
            function does not return is null. By default all columns.
        parallelism: number of tasks; as many as are needed read. None uses all of Spark's slots,
            but at most one task per partition that there is at the start, and at least one.
        fixed_parallelism: all tasks read all the time.
        target_latency_s: a record should be visible this long after it was read. When the tasks
            fall behind, barriers come less often, down to one in `most_interval_s`.
        most_interval_s: the longest time from one barrier to the next.
        barrier_interval_s: a fixed interval instead of these two, from start to start.
        trigger: ``"available-now"`` reads at least the records that exist at the start, then ends;
            None never ends by itself.
        native: tasks hand librdkafka pointers into Arrow buffers where possible. False moves each
            record as a Python object, at three times the CPU.
        checkpoint_timeout_s: how long one checkpoint may take.
        restart_budget_s: see `StreamingDriver`.
        restart_strategy: see `StreamingDriver`.
        on_checkpoint: called after each decided checkpoint, on the loop's thread.
        metrics_port: see `StreamingDriver`.
        metrics_host: see `StreamingDriver`.
        decision_log: see `StreamingDriver`.
        from_savepoint: see `StreamingDriver`.
        accept_duplicates: see `StreamingDriver`.
    """

    _engine = NoFiles()
    _has_files = False
    #: Where this run begins to read, and what plans it.
    _begin: Nested
    _stream: SourceStream
    #: Where a backfill ends.
    _ends: dict[str, int] | None = None
    #: Next offsets of topics that do not exist now.
    _resting: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self,
        spark: SparkSession,
        *,
        app_id: str,
        checkpoint: str | Path | CheckpointLocation,
        source: KafkaSource,
        sink: Sink,
        transform: str | ArrowFunction = copy_records,
        columns: Sequence[str] | None = None,
        parallelism: int | None = None,
        fixed_parallelism: bool = False,
        target_latency_s: float = 0.02,
        most_interval_s: float = MOST_INTERVAL_S,
        barrier_interval_s: float | None = None,
        trigger: str | None = None,
        native: bool = True,
        checkpoint_timeout_s: float = 60.0,
        restart_budget_s: float = 60.0,
        restart_strategy: str | RestartStrategy = DEFAULT_RESTART_STRATEGY,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        metrics_port: int | None = None,
        metrics_host: str = ONLY_THIS_MACHINE,
        decision_log: LogLocation | None = None,
        from_savepoint: FromSavepoint | None = None,
        accept_duplicates: bool = False,
    ) -> None:
        check_session(spark)
        check_positive(
            parallelism=parallelism,
            target_latency_s=target_latency_s,
            most_interval_s=most_interval_s,
            barrier_interval_s=barrier_interval_s,
            checkpoint_timeout_s=checkpoint_timeout_s,
        )
        check_options(CONTINUOUS, {} if trigger is None else {"trigger": trigger})
        load_function(transform)
        check_source(CONTINUOUS, source)
        location = checked_location(checkpoint, [sink])
        restarts = Restarts(app_id, restart_strategy, tolerable_failed_checkpoints=0)
        super().__init__(spark, restarts, location, from_savepoint)
        self._source = source
        self._transform = fitted(transform, columns)
        self._parallelism, self._all_read = parallelism, fixed_parallelism
        self._native = native
        self._ends_by_itself = trigger is not None
        self._pace = (target_latency_s, most_interval_s, barrier_interval_s)
        self._schemas = told_columns(sink, columns, spark)
        self._options = RunOptions(
            app_id=checked_app_id(app_id),
            checkpoint=location,
            sources=[source],
            sinks=[sink],
            schemas=self._schemas,
            interval_s=longest_interval_s(most_interval_s, barrier_interval_s),
            checkpoint_timeout_s=checkpoint_timeout_s,
            restart_budget_s=restart_budget_s,
            identity={"mode": QUERY_ID},
            decision_log=decision_log,
            accept_duplicates=accept_duplicates or accepts_duplicates(from_savepoint),
        )
        self._timeout_s = checkpoint_timeout_s
        self._on_checkpoint = on_checkpoint
        self._metrics = DriverMetrics(app_id, metrics_port, metrics_host)
        self._loop: CheckpointLoop | None = None
        self._had_slots = False
        #: The last checkpoints, newest last; bounded.
        self.reports: deque[CheckpointReport] = deque(maxlen=_REPORTS)
        #: Transactions that an earlier run left and a start or restart committed.
        self.recommitted = 0

    # --- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Check, fence older runs, recover what they decided, start the stage.

        Raises:
            ConfigurationError: an option, a topic, credentials or the checkpoint are wrong.
            SparkOnceError: see the classes.
        """
        self._metrics.open(kafka_sinks(self._options.sinks), self._options.sources, self._known_log)
        self._begin_life()
        with self._metrics.closed_on_error():
            self._restore(self._options)
            self._start_run()

    def _start_run(self) -> None:
        self._run = Run(self._options, self._run)
        self._run.open(engine=Engine())
        try:
            self.recommitted += self._run.settlement.recommitted
            planner = SourcePlanner(self._source)
            offsets = self._offsets(self._run, planner)
            if self._ends_by_itself:
                self._fix_ends(planner)
            self._finished = self._run.log.state
            slots = self._spark.sparkContext.defaultParallelism
            # A pattern may match its first topic later: the running tasks get the new partitions.
            parallelism = self._parallelism or max(1, min(len(offsets), slots))
            self._start_loop(self._run, offsets, parallelism)
        except BaseException:
            self._close()
            raise

    def _start_loop(self, run: Run, offsets: dict[str, int], parallelism: int) -> None:
        shares = PartitionShares(offsets, parallelism, resting=self._resting)
        host = self._spark.conf.get("spark.driver.host") or "127.0.0.1"
        stage = RunningStage(host, parallelism, error_in)
        loop = self._loop = CheckpointLoop(
            run.log,
            run.committers,
            stage,
            shares=shares,
            pace=BarrierPace(*self._pace),
            options=LoopOptions(
                timeout_s=self._timeout_s,
                new_partitions=self._new_partitions,
                format_offsets=self._format_offsets,
                rerun=self._write_again,
                completed=self._completed,
                ends=self._ends,
                all_read=self._all_read,
            ),
        )
        ((name, writer),) = run.writers.items()
        task = KafkaTask(
            address=stage.address,
            key=stage.key,
            stage=stage.name,
            source=self._source,
            transform=self._transform,
            writer=writer,
            carries_offsets=run.offsets_sink is not None,
            schema=self._schemas.get(name),
            native=self._native,
            timeout_s=self._timeout_s,
            parallelism=parallelism,
        )
        name = f"sparkonce-{run.log.owner.application_id}-{stage.name}"
        job = BarrierStage(
            self._spark, name, task, parallelism, loop.job_ended, had_slots=self._had_slots
        )
        if self._stopping.is_set():  # set before a loop existed
            loop.drain()
        loop.start(job)
        self._had_slots = True

    def _offsets(self, run: Run, planner: SourcePlanner) -> dict[str, int]:
        """Return where to begin: after the last decision, which is healed first if needed."""
        decision = run.log.state.decision
        (start,) = decide_start(
            run.log, [self._source], begun=decision is not None, planner_of=lambda _: planner
        )
        stream = self._stream = SourceStream(planner, start)
        begin = orjson.loads(decision.end_offsets[0]) if decision else stream.initial()
        self._begin = stream.go_on(begin)
        if decision is not None and run.settlement.lost:
            self._heal(run, decision)
        if decision is None or self._begin != begin:
            # A checkpoint that read nothing; it ends where the next one begins.
            now = self._format_offsets(flatten(self._begin))
            run.log.decide(
                Decision(
                    checkpoint_id=decision.checkpoint_id + 1 if decision else 0,
                    query_id=QUERY_ID,
                    generation=run.log.state.generation,
                    start_offsets=decision.end_offsets if decision else (now,),
                    end_offsets=(now,),
                    committables=(),
                )
            )
        found = stream.partitions(self._begin)
        begins = flatten(self._begin)
        self._resting = take_resting(begins, self._source, found)
        # A partition that appeared later begins at 0: none of it was ever read.
        return {**dict.fromkeys(found, 0), **begins}

    def _fix_ends(self, planner: SourcePlanner) -> None:
        """Set where a backfill ends; a restart keeps the ends of the start, if they are there."""
        latest = planner.next_end({})  # without missing topics, if it may go on
        if self._ends is not None:
            refuse_lower_than(self._ends, latest)
        self._ends = self._ends or latest

    def _new_partitions(self) -> Sequence[str]:
        """Return all partitions that exist; called on a thread of the loop.

        Raises:
            PhaseOneError: a topic that was missing when this run began exists again.
            DataLossError: a topic of a backfill was deleted.
        """
        found = self._stream.partitions(self._begin)
        if self._ends is not None:
            refuse_lower_than(self._ends, dict.fromkeys(found, sys.maxsize))
        if back := self._resting.keys() & found:
            raise there_again(", ".join(sorted(back)))
        return found

    def _format_offsets(self, flat: Mapping[str, int]) -> str:
        return format_offsets(flat, self._stream.ids_in(self._begin))

    def _heal(self, run: Run, decision: Decision) -> None:
        coordinator = CheckpointCoordinator(
            run.log,
            run.committers,
            timeout_s=self._timeout_s,
            stopping=self._stopping.is_set,
            lost=run.settlement.lost,
        )
        try:
            again = Checkpoint(
                checkpoint_id=decision.checkpoint_id,
                query_id=decision.query_id,
                start_offsets=decision.start_offsets,
                end_offsets=decision.end_offsets,
            )
            report = coordinator.finish_decided(again, self._write_again)
            coordinator.await_visible()  # after the next decision nothing checks this one
            self._completed(report)
        finally:
            coordinator.close()

    def _write_again(self, lost: Sequence[Committable]) -> list[Committable]:
        assert self._run is not None
        decision = self._run.log.state.decision
        assert decision is not None
        return Rewriting(
            source=self._source,
            transform=self._transform,
            writers=self._run.writers,
            schemas=self._schemas,
            owner=self._run.log.owner,
        ).write_again(decision, lost)

    def _checkpoint_files(self, checkpoint_id: int) -> dict[str, str]:  # noqa: ARG002
        return {}  # the log has everything

    def _await_visible(self) -> None:
        if self._loop is not None:
            self._loop.await_visible()

    def stop(self) -> None:
        """Stop after one more checkpoint of the records read so far. Safe from any thread."""
        self._stopping.set()
        if self._loop is not None:
            self._loop.drain()

    def _has_ended(self, timeout_s: float) -> bool:
        if self._restarts.pending:
            if self._stopping.is_set():
                return self._ended_before_a_restart()
            if self._restarts.wait(self._stopping, timeout_s):
                self._restart()
            return False
        assert self._loop is not None, "call start() first"
        if not self._loop.wait(timeout_s):
            return False
        failure = self._cause_of(self._loop.failure)
        unfinished = self._close()
        if failure is None:
            return self._good_end(unfinished)
        self._unfinished = None if unfinished is None else failure
        if self._stopping.is_set():
            self._failed_to_stop = failure
            if unfinished is not None or not is_retried(failure):
                raise failure
            raise StoppedError("The driver was stopped.", cause=str(failure)) from failure
        self._restarts.failed(failure, self._spark, in_checkpoint=True)
        return False

    def _cause_of(self, failure: BaseException | None) -> BaseException | None:
        """Look for a newer driver first: its sweep fences our tasks, and they report only that."""
        try:
            if failure is not None and self._run is not None:
                self._run.check_newest()
        except FencedError as fenced:
            return fenced
        except SparkOnceError:
            return failure
        return failure

    def _left_by_run(self) -> SparkOnceError | None:
        return None if self._loop is None else self._loop.unfinished()

    def _close(self) -> SparkOnceError | None:
        """Close what this run holds; return the reason why the end is not good, or None."""
        unfinished = None
        if self._loop is not None:
            settled = self._loop.close()
            unfinished = self._loop.unfinished()
            if settled and self._run is not None:
                unfinished = self._run.leave(finished=unfinished is None) or unfinished
            self._unfinished = unfinished
            self._loop = None
        if self._run is not None:
            self._run.close()
        return unfinished
