"""The Spark job of a continuous stage: a barrier stage whose tasks run until they are stopped.

A barrier stage starts all of its tasks or none. Spark never retries a barrier stage that ends in
`collect` (seen): our restart strategy is the only one.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

from connectors.continuous.stage_task import Task, run_task
from connectors.spark.failures import error_in, reason
from transactions.errors import ConfigurationError, PhaseOneError, SparkOnceError


@dataclasses.dataclass(frozen=True, slots=True)
class _RunTask:
    """The function of the stage; importable, so Spark pickles only the task's fields."""

    task: Task

    def __call__(self, _: Iterator[Any]) -> Iterator[Any]:
        context = BarrierTaskContext.get()
        run_task(self.task, context.partitionId(), context.taskAttemptId())
        return iter(())


class BarrierStage:
    """A job on a thread of its own. Lives on the driver.

    Args:
        spark: the session.
        name: name of the job group.
        task: what each task runs.
        parallelism: how many tasks.
        had_slots: an earlier stage of this driver had a slot for each of its tasks. So a slot that
            is missing now was lost with an executor, and may come back.
        on_end: called on that thread with the error that ended the job; None after a good end.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        task: Task,
        parallelism: int,
        on_end: Callable[[BaseException | None], None],
        *,
        had_slots: bool = False,
    ) -> None:
        self._context = spark.sparkContext
        self._name = name
        self._task = task
        self._parallelism = parallelism
        self._on_end = on_end
        self._had_slots = had_slots
        self._thread = threading.Thread(target=self._run, name="sparkonce-job", daemon=True)

    def start(self) -> None:
        """Submit the job."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Wait for the job's end, and cancel the job after the timeout."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._context.cancelJobGroup(self._name)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._context.setJobGroup(self._name, "continuous stage", interruptOnCancel=True)
            numbers = self._context.parallelize(range(self._parallelism), self._parallelism)
            numbers.barrier().mapPartitions(_RunTask(self._task)).collect()
        except Exception as failure:  # noqa: BLE001 - passed to the driver's thread
            error = explained(failure, self._parallelism, had_slots=self._had_slots)
        self._on_end(error)


def explained(failure: Exception, parallelism: int, *, had_slots: bool) -> SparkOnceError:
    """Return our error for a stage that failed in Spark.

    Args:
        failure: as PySpark raised it.
        parallelism: how many tasks the stage has.
        had_slots: see `BarrierStage`; if true, the restart strategy decides.
    """
    text = str(failure)
    found = error_in(text)
    if found is not None:
        return found
    if "SPARK-24819" in text or "requires more slots" in text:
        kind = PhaseOneError if had_slots else ConfigurationError
        return kind(
            "Spark has too few slots for the tasks of the continuous stage.",
            where=f"{parallelism} tasks at the same time",
            cause="an executor is gone, and Spark has not replaced it yet"
            if had_slots
            else "a barrier stage starts all of its tasks or none",
            option=f"parallelism={parallelism}; master, executor cores",
        )
    if "SPARK-24942" in text:
        return ConfigurationError(
            "Spark runs no continuous stage where the number of executors changes by itself.",
            where=f"{parallelism} tasks at the same time",
            cause="a barrier stage needs a fixed number of slots",
            option="spark.dynamicAllocation.enabled=true: false, and spark.executor.instances",
        )
    return PhaseOneError(
        "The continuous stage failed; nothing of its checkpoint is visible.",
        where=f"{parallelism} tasks",
        cause=reason(failure),
    )
