"""The life that the drivers of both modes share: run, wait, stop on a signal, restart."""

from __future__ import annotations

import abc
import logging
import threading

from pyspark.sql import SparkSession

from connectors.kafka.run import Run
from connectors.spark.restarts import Restarts
from connectors.spark.stop_signals import stop_signals
from transactions.decision_log import DecisionLog
from transactions.errors import StoppedError

logger = logging.getLogger(__name__)

POLL_S = 0.2


class DriverLife(abc.ABC):
    """What a driver does around its checkpoints, whoever makes them. Lives in the driver process.

    Args:
        spark: a classic session.
        restarts: what becomes of a run that failed.
    """

    def __init__(self, spark: SparkSession, restarts: Restarts) -> None:
        self._spark = spark
        self._restarts = restarts
        self._stopping = threading.Event()
        self._run: Run | None = None

    @abc.abstractmethod
    def start(self) -> None:
        """Check, fence older runs, recover what they decided, begin."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop between two checkpoints. Safe from any thread."""

    @abc.abstractmethod
    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the pipeline has ended; True if it has. Restarts happen in this call."""

    @abc.abstractmethod
    def _start_run(self) -> None:
        """Begin a run of its own, whether first or again: it fences, recovers and sweeps."""

    def run(self) -> None:
        """start(), then wait; SIGTERM and ctrl-C stop between two checkpoints.

        Raises:
            SparkOnceError: what ended the pipeline.
        """
        with stop_signals(self.request_stop):
            self.start()
            self.wait()

    def wait(self) -> None:
        """Wait until the pipeline has ended or a stop was asked for, and stop it then.

        Raises:
            SparkOnceError: what ended the pipeline.
        """
        try:
            while not self.await_termination(POLL_S):
                if self._stopping.is_set():
                    self.stop()
        except StoppedError:
            logger.info("stopped between two checkpoints")

    def request_stop(self) -> None:
        """Ask for a stop and return at once; `wait` carries it out. Safe in a signal handler."""
        self._stopping.set()

    @property
    def restarts(self) -> int:
        """How often the restart strategy has started the pipeline again."""
        return self._restarts.made

    def _known_log(self) -> DecisionLog | None:
        """For the metrics; from any thread."""
        return None if self._run is None else self._run.known_log

    def _restart(self) -> None:
        try:
            if self._run is not None:  # what failed us can be a newer driver's sweep: it wins
                self._run.check_newest()
            self._start_run()
        except Exception as error:  # noqa: BLE001 - the strategy decides, and raises it
            self._restarts.failed(error, self._spark, in_checkpoint=False)
