"""Exactly-once output from a query of the user's own: a function for `foreachBatch`.

    writer = BatchWriter(KafkaSink(..., topic="clean"), app_id="flights")
    query = frame.writeStream.option("checkpointLocation", folder).foreachBatch(writer).start()

or, in a function that does more with a batch::

    def each(frame, batch_id):
        frame.persist()
        show(frame)
        writer(frame.select("key", "value"), batch_id)

The source may be any that reads the same records again for the same batch: Kafka, files, a table.
Spark calls the function between its own offsets/N and commits/N. The call returns only when every
record of the batch is committed. The user starts the query again after a failure; the first batch
settles what the run before has decided.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from connectors.machine.user_folders import checkpoint_folder
from connectors.options.option import checked_app_id
from connectors.pipeline.run import Run
from connectors.pipeline.run_options import RunOptions
from connectors.spark.batch_offsets import checkpoint_of, execution_around
from connectors.spark.branches import Branch, make_branch
from connectors.spark.durable_files import DurableFiles
from connectors.spark.micro_batch import MicroBatches
from connectors.spark.open_run import RESTS_S, OpenRun
from connectors.spark.quiet_end import as_spark_ends
from connectors.spark.replayable_query import refuse_sources_of_query, refuse_state_of_query
from connectors.spark.session import RUNTIME_CONF, check_session, refuse_connect
from connectors.spark.sink_stage import COMMITTABLE_DDL
from connectors.spark.stuck_jobs import cancelled_after
from connectors.spark.writer_folder import WriterFolder
from transactions.checkpoint_location import CheckpointLocation
from transactions.coordinator import CheckpointReport
from transactions.errors import ConfigurationError, ReplayMismatchError, StoppedError
from transactions.log_state import LogState
from transactions.sink import Sink

logger = logging.getLogger(__name__)

#: Which object has written which run of a query, by the folder of its application.
_SERVED: Final[dict[Path, tuple[str, weakref.ref[BatchWriter]]]] = {}
_LOCK: Final = threading.Lock()
_EXIT_SECONDS: Final = 5.0
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


class BatchWriter:
    """Writes each batch of one query exactly once. Lives in the driver process.

    Its decision log lies in ``sparkonce/<app_id>`` of the query's checkpoint. The command
    `sparkonce transactions` takes this folder as ``--checkpoint``.

    Args:
        sink: the target: a `KafkaSink`, or another two-phase sink.
        app_id: stable name of the pipeline, unique on its Kafka clusters; letters, digits, _, -.
        checkpoint_timeout_s: how long one batch may take; then its Spark job is cancelled, and the
            query fails.
        restart_budget_s: how long a restart of the query may take before the broker may abort what
            was decided; with the checkpoint timeout it must fit into the transaction timeout.
        accept_duplicates: start on an old folder: output unknown to this folder is written twice.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        app_id: str,
        checkpoint_timeout_s: float = 600.0,
        restart_budget_s: float = 60.0,
        accept_duplicates: bool = False,
    ) -> None:
        self._sink = sink
        self._app_id = checked_app_id(app_id)
        self._checkpoint_timeout_s = checkpoint_timeout_s
        self._restart_budget_s = restart_budget_s
        self._accept_duplicates = accept_duplicates
        self._one_at_a_time = threading.RLock()
        self._query_id = ""
        self._open: _OpenQuery | None = None
        self._before: Run | None = None
        self._failed: tuple[str, BaseException] | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch. Called by foreachBatch, or on its thread, once for each batch.

        Args:
            frame: the rows to write: the batch, or what was made of it. For a Kafka sink its
                columns are those of Spark's sink.
            batch_id: the number that foreachBatch has passed.

        Raises:
            ConfigurationError: an option, a column, a topic, the checkpoint or the source is wrong.
            ReplayMismatchError: the batch does not follow the last one that was written.
            SparkOnceError: the batch is not committed, or not known to be. Let it pass: where
                foreachBatch returns, Spark takes the batch for written.
        """
        refuse_connect(frame.sparkSession)
        with self._one_at_a_time:
            execution = execution_around(frame, batch_id)
            self._check_in_turn(execution, batch_id)
            try:
                with _without_adaptive_execution(frame.sparkSession):
                    self._write(execution, frame, batch_id)
            except StoppedError as stopped:
                spark, most_s = frame.sparkSession, self._checkpoint_timeout_s
                raise as_spark_ends(stopped, spark, most_s) from None
            except BaseException as error:
                self._failed = str(execution.runId()), error
                raise

    def _write(self, execution: Any, frame: DataFrame, batch_id: int) -> None:
        if self._open is None:
            check_session(frame.sparkSession)
            folder = WriterFolder(checkpoint_folder(checkpoint_of(execution)), self._app_id)
            self._refuse_twin(folder, execution)
            folder.note_call(batch_id)
            branch = make_branch(frame, self._sink)
            self._open = self._begin(execution, branch, folder, batch_id)
            atexit.register(self._close_at_exit)
        else:
            branch = make_branch(frame, self._sink, warn=False)
        self._open.write(execution, branch, batch_id)

    def _refuse_twin(self, folder: WriterFolder, execution: Any) -> None:
        """Check that no other object has written this run of the query: it has decided its batches,
        and what this one would write is never decided.
        """
        run_id, ours = str(execution.runId()), weakref.ref(self)
        with _LOCK:
            served, by = _SERVED.get(folder.path, (run_id, ours))
            _SERVED[folder.path] = (run_id, by if served == run_id else ours)
        if served == run_id and by() is not self:
            raise ConfigurationError(
                "Two writers of one application write the same query.",
                where=f"application {self._app_id}, run {run_id}",
                cause="the function of foreachBatch makes a BatchWriter in each call, or two with "
                "one app_id",
                option=f"app_id={self._app_id}: make one BatchWriter before the query starts; "
                "another one needs its own app_id",
            )

    def _check_in_turn(self, execution: Any, batch_id: int) -> None:
        """Check that the query is ours, and that the batch before was written."""
        query_id = str(execution.id())
        if self._query_id not in {"", query_id}:
            raise ConfigurationError(
                "A writer can serve one query only.",
                where=f"application {self._app_id}: query {self._query_id}, and now {query_id}",
                cause="one BatchWriter is used by two queries, or with two checkpoints",
                option="BatchWriter(sink, app_id=...): one for each query, with its own app_id",
            )
        self._query_id = query_id
        if self._open is not None and self._open.run_id != str(execution.runId()):
            self._close(self._open)  # before the thread that waits for the query's end does it
        run_id, error = self._failed or ("", None)
        if run_id == str(execution.runId()):
            raise ReplayMismatchError(
                "The query went on after a batch that was not written.",
                where=f"application {self._app_id}, batch {batch_id}; before: {error}",
                cause="the function of foreachBatch has caught the writer's error",
                option="foreachBatch: let the error pass, and start the query again",
            ) from error

    def _begin(
        self, execution: Any, branch: Branch, folder: WriterFolder, batch_id: int
    ) -> _OpenQuery:
        """Take over from the run before: fence, recover, sweep."""
        refuse_sources_of_query(execution)
        refuse_state_of_query(folder.checkpoint, execution, RUNTIME_CONF)
        accepts, run_id = self._accept_duplicates, str(execution.runId())
        folder.check(batch_id, accept_duplicates=accepts, siblings=_served(run_id))
        run = Run(self._run_options(folder.path, branch), self._before)
        if self._before is not None:
            self._before.check_newest()  # the newer of two drivers wins
            self._before = run  # at once: if this start fails, only its own log knows its Fence
        run.open(finished=folder.finished())
        try:
            # Of a run before, too: a sibling is called soon, and must not find a newer Fence.
            folder.stop_others(run, batch_id, accept_duplicates=accepts, siblings=_served())
            timeout_s = self._checkpoint_timeout_s
            opened = _OpenQuery(run, execution, branch.schema, folder, timeout_s=timeout_s)
        except BaseException:
            run.close()
            raise
        self._before = run
        ending = threading.Thread(
            target=self._close_at_end, args=(execution, opened), name="sparkonce-end", daemon=True
        )
        ending.start()
        return opened

    def _run_options(self, folder: Path, branch: Branch) -> RunOptions:
        return RunOptions(
            app_id=self._app_id,
            checkpoint=CheckpointLocation(folder),
            sources=(),
            sinks=(self._sink,),
            schemas={self._sink.name: branch.schema},
            checkpoint_timeout_s=self._checkpoint_timeout_s,
            restart_budget_s=self._restart_budget_s,
            accept_duplicates=self._accept_duplicates,
        )

    def _close_at_end(self, execution: Any, opened: _OpenQuery) -> None:
        """Wait for the end of the query, then leave nothing open; on a thread of its own.

        Meanwhile the query can be started again: its first batch closes the run.
        """
        try:
            execution.awaitTermination()
        except Exception as error:  # noqa: BLE001 - the user gets it from his query
            logger.debug("the query of application %s has ended: %s", self._app_id, error)
        with self._one_at_a_time:
            rests = self._open is opened and opened.sweep_on()
        if rests:
            opened.closed.wait(RESTS_S)
        with self._one_at_a_time:
            self._close(opened)

    def _close_at_exit(self) -> None:
        """Close when the process ends; the next start sees to a batch that is still under way."""
        if self._one_at_a_time.acquire(timeout=_EXIT_SECONDS):
            try:
                self._close(self._open)
            except Exception as error:  # noqa: BLE001 - the next start does it
                logger.warning("application %s was not closed: %s", self._app_id, error)
            finally:
                self._one_at_a_time.release()

    def _close(self, opened: _OpenQuery | None) -> None:
        if opened is not None and self._open is opened:
            self._open = None
            try:
                opened.close()
            finally:
                atexit.unregister(self._close_at_exit)  # it would keep this object for ever


class _OpenQuery(OpenRun):
    """What the writer holds for one run of the query.

    Attributes:
        run_id: Spark's; another one at each start of the query.
        closed: set by `close`.
    """

    def __init__(
        self, run: Run, execution: Any, schema: pa.Schema, folder: WriterFolder, *, timeout_s: float
    ) -> None:
        self.run_id = str(execution.runId())
        durable, stopping = DurableFiles(folder.checkpoint), lambda: not execution.isActive()
        super().__init__(run, durable, timeout_s=timeout_s, stopping=stopping)
        self._folder = folder
        self._schema = schema
        self._timeout_s = timeout_s
        self._written = -1
        self._in_batch = False
        self.closed = threading.Event()
        self._batches = MicroBatches(
            self.coordinator,
            run.log,
            [*run.sinks],
            offsets_sink=None,
            files=durable,
        )

    def write(self, execution: Any, branch: Branch, batch_id: int) -> CheckpointReport:
        """Make the batch one checkpoint; see `MicroBatches.run`."""
        if branch.schema != self._schema:
            raise ConfigurationError(
                "The columns of a batch differ from those of the batches before.",
                where=f"batch {batch_id}: {_names(branch.schema)}; before: {_names(self._schema)}",
                cause="the function of foreachBatch makes another DataFrame from this batch",
                option="writer(frame, batch_id): pass the same columns in every batch",
            )
        if batch_id == self._written:
            self._folder.note_second_call(batch_id)
            raise ConfigurationError(
                "The writer was called a second time for one batch.",
                where=f"application {self.run.log.owner.application_id}, batch {batch_id}",
                cause="a batch is one checkpoint, and it was committed by the first call",
                option="writer(frame, batch_id): unite the rows in later batches. The rows of this "
                "call need another BatchWriter with its own app_id",
            )
        _refuse_gap(self.run.log.state, batch_id)
        written = branch.frame.mapInArrow(self.stage, COMMITTABLE_DDL)
        spark = branch.frame.sparkSession
        self._in_batch = True
        with cancelled_after(self._timeout_s, spark, self.run_id, batch_id):
            report = self._batches.run(execution, written, batch_id)
        self._in_batch, self._written = False, batch_id
        self._folder.note_finished(batch_id)
        return report

    def sweep_on(self) -> bool:
        """Sweep on if the query has ended inside a batch: Spark only cancels its tasks."""
        return self._in_batch and super().sweep_on()

    def close(self) -> None:
        """Write down that nothing waits, abort what tasks left open, close the connections."""
        self.closed.set()
        if unfinished := self.run.end(self.coordinator):
            logger.warning("the query has ended, and must be started again: %s", unfinished)


@contextlib.contextmanager
def _without_adaptive_execution(spark: SparkSession) -> Iterator[None]:
    """Write a batch with tasks whose number does not depend on its data: a replay needs the same.

    Only meanwhile: Spark has planned the batch itself before it called. Were the next batch planned
    by this setting, then its replay, the first batch of another run, would have other tasks.
    """
    before = spark.conf.get(_ADAPTIVE)
    spark.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        spark.conf.set(_ADAPTIVE, before)


def _served(run_id: str = "") -> list[Path]:
    """Return the folders that this process has opened, or that one run of a query has."""
    with _LOCK:
        return [folder for folder, (run, _) in _SERVED.items() if run_id in {"", run}]


def _refuse_gap(log: LogState, batch_id: int) -> None:
    """Check that each batch since the last decision was written.

    Raises:
        ReplayMismatchError: one was not.
    """
    last = log.decision
    if last is not None and batch_id > last.checkpoint_id + 1:
        raise ReplayMismatchError(
            "Batches were left out: the writer was not called for them.",
            where=f"application {log.application_id}: the last batch written is "
            f"{last.checkpoint_id}, this one is {batch_id}",
            cause="the function of foreachBatch returned without a call of the writer, or has "
            "caught its error",
            option="writer(frame, batch_id): call it in every batch, also in an empty one. "
            "Another app_id goes on from here, without the records of the batches left out",
        )


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
