"""The streaming driver: a Structured Streaming query whose checkpoints are two-phase commits.

    driver = StreamingDriver(spark, app_id="flights", checkpoint="/data/flights")
    flights = driver.read(KafkaSource(bootstrap_servers=..., subscribe="flights"))
    driver.write(flights.selectExpr("key", "value"), KafkaSink(..., topic="flights-clean"))
    driver.run()

Spark calls `_run_batch` between its own offsets/N and commits/N. `_run_batch` returns only when
every record of the batch is committed, and it never swallows an exception: after a normal return
Spark writes commits/N, so a swallowed failure would lose the batch (seen).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.sink.kafka_sink import kafka_sinks
from connectors.kafka.source.resting import some_rest
from connectors.options.kafka_source import KafkaSource
from connectors.options.option import checked_app_id
from connectors.options.table import MICRO_BATCH
from connectors.options.trigger import trigger_ms
from connectors.pipeline.changed_parts import Engine
from connectors.pipeline.checkpoint_address import checked_location, location_in
from connectors.pipeline.driver_metrics import ONLY_THIS_MACHINE, DriverMetrics
from connectors.pipeline.restoring import FromSavepoint, accepts_duplicates
from connectors.pipeline.run import Run
from connectors.pipeline.run_options import RunOptions
from connectors.pipeline.starting_points import decide_start
from connectors.records.arrow_transform import ArrowFunction, copy_records
from connectors.spark.batch_offsets import execution_of
from connectors.spark.batch_size import BatchSize
from connectors.spark.checkpoint_files import fit_offsets
from connectors.spark.data_source import register
from connectors.spark.driver_life import DriverLife, wait_while
from connectors.spark.failures import error_in, reason
from connectors.spark.micro_batch import MicroBatches
from connectors.spark.open_run import IDLE_SWEEP_S
from connectors.spark.query_files import files_at, is_written_down
from connectors.spark.query_plan import QueryPlan
from connectors.spark.quiet_end import as_spark_ends
from connectors.spark.restarts import Restarts
from connectors.spark.restored_files import SparkFiles
from connectors.spark.session import prepare_session
from connectors.spark.sink_stage import SinkStage
from connectors.spark.stuck_jobs import cancelled_after
from connectors.spark.worker_warm_up import warm_workers
from transactions import crash_points
from transactions.checkpoint_location import CheckpointLocation
from transactions.coordinator import CheckpointCoordinator, CheckpointReport
from transactions.decision_log import DecisionLog
from transactions.errors import ConfigurationError, SparkOnceError, StoppedError
from transactions.log_location import LogLocation
from transactions.restart_strategy import DEFAULT_RESTART_STRATEGY, RestartStrategy
from transactions.savepoint import unfinished
from transactions.sink import Sink

_REPORTS = 1000
_INITIALIZED_S = 30.0
_WRITTEN_DOWN_S = 5.0

logger = logging.getLogger(__name__)


class StreamingDriver(DriverLife):
    """One pipeline: its sources, its branches, its checkpoint. Lives in the driver process.

    Args:
        spark: a classic session; see `connectors.spark.build_session`.
        app_id: stable name of the pipeline, unique on its Kafka clusters; letters, digits, _, -.
        checkpoint: a folder of its own on a local file system, or an address in an object store
            (a `CheckpointLocation` has options of the store); Spark's part and the decision log
            live in it.
        trigger: ``"0s"`` (as fast as possible), a duration like ``"5s"``, or ``"available-now"``
            (read what exists now, then stop).
        checkpoint_timeout_s: how long one checkpoint may take from its first task to its end. After
            that its Spark job is cancelled, and the run fails.
        restart_budget_s: how long a restart may take before the broker may abort what was
            decided; with the checkpoint timeout it must fit into the transaction timeout.
        restart_strategy: what happens when a run fails after its start: see
            `transactions.restart_strategy`, which also says what is never restarted.
        tolerable_failed_checkpoints: how many checkpoints in a row may fail, and be run again at
            once, before the restart strategy counts a failure.
        target_checkpoint_s: how long a checkpoint should take when there is more to read than it
            can hold: the size of batches adapts. None: only `maxOffsetsPerTrigger` limits it.
        on_checkpoint: called after each checkpoint, on the query's thread. Its exception fails
            the query after the commit, and loses nothing.
        metrics_port: the port of `connectors.pipeline.metrics_endpoint`; 0 takes a free port.
        metrics_host: the address on which it listens: this machine only, unless it is another.
        decision_log: where the log is kept; None: in ``decisions`` of the checkpoint folder.
        from_savepoint: the savepoint with which a new checkpoint folder begins; see
            `connectors.pipeline.restoring`.
        accept_duplicates: start on an old folder: output unknown to this folder is written twice.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        app_id: str,
        checkpoint: str | Path | CheckpointLocation,
        trigger: str = "0s",
        checkpoint_timeout_s: float = 600.0,
        restart_budget_s: float = 60.0,
        restart_strategy: str | RestartStrategy = DEFAULT_RESTART_STRATEGY,
        tolerable_failed_checkpoints: int = 0,
        target_checkpoint_s: float | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        metrics_port: int | None = None,
        metrics_host: str = ONLY_THIS_MACHINE,
        decision_log: LogLocation | None = None,
        from_savepoint: FromSavepoint | None = None,
        accept_duplicates: bool = False,
    ) -> None:
        location = location_in(MICRO_BATCH, checkpoint, ())
        restarts = Restarts(
            app_id, restart_strategy, tolerable_failed_checkpoints=tolerable_failed_checkpoints
        )
        super().__init__(spark, restarts, location, from_savepoint)
        self._app_id = checked_app_id(app_id)
        self._files = files = files_at(spark, location)
        self._trigger_ms = trigger_ms(trigger)
        self._checkpoint_timeout_s = checkpoint_timeout_s
        self._restart_budget_s = restart_budget_s
        target_s = target_checkpoint_s
        self._size = None if target_s is None else BatchSize(target_s, files.notes)
        self._on_checkpoint = on_checkpoint
        self._metrics = DriverMetrics(app_id, metrics_port, metrics_host)
        self._plan = QueryPlan(spark, files, self._size)
        self._decision_log = decision_log
        self._accept_duplicates = accept_duplicates or accepts_duplicates(from_savepoint)
        self._query: StreamingQuery | None = None
        self._query_ready = threading.Event()
        self._idle = threading.Condition()
        self._in_batch = False
        self._waits_for_stop = False
        self._failure: BaseException | None = None
        self._coordinator: CheckpointCoordinator | None = None
        self._batches: MicroBatches | None = None
        #: The last checkpoints, newest last; bounded.
        self.reports: deque[CheckpointReport] = deque(maxlen=_REPORTS)
        #: Transactions that an earlier run left and a start or restart committed.
        self.recommitted = 0
        prepare_session(spark, local_checkpoint=location.folder is not None)
        warm_workers(spark)
        register(spark)

    # --- what the user calls ------------------------------------------------------------------

    def read(self, source: KafkaSource) -> DataFrame:
        """Return a streaming DataFrame with the columns of Spark's Kafka source.

        Raises:
            ConfigurationError: an option is wrong.
        """
        return self._plan.read(source)

    def write(self, frame: DataFrame, sink: Sink) -> None:
        """Add a branch; all branches of a driver commit under one decision, all or none.

        Args:
            frame: for Kafka the columns key, value, headers, topic and partition, as in Spark's
                sink, and timestamp if the sink writes it; for another sink those it can write.
            sink: the target: a `KafkaSink`, or another two-phase sink.

        Raises:
            ConfigurationError: a column is missing, unknown or of a wrong type; two sinks have the
                same name; the driver has started.
        """
        self._check_not_started()
        self._plan.write(frame, sink)

    def pipe(
        self,
        source: KafkaSource,
        sink: Sink,
        *,
        transform: str | ArrowFunction = copy_records,
        columns: Sequence[str] | None = None,
    ) -> None:
        """Read, transform by an Arrow function and write in one stage, instead of `read` and
        `write`. No record enters the JVM: Spark's progress counts the ranges of a batch.

        Args:
            source: what to read.
            sink: the target.
            transform: see `connectors.records.arrow_transform`.
            columns: see `connectors.spark.arrow_pipeline`.

        Raises:
            ConfigurationError: see `read` and `write`; or there is another branch.
        """
        self._check_not_started()
        self._plan.pipe(source, sink, transform, columns)

    def _check_not_started(self) -> None:
        if self._query is not None:
            raise ConfigurationError("A branch cannot be added to a driver that has started.")

    # --- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Check, fence older runs, recover what they decided, then start the query.

        A failure of the first start is raised at once; the restart strategy is for later ones.

        Raises:
            ConfigurationError: an option, a topic, credentials or the checkpoint are wrong.
            DecisionLogError, TransactionLostError, OutcomeUnknownError: see their classes.
        """
        if not self._plan.branches:
            raise ConfigurationError("The driver has nothing to write.", cause="call write() first")
        checked_location(self._location, [each.sink for each in self._plan.branches])
        if self._from_savepoint is not None:  # only a restore needs the plan so early
            self._engine = SparkFiles(self._spark, self._plan.places())
        outputs = kafka_sinks(each.sink for each in self._plan.branches)
        self._metrics.open(outputs, self._plan.sources, self._known_log)
        self._begin_life()
        self._query = None
        with self._metrics.closed_on_error():
            self._restore(self._run_options())
            self._start_run()

    def _start_run(self) -> None:
        """Begin a new run, the first or a later one: it fences, recovers and sweeps."""
        try:
            self._run = Run(self._run_options(), self._run)
            finished = self._files.finished()
            engine = Engine(self._files.has_finished, self._files.has_state, has_places=True)
            self._run.open(finished=finished, engine=engine)
            self._decide_start(self._run.log, begun=finished >= 0)
            self.recommitted += self._run.settlement.recommitted
            self._finished = self._run.log.state
            self._coordinator = CheckpointCoordinator(
                self._run.log,
                self._run.committers,
                timeout_s=self._checkpoint_timeout_s,
                stopping=self._stopping.is_set,
                lost=self._run.settlement.lost,
                idle_sweep_s=IDLE_SWEEP_S,
            )
            self._batches = MicroBatches(
                self._coordinator,
                self._run.log,
                [*self._run.sinks],
                offsets_sink=self._run.offsets_sink,
                only_moved=not all(source.fail_on_data_loss for source in self._plan.sources)
                or some_rest(self._plan.sources, self._finished.decision),
                files=self._files.begin_run(self._finished),
                size=self._size,
            )
            if self._run.has_other_plan:
                # Asked again: until our Fence, the run before could finish a batch.
                fit_offsets(self._files, self._files.finished(), self._plan.places())
                crash_points.reach("plan_fitted")
                self._run.plan_is_fitted()
            self._start_query()
        except BaseException:
            self._close()
            raise

    def stop(self) -> None:
        """Stop between two checkpoints. A batch after its decision is finished. A batch before its
        decision ends without one and runs again at the next start. Safe from any thread.
        """
        self._stopping.set()
        query = self._query
        if query is None:
            return
        with self._idle:
            self._idle.wait_for(
                lambda: not self._in_batch or self._waits_for_stop, self._checkpoint_timeout_s
            )
        # Else the source's process, which is about to start, would not find Spark and would log it.
        wait_while(lambda: query.isActive and _is_initializing(query), _INITIALIZED_S)
        # Spark writes commits/N after our return; else the next start would replay the batch.
        wait_while(lambda: query.isActive and not self._is_written_down(), _WRITTEN_DOWN_S)
        query.stop()

    def _has_ended(self, timeout_s: float) -> bool:
        if self._restarts.pending:
            if self._stopping.is_set():
                return self._ended_before_a_restart()
            if self._restarts.wait(self._stopping, timeout_s):
                self._restart()
            return False
        assert self._query is not None, "call start() first"
        if self._waits_for_stop:
            self._query.stop()
        try:
            ended = bool(self._query.awaitTermination(max(timeout_s, 0.001)))
        except StreamingQueryException as error:
            in_checkpoint = self._failure is not None
            unfinished = self._close()
            cause = self._cause_of(error, unfinished)
            cause.__cause__ = cause.__cause__ or (None if cause is error else error)
            self._unfinished = None if unfinished is None else cause
            self._restarts.failed(cause, self._spark, in_checkpoint=in_checkpoint)
            return False
        return ended and self._good_end(self._close())

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's query, for its progress; None before start()."""
        return self._query

    # --- one batch ----------------------------------------------------------------------------

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        with self._idle:
            self._serve_when_idle()  # a pipeline that is never idle makes savepoints here
            self._in_batch = True
        try:
            self._completed(self._checkpointed(frame, batch_id))
        finally:
            with self._idle:
                self._in_batch = False
                self._idle.notify_all()

    def _checkpointed(self, frame: DataFrame, batch_id: int) -> CheckpointReport:
        try:
            # Batch 0 can begin before start() has stored the query.
            self._query_ready.wait(self._checkpoint_timeout_s)
            assert self._query is not None
            assert self._batches is not None
            run_id, most_s = str(self._query.runId), self._checkpoint_timeout_s
            with cancelled_after(most_s, self._spark, run_id, batch_id):
                return self._batches.run(execution_of(self._query), frame, batch_id)
        except StoppedError as stopped:
            self._failure = stopped
            with self._idle:
                self._waits_for_stop = True
                self._idle.notify_all()
            raise as_spark_ends(stopped, self._spark, self._checkpoint_timeout_s) from None
        except BaseException as error:
            self._failure = error
            raise

    # --- savepoints ---------------------------------------------------------------------------

    def _serve_when_idle(self) -> None:
        with self._idle:  # a batch that begins now waits
            if self._in_batch or self._stopping.is_set():
                return  # a question of a stopped batch to Hadoop would take Spark's interrupt away
            if self._requests.pending() and self._is_written_down():
                self._serve_savepoints()

    def _await_visible(self) -> None:
        if self._coordinator is not None:
            self._coordinator.await_visible()

    def _is_written_down(self) -> bool:
        return is_written_down(self._files, self._known_log())

    def _checkpoint_files(self, checkpoint_id: int) -> Mapping[str, str]:
        if not self._is_written_down():
            raise unfinished(f"checkpoint {checkpoint_id}")
        return self._files.to_copy(checkpoint_id)

    # --- start and end ------------------------------------------------------------------------

    def _run_options(self) -> RunOptions:
        return RunOptions(
            app_id=self._app_id,
            checkpoint=self._location,
            sources=self._plan.sources,
            sinks=[branch.sink for branch in self._plan.branches],
            decision_log=self._decision_log,
            schemas={each.sink.name: each.schema for each in self._plan.branches},
            checkpoint_timeout_s=self._checkpoint_timeout_s,
            restart_budget_s=self._restart_budget_s,
            accept_duplicates=self._accept_duplicates,
        )

    def _decide_start(self, log: DecisionLog, *, begun: bool) -> None:
        """Decide where sources begin: Spark asks twice, and again after a crash in batch 0."""
        planned = self._files.planned_end()
        starts = decide_start(log, self._plan.sources, begun=begun, planned=planned)
        self._plan.begin_at(starts)

    def _start_query(self) -> None:
        assert self._coordinator is not None
        assert self._run is not None
        # The module of the user's function may have a builder of its own, which has set what it
        # says on the session that there was; the query takes the settings of this moment.
        prepare_session(self._spark, local_checkpoint=self._location.folder is not None)
        stage = SinkStage(writers=(*self._run.writers.values(),), owner=self._coordinator.owner)
        self._query = self._plan.start(stage, self._app_id, self._run_batch, self._trigger_ms)
        self._query_ready.set()

    def _cause_of(self, error: BaseException, unfinished: SparkOnceError | None) -> BaseException:
        failure, self._failure = self._failure, None
        if isinstance(failure, SparkOnceError):
            return failure
        if self._stopping.is_set():
            if failure is not None and not isinstance(failure, StoppedError):
                logger.warning("%s: its last batch failed: %s", self._app_id, reason(failure))
            return unfinished or StoppedError("The driver was stopped.", cause=str(error))
        return error_in(str(failure or error)) or error

    def _left_by_run(self) -> SparkOnceError | None:
        return None if self._coordinator is None else self._coordinator.unfinished()

    def _close(self) -> SparkOnceError | None:
        """Close what this run holds; sweep transactions of a failed attempt, best effort.

        Returns:
            The reason why the end is not good: see `CheckpointCoordinator.unfinished`.
        """
        unfinished = self._left_by_run()
        if self._coordinator is not None:
            assert self._run is not None
            unfinished = self._unfinished = self._run.end(self._coordinator)
            self._coordinator = None
        elif self._run is not None:
            self._run.close()
        self._query_ready.clear()
        return unfinished


def _is_initializing(query: StreamingQuery) -> bool:
    return str(query.status["message"]).startswith("Initializing")
