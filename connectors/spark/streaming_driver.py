"""The streaming driver: a Structured Streaming query whose checkpoints are two-phase commits.

    driver = StreamingDriver(spark, app_id="flights", checkpoint="/data/flights")
    flights = driver.read(KafkaSource(bootstrap_servers=..., subscribe="flights"))
    driver.write(flights.selectExpr("key", "value"), KafkaSink(..., topic="flights-clean"))
    driver.run()

Spark calls `_run_batch` between its own offsets/N and commits/N; it returns only when every
record of the batch is committed, and it never swallows an exception: a normal return after a
failure would make Spark write commits/N and lose the batch (seen).
"""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import orjson
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.sink.preflight import check_source, check_topic, transaction_timeout_ms
from connectors.kafka.sink.transactional_sink import KafkaTransactionalSink
from connectors.options import KafkaSource
from connectors.sink_options import KafkaSink
from connectors.spark.branches import Branch, make_branch, unite
from connectors.spark.data_source import register
from connectors.spark.failures import error_in
from connectors.spark.micro_batch import MicroBatches, finished_checkpoint
from connectors.spark.session import prepare_session
from connectors.spark.sink_stage import COMMITTABLE_DDL, SinkStage
from connectors.spark.worker_warm_up import warm_workers
from transactions.clock import Deadline
from transactions.coordinator import CheckpointCoordinator, CheckpointReport
from transactions.decision_log import DecisionLog
from transactions.errors import ConfigurationError, SparkOnceError, StoppedError
from transactions.log_backend import LocalFileBackend
from transactions.recovery import recover
from transactions.sweeper import sweep

logger = logging.getLogger(__name__)

_APP_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_CONNECT_SECONDS = 20.0
_REPORTS = 1000
_POLL_SECONDS = 0.2


class StreamingDriver:
    """One pipeline: its sources, its branches, its checkpoint. Lives in the driver process.

    Args:
        spark: a classic session; see `connectors.spark.build_session`.
        app_id: stable name of the pipeline, unique on its Kafka clusters; letters, digits, _, -.
        checkpoint: a folder of its own on a local file system; Spark's part and the decision
            log live in it.
        trigger: ``"0 seconds"`` (as fast as it can), an interval like ``"5 seconds"``, or
            ``"available-now"`` (what is there, then stop).
        checkpoint_timeout_s: how long one checkpoint may take from its first task to its end.
        restart_budget_s: how long a restart may take before the broker may abort what was
            decided; with the checkpoint timeout it must fit into the transaction timeout.
        on_checkpoint: called after each checkpoint, on the query's thread; an exception from it
            fails the query after the commit, and loses nothing.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        app_id: str,
        checkpoint: str | Path,
        trigger: str = "0 seconds",
        checkpoint_timeout_s: float = 600.0,
        restart_budget_s: float = 60.0,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
    ) -> None:
        if not _APP_ID.fullmatch(app_id):
            raise ConfigurationError(
                "An application id has letters, digits, _ and -; a dot would end it.",
                cause="transactional ids are <application>.<log>.<run>.<process>.<slot>",
                option=f"app_id={app_id}",
            )
        self._spark = spark
        self._app_id = app_id
        self._checkpoint = _local_folder(str(checkpoint))
        self._trigger = trigger
        self._checkpoint_timeout_s = checkpoint_timeout_s
        self._restart_budget_s = restart_budget_s
        self._on_checkpoint = on_checkpoint
        self._sources: list[KafkaSource] = []
        self._branches: list[Branch] = []
        self._sinks: dict[str, KafkaTransactionalSink] = {}
        self._query: StreamingQuery | None = None
        self._query_ready = threading.Event()
        self._stopping = threading.Event()
        self._idle = threading.Condition()
        self._in_batch = False
        self._failure: BaseException | None = None
        self._log: DecisionLog | None = None
        self._coordinator: CheckpointCoordinator | None = None
        self._batches: MicroBatches | None = None
        #: The last checkpoints, newest last; bounded.
        self.reports: deque[CheckpointReport] = deque(maxlen=_REPORTS)
        #: Transactions of an earlier run that this run committed at its start.
        self.recommitted = 0
        prepare_session(spark, local_checkpoint=True)
        register(spark)
        warm_workers(spark)

    # --- what the user says -------------------------------------------------------------------

    def read(self, source: KafkaSource) -> DataFrame:
        """Return a streaming DataFrame with the columns of Spark's Kafka source.

        Raises:
            ConfigurationError: an option is wrong.
        """
        self._sources.append(source)
        reader = self._spark.readStream.format("kafka-exactly-once")
        return reader.options(**source.to_options()).load()

    def write(self, frame: DataFrame, sink: KafkaSink) -> None:
        """Add a branch; all branches of a driver commit under one decision: all or none.

        Args:
            frame: columns key, value, headers, topic, partition, timestamp, as Spark's sink.
            sink: where it goes.

        Raises:
            ConfigurationError: a column is missing, unknown or of a wrong type; two sinks of one
                name; the driver has started.
        """
        if self._query is not None:
            raise ConfigurationError("A branch cannot be added to a driver that has started.")
        if any(branch.sink.name == sink.name for branch in self._branches):
            raise ConfigurationError(
                "Two sinks of one driver have the same name.",
                cause="the name is the topic when it is not given",
                option=f"name={sink.name}",
            )
        self._branches.append(make_branch(frame, sink))

    # --- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Check, fence older runs, recover what they decided, then start the query.

        Raises:
            ConfigurationError: an option, a topic, credentials or the checkpoint are wrong.
            DecisionLogError, TransactionLostError, OutcomeUnknownError: see their classes.
        """
        if not self._branches:
            raise ConfigurationError("The driver has nothing to write.", cause="call write() first")
        deadline = Deadline(self._checkpoint_timeout_s)
        try:
            # Nothing is at stake yet: a wrong address shall not take a checkpoint's time to show.
            first_answers = Deadline(min(_CONNECT_SECONDS, self._checkpoint_timeout_s))
            for source in self._sources:
                check_source(source, first_answers)
            self._open_sinks(first_answers)
            self._log = DecisionLog.open(
                LocalFileBackend(self._checkpoint / "decisions"),
                application_id=self._app_id,
                identity=self._identity(),
            )
            self._refuse_other_logs(self._log, deadline)
            finished = finished_checkpoint(self._checkpoint / "spark")
            settled = recover(self._log, self._sinks, deadline, finished=finished)
            self.recommitted = settled.recommitted
            self._coordinator = CheckpointCoordinator(
                self._log,
                self._sinks,
                timeout_s=self._checkpoint_timeout_s,
                stopping=self._stopping.is_set,
                lost=settled.lost,
            )
            self._batches = MicroBatches(
                self._coordinator,
                self._sinks,
                clusters=frozenset(source.bootstrap_servers for source in self._sources),
                spark_checkpoint=self._checkpoint / "spark",
            )
            self._start_query()
        except BaseException:
            self._close()
            raise

    def stop(self) -> None:
        """Stop between two checkpoints: a batch past its decision is finished, one before it
        ends without a decision and runs again at the next start. Safe from any thread.
        """
        self._stopping.set()
        query = self._query
        if query is None:
            return
        with self._idle:
            self._idle.wait_for(lambda: not self._in_batch, self._checkpoint_timeout_s)
        query.stop()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the query has ended; True if it has.

        Raises:
            SparkOnceError: what ended it, as it was raised.
        """
        assert self._query is not None, "call start() first"
        try:
            ended = self._query.awaitTermination(timeout_s)
        except StreamingQueryException as error:
            self._close()
            raise self._cause_of(error) from error
        if timeout_s is None or ended:
            self._close()
            return True
        return False

    def run(self) -> None:
        """start(), then wait; SIGTERM and ctrl-C stop between two checkpoints.

        Raises:
            SparkOnceError: what ended the query.
        """
        with self._signals():
            self.start()
            self.wait()

    def wait(self) -> None:
        """Wait until the query has ended or a stop was asked for, and stop it then.

        Raises:
            SparkOnceError: what ended the query.
        """
        try:
            while not self.await_termination(_POLL_SECONDS):
                if self._stopping.is_set():
                    self.stop()
        except StoppedError:
            logger.info("stopped between two checkpoints")

    def request_stop(self) -> None:
        """Ask for a stop and return at once; `wait` carries it out. Safe in a signal handler."""
        self._stopping.set()

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's query, for its progress; None before start()."""
        return self._query

    # --- one batch ----------------------------------------------------------------------------

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        with self._idle:
            self._in_batch = True
        try:
            # Batch 0 can begin before start() has returned the query to us.
            self._query_ready.wait(self._checkpoint_timeout_s)
            assert self._query is not None
            assert self._batches is not None
            report = self._batches.run(self._query, frame, batch_id)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            with self._idle:
                self._in_batch = False
                self._idle.notify_all()
        self.reports.append(report)
        if self._on_checkpoint is not None:
            self._on_checkpoint(report)

    # --- start and end ------------------------------------------------------------------------

    def _open_sinks(self, deadline: Deadline) -> None:
        at_least = self._checkpoint_timeout_s + self._restart_budget_s
        for branch in self._branches:
            options = branch.sink
            sink = KafkaTransactionalSink(
                options, timeout_ms=0, checkpoint_timeout_s=self._checkpoint_timeout_s
            )
            self._sinks[options.name] = sink
            sink.timeout_ms = transaction_timeout_ms(
                options, sink.wire, at_least_s=at_least, deadline=deadline
            )
            check_topic(options, deadline)

    def _identity(self) -> Mapping[str, str]:
        """Options that must be the same at every restart on one checkpoint."""
        sinks = {b.sink.name: {"kind": "kafka", "topic": b.sink.topic} for b in self._branches}
        topics = sorted({topic for source in self._sources for topic in source.subscribe})
        return {
            "sinks": orjson.dumps(sinks, option=orjson.OPT_SORT_KEYS).decode(),
            "sources": ",".join(topics),
        }

    def _refuse_other_logs(self, log: DecisionLog, deadline: Deadline) -> None:
        for sink in self._sinks.values():
            found = sink.wire.list_open(self._app_id, None, deadline)
            others = {one.transactional_id.split(".")[1] for one in found} - {log.log_id}
            if others:
                raise ConfigurationError(
                    f"Another decision log of the application {self._app_id!r} has open "
                    "transactions; two pipelines would write the same output.",
                    where=f"sink {sink.name!r}: logs {sorted(others)}, ours is {log.log_id}",
                    cause="the checkpoint folder was changed or copied while a driver ran on it",
                    option=f"app_id={self._app_id}, checkpoint={self._checkpoint}",
                )

    def _start_query(self) -> None:
        assert self._coordinator is not None
        stage = SinkStage(sinks=tuple(self._sinks.values()), owner=self._coordinator.owner)
        written = unite(self._branches).mapInArrow(stage, COMMITTABLE_DDL)
        writer = written.writeStream.queryName(self._app_id)
        writer = writer.option("checkpointLocation", str(self._checkpoint / "spark"))
        writer = writer.outputMode("update").foreachBatch(self._run_batch)
        if self._trigger == "available-now":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=self._trigger)
        self._query = writer.start()
        self._query_ready.set()

    def _cause_of(self, error: BaseException) -> BaseException:
        failure, self._failure = self._failure, None
        if isinstance(failure, SparkOnceError):
            return failure
        if self._stopping.is_set():
            return StoppedError("The driver was stopped.", cause=str(error))
        return error_in(str(failure or error)) or error

    def _close(self) -> None:
        """End what this run holds; transactions of a failed attempt are swept, best effort."""
        if self._coordinator is not None:
            self._coordinator.close()
            self._sweep_after_end(self._coordinator)
            self._coordinator = None
        for sink in self._sinks.values():
            sink.close()

    def _sweep_after_end(self, coordinator: CheckpointCoordinator) -> None:
        if self._failure is None and not self._stopping.is_set():
            return
        try:
            assert self._log is not None
            self._log.check_newest()
            if coordinator.is_settled():
                sweep(self._sinks, coordinator.owner, Deadline(10.0))
        except SparkOnceError as error:
            logger.warning("the last sweep did not run, the next start does it: %s", error)

    @contextmanager
    def _signals(self) -> Iterator[Self]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {
            number: signal.signal(number, lambda *_: self.request_stop())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _local_folder(checkpoint: str) -> Path:
    path = checkpoint.removeprefix("file://")
    if "://" in path:
        raise ConfigurationError(
            "The checkpoint must be a folder of a local file system.",
            cause="the decision log needs link() and fsync()",
            option=f"checkpoint={checkpoint}",
        )
    return Path(path).absolute()
