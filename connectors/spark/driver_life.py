"""The life that the drivers of both modes share: run, wait, stop on a signal, restart."""

from __future__ import annotations

import abc
import logging
import math
import secrets
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from typing import ClassVar

from pyspark.sql import SparkSession

from connectors.pipeline.driver_metrics import DriverMetrics
from connectors.pipeline.restored_checkpoint import EngineFiles
from connectors.pipeline.restoring import FromSavepoint, restore
from connectors.pipeline.run import Run
from connectors.pipeline.run_options import RunOptions
from connectors.pipeline.savepoint_request import SavepointRequests
from connectors.spark.hadoop_copier import copier_between
from connectors.spark.restarts import Restarts
from connectors.spark.stop_signals import StopFlag, stop_signals
from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import Deadline
from transactions.coordinator import CheckpointReport
from transactions.decision_log import DecisionLog
from transactions.errors import (
    FencedError,
    SavepointNotMadeError,
    SparkOnceError,
    StoppedError,
)
from transactions.events import publish
from transactions.log_backend import LocalFileBackend
from transactions.log_state import LogState
from transactions.savepoint import has_decided, savepoint_of, unfinished, unseen, unwritten
from transactions.savepoint_place import MANIFEST, delete_savepoint, write_savepoint

logger = logging.getLogger(__name__)

POLL_S = 0.2
#: The engine may remove old state during the copy; then we list its files again.
_TRIES = 5


class DriverLife(abc.ABC):
    """What a driver of either mode does around its checkpoints. Lives in the driver process.

    Args:
        spark: a classic session.
        restarts: decides what happens after a run failed.
        checkpoint: where the driver's checkpoint lies.
        from_savepoint: the savepoint with which an empty folder begins.
    """

    #: Knows the engine's files in the checkpoint.
    _engine: EngineFiles
    #: Whether the engine has any.
    _has_files: ClassVar[bool] = True
    #: The last checkpoints, newest last; bounded.
    reports: deque[CheckpointReport]
    _on_checkpoint: Callable[[CheckpointReport], None] | None
    _metrics: DriverMetrics

    def __init__(
        self,
        spark: SparkSession,
        restarts: Restarts,
        checkpoint: CheckpointLocation,
        from_savepoint: FromSavepoint | None,
    ) -> None:
        self._spark = spark
        self._restarts = restarts
        self._location = checkpoint
        self._requests = SavepointRequests(checkpoint)
        self._from_savepoint = from_savepoint
        self._claim: CheckpointLocation | None = None
        self._waits = False
        self._has_ended_well = False
        self._ended_with: Exception | None = None
        #: The log after the last finished checkpoint; everything it decided is committed.
        self._finished: LogState | None = None
        #: The error of a failed stop. The user may see only a StoppedError; a savepoint then fails.
        self._failed_to_stop: BaseException | None = None
        #: The error that ended the last run, if no run has yet proven its decision committed.
        self._unfinished: BaseException | None = None
        self._stopping = StopFlag()
        self._run: Run | None = None

    @abc.abstractmethod
    def start(self) -> None:
        """Check, fence older runs, recover what they decided, begin."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop between two checkpoints. Safe from any thread."""

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the pipeline has ended; return True if it has. Restarts happen in this call.
        Each call after the end answers as the first one did.

        Raises:
            SparkOnceError: the error that ended it, unchanged, when it is not restarted.
        """
        if self._ended_with is not None:
            raise self._ended_with
        deadline = Deadline(math.inf if timeout_s is None else timeout_s)
        with self._metrics.closed_on_error():
            while not self._has_ended_well:
                try:
                    self._has_ended_well = self._has_ended(min(deadline.remaining(), POLL_S))
                except Exception as error:
                    self._ended_with = error
                    raise
                if not self._has_ended_well and deadline.expired():
                    return False
        self._metrics.close()
        return True

    def _begin_life(self) -> None:
        """Forget the end of an earlier life; called by `start`."""
        self._has_ended_well = False
        self._ended_with = None

    @abc.abstractmethod
    def _has_ended(self, timeout_s: float) -> bool:
        """Wait for the end of the present run; return True after a good end of the pipeline."""

    @abc.abstractmethod
    def _start_run(self) -> None:
        """Begin a new run, the first or a later one: it fences, recovers and sweeps."""

    @abc.abstractmethod
    def _checkpoint_files(self, checkpoint_id: int) -> Mapping[str, str]:
        """Return the engine's files of a finished checkpoint, by path below the checkpoint.

        Raises:
            SavepointError: the engine has not recorded the checkpoint as finished.
        """

    def run(self) -> None:
        """Call start(), then wait; ctrl-C, SIGTERM and SIGHUP stop between two checkpoints.

        Raises:
            SparkOnceError: the error that ended the pipeline.
            SystemExit: a signal has stopped it where a cluster runs this program: see
                `stop_signals`.
        """
        with stop_signals(self.request_stop):
            self.start()
            self.wait()

    def wait(self) -> None:
        """Wait until the pipeline has ended or a stop was requested; then stop it.

        Raises:
            SparkOnceError: the error that ended the pipeline.
        """
        self._waits = True
        try:
            while not self.await_termination(POLL_S):
                self._serve_when_idle()
                self._claim_when_due()
                if self._stopping.is_set():
                    self.stop()
        except StoppedError as stopped:
            logger.debug("the stop interrupted a checkpoint: %s", stopped)
        finally:
            self._requests.close()
        if self._stopping.is_set():
            logger.info("stopped between two checkpoints")
        self._serve_savepoints(ended=True)
        self._claim_when_due()

    def request_stop(self) -> None:
        """Request a stop and return at once; `wait` performs it. Safe in a signal handler."""
        self._stopping.set()

    @property
    def restarts(self) -> int:
        """How often the restart strategy has started the pipeline again."""
        return self._restarts.made

    @property
    def unfinished(self) -> BaseException | None:
        """The reason why an end now is not good: a decided transaction is not proven committed, or
        is lost and not healed. None when there is no such transaction.
        """
        return self._left_by_run() or self._unfinished

    @abc.abstractmethod
    def _left_by_run(self) -> SparkOnceError | None:
        """Return what the open run has not finished; None between two runs."""

    def _good_end(self, unfinished: SparkOnceError | None) -> bool:
        """End for good; return True if the last run has finished everything it decided.

        Raises:
            SparkOnceError: it has not: the next start must come before the broker aborts the rest.
        """
        self._failed_to_stop = unfinished
        if unfinished is not None:
            raise unfinished
        return True

    def _restore(self, run: RunOptions) -> None:
        """Begin the checkpoint folder with the requested savepoint; called before the first run.

        Raises:
            SavepointError, BrokerUnavailableError: see `restore`.
        """
        if self._from_savepoint is None:
            return
        made = restore(self._from_savepoint, run, self._engine)
        place = self._from_savepoint.location(run.checkpoint)
        self._claim = place if self._from_savepoint.claim else None
        if made is None:
            logger.info(
                "%s was restored at an earlier start; the pipeline continues", run.checkpoint
            )
            return
        number = made.decision.checkpoint_id
        publish("restored", app=run.app_id, checkpoint=number, savepoint=made.savepoint_id)

    def _ended_before_a_restart(self) -> bool:
        """End for good instead of starting the next run, if the last run left nothing unfinished.

        Raises:
            BaseException: the error that ended the last run, if no run has yet proven its decision
                committed: without a next start the broker aborts it.
        """
        if self._unfinished is not None:
            raise self._unfinished
        return True

    @abc.abstractmethod
    def _await_visible(self) -> None:
        """Wait until readers see the last checkpoint: a savepoint keeps no transactions to check.

        Raises:
            HiddenCommitError: see the class.
        """

    def _claim_when_due(self) -> None:
        """Delete a claimed savepoint when a checkpoint after it is finished, as Flink does."""
        log = self._finished
        if self._claim is None or log is None or not has_decided(log):
            return
        try:
            if self._claim.read(MANIFEST) is not None:
                delete_savepoint(self._claim, copier_between(self._spark, self._claim))
        except (OSError, SparkOnceError) as error:
            logger.warning("the claimed savepoint was not deleted: %s", error)
        self._claim = None

    def _completed(self, report: CheckpointReport) -> None:
        """Record a committed checkpoint; called on the thread that made it."""
        assert self._run is not None
        self._finished = self._run.log.state
        self._run.show_offsets()
        self._restarts.checkpoint_completed()
        self.reports.append(report)
        if self._on_checkpoint is not None:
            self._on_checkpoint(report)

    def _serve_when_idle(self) -> None:
        """Make the requested savepoints, if the engine's files do not change now."""
        self._serve_savepoints()

    def _serve_savepoints(self, *, ended: bool = False) -> None:
        """Make the requested savepoints. Called between two checkpoints.

        Args:
            ended: the pipeline has stopped; before that, a request with a stop only stops it.
        """
        if self._stopping.is_set() and not ended:
            # The end serves them. A batch that begins meanwhile runs on the thread that Spark
            # interrupts, and so would its clients of a store.
            return
        if self._restarts.pending and not ended:
            return  # the next run finds out how the failed run's last checkpoint ended
        for request in self._requests.pending(anew=ended):
            if request.stop and not self._waits:
                continue  # this driver's user does not call `wait`, so nobody would stop it
            try:
                folder = self._location.beside(request.folder)
                if request.stop and not ended:
                    self._check_writable(folder)  # else the pipeline stops without a savepoint
                    self.request_stop()
                    continue
                made: CheckpointLocation | SparkOnceError = self._savepoint(folder, ended=ended)
            except FencedError:
                return  # a newer driver will answer
            except SparkOnceError as error:
                made = error
            except FileNotFoundError as error:
                made = SavepointNotMadeError(
                    "A file vanished while the savepoint was made.",
                    where=f"{request.folder}: {error}",
                    cause="Spark removes old state, and each look found other files; or a link in "
                    "the checkpoint leads nowhere",
                    option="take the savepoint again",
                )
            except (OSError, ValueError) as error:
                made = unwritten(request.folder, error)
            self._requests.answer(request, made)

    def _savepoint(self, folder: CheckpointLocation, *, ended: bool) -> CheckpointLocation:
        savepoint = savepoint_of(self._finished or LogState())
        number = savepoint.decision.checkpoint_id
        log = self._known_log()
        assert log is not None
        log.check_newest()
        self._await_visible()
        if self._failed_to_stop is not None:
            raise unfinished(f"the stop failed: {self._failed_to_stop}")
        decided = log.state.decision
        if ended and decided is not None and decided.checkpoint_id != number:
            raise unfinished(f"checkpoint {decided.checkpoint_id}")
        if ended and decided is not None and decided.committables:  # else the stop has settled it
            raise unseen(f"checkpoint {number}")
        copier = copier_between(self._spark, self._location, folder)
        for last in (False,) * (_TRIES - 1) + (True,):
            try:
                place = write_savepoint(folder, savepoint, self._checkpoint_files(number), copier)
                break
            except FileNotFoundError:
                if last:
                    raise
        try:
            log.check_newest()  # a newer run's batches may have written during the copy
        except FencedError:
            delete_savepoint(place, copier)
            raise
        app_id = savepoint.log.application_id
        publish("savepoint", app=app_id, checkpoint=number, place=str(place))
        return place

    def _check_writable(self, folder: CheckpointLocation) -> None:
        """Check that a savepoint can be written, by both clients of a store: ours, and Hadoop's for
        the engine's files.

        Raises:
            SparkOnceError, OSError: it cannot.
        """
        probe = f"{secrets.token_hex(8)}.probe"
        files = folder.files() if folder.folder is None else LocalFileBackend(folder.folder)
        files.put_if_absent(probe, b"1")
        files.delete(probe)
        if self._has_files and folder.folder is None:
            copier = copier_between(self._spark, folder)
            with tempfile.NamedTemporaryFile(prefix="sparkonce-") as small:
                copier.copy(small.name, folder.part(probe).file("1"))
            copier.remove(folder.file(probe))

    def _known_log(self) -> DecisionLog | None:
        """Return the log, for the metrics; from any thread."""
        return None if self._run is None else self._run.known_log

    def _restart(self) -> None:
        try:
            if self._run is not None:  # a newer driver's sweep may have failed us; it wins
                self._run.check_newest()
            self._start_run()
            self._unfinished = None
        except Exception as error:  # noqa: BLE001 - the strategy decides, and raises it
            self._restarts.failed(error, self._spark, in_checkpoint=False)


def wait_while(condition: Callable[[], bool], most_s: float) -> None:
    """Wait while a condition holds, at most for this time."""
    deadline = Deadline(most_s)
    while condition() and not deadline.expired():
        deadline.pause(POLL_S / 10)
