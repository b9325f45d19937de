"""A run that is open, until its query has ended: its coordinator, and how it sweeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from connectors.pipeline.run import Run
from connectors.spark.durable_files import DurableFiles
from connectors.spark.sink_stage import SinkStage
from transactions.coordinator import CheckpointCoordinator

#: How often a run sweeps while it has no batch: see `Janitor`.
IDLE_SWEEP_S: Final = 10.0
#: How long a run goes on sweeping after a batch that was given up, or after the commit of a job:
#: sibling tasks and speculative ones can still open transactions, until Spark kills their workers.
RESTS_S: Final = 30.0


class OpenRun:
    """Lives where the batches are committed: in the user's process, or in the commit process.

    Args:
        run: it is open, with its own Fence.
        durable: Spark's files that a replay reads.
        timeout_s: how long one batch may take.
        stopping: returns whether a stop was requested.
    """

    def __init__(
        self, run: Run, durable: DurableFiles, *, timeout_s: float, stopping: Callable[[], bool]
    ) -> None:
        self.run, self.durable = run, durable
        self.coordinator = CheckpointCoordinator(
            run.log,
            run.committers,
            timeout_s=timeout_s,
            stopping=stopping,
            lost=run.settlement.lost,
            idle_sweep_s=IDLE_SWEEP_S,
        )

    @property
    def stage(self) -> SinkStage:
        """What its tasks write with."""
        return SinkStage(writers=(*self.run.writers.values(),), owner=self.coordinator.owner)

    def sweep_on(self) -> bool:
        """Sweep until the end what tasks still open, after a batch that has no commit.

        Returns:
            Whether it sweeps. What is decided and not finished is left to the next start.
        """
        if self.coordinator.unfinished() is not None:
            return False
        self.coordinator.resume()
        return True
