"""Restarting a failed run in the same process, by the restart strategy of its driver."""

from __future__ import annotations

import logging
import secrets
from random import Random

from pyspark.sql import SparkSession

from connectors.spark.failures import reason
from connectors.spark.stop_signals import StopFlag
from transactions import events
from transactions.clock import Deadline
from transactions.errors import ConfigurationError, SparkOnceError, StoppedError
from transactions.restart_strategy import (
    RestartPolicy,
    RestartStrategy,
    is_retried,
    parse_restart_strategy,
)

logger = logging.getLogger(__name__)


class Restarts:
    """Decides what follows a failed run. Lives on the driver, on the thread that waits.

    Args:
        app_id: for the log.
        strategy: the user's text, see `transactions.restart_strategy`.
        tolerable_failed_checkpoints: see `RestartPolicy`.

    Raises:
        ConfigurationError: the strategy, or the number, is wrong.
    """

    def __init__(
        self, app_id: str, strategy: str | RestartStrategy, *, tolerable_failed_checkpoints: int
    ) -> None:
        if tolerable_failed_checkpoints < 0:
            raise ConfigurationError(
                "The number of tolerable failed checkpoints is negative.",
                where=f"application {app_id!r}",
                cause="it must be 0 or more",
                option=f"tolerable_failed_checkpoints={tolerable_failed_checkpoints}",
            )
        self._app_id = app_id
        self._policy = RestartPolicy(
            parse_restart_strategy(strategy),
            Random(secrets.randbits(64)),  # noqa: S311 - spreads restarts, keeps no secret
            tolerable_failed_checkpoints=tolerable_failed_checkpoints,
        )
        self._next: Deadline | None = None
        self._cause = ""

    @property
    def made(self) -> int:
        """How many restarts were granted so far."""
        return self._policy.restarts

    @property
    def pending(self) -> bool:
        """Return whether the last run failed and the next one has not begun."""
        return self._next is not None

    def checkpoint_completed(self) -> None:
        """Note progress: it ends a series of failed checkpoints. Called on the query's thread."""
        self._policy.checkpoint_completed()

    def failed(self, error: BaseException, spark: SparkSession, *, in_checkpoint: bool) -> None:
        """Plan the next run after a failure; the failed run is already closed.

        Args:
            error: the error that ended the run, or that prevented the next start.
            spark: the session; without its JVM no restart is possible.
            in_checkpoint: the run failed during a checkpoint.

        Raises:
            BaseException: `error`, with the number of restarts in its text, when no run follows.
        """
        alive = is_retried(error) and _is_alive(spark)
        delay = self._policy.after_failure(error, in_checkpoint=in_checkpoint) if alive else None
        if delay is None:
            raise self._given_up(error)
        self._next, self._cause = Deadline(delay), _first_line(error)
        logger.warning(
            "%s: restart %d in %.1f s (%s); the run failed: %s",
            self._app_id,
            self.made,
            delay,
            self._policy.strategy,
            error if isinstance(error, SparkOnceError) else reason(error),
        )

    def wait(self, stopping: StopFlag, timeout_s: float) -> bool:
        """Wait for the moment of the next run, not longer than the timeout or until a stop.

        Returns:
            True once the moment has come; the restart is no longer pending then.
        """
        assert self._next is not None
        stopping.wait(min(timeout_s, self._next.remaining()))
        if stopping.is_set() or not self._next.expired():
            return False
        delay_ms, self._next = self._next.seconds * 1000.0, None
        events.publish(
            "restarted", app=self._app_id, attempt=self.made, delay_ms=delay_ms, cause=self._cause
        )
        return True

    def _given_up(self, error: BaseException) -> BaseException:
        """Return the error to raise: the last one, with the number of restarts in its text."""
        if not self.made or isinstance(error, StoppedError):
            return error
        note = f"given up after {self.made} restart(s) by {self._policy.strategy}"
        logger.error("%s: %s", self._app_id, note)
        if not isinstance(error, SparkOnceError):
            error.add_note(note)
            return error
        where = "; ".join(filter(None, (error.where, note)))
        said = type(error)(error.what, where=where, cause=error.cause, option=error.option)
        said.__cause__ = error
        return said


def _is_alive(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001 - no public way
    except Exception:  # noqa: BLE001 - the JVM is gone: py4j raises whatever it met
        return False


def _first_line(error: BaseException) -> str:
    if not isinstance(error, SparkOnceError):
        return reason(error)[:300]
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"[:300]
