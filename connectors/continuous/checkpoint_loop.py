"""The checkpoints of one run in continuous mode, one after the other, on a thread of their own.

The next barrier goes out only when every transaction of the checkpoint before is proven committed
and visible, and no newer run owns the log. So at most one decision is pending, and the barrier
permits each task to begin again on the producer that has just committed (see `stage_committer`).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from connectors.continuous.active_tasks import ActiveTasks
from connectors.continuous.barrier_pace import BarrierPace
from connectors.continuous.control_channel import Acknowledge, Start
from connectors.continuous.partition_shares import Change, PartitionShares
from connectors.continuous.partition_watch import PartitionWatch
from connectors.continuous.running_stage import RunningStage
from connectors.continuous.stage_committer import StageCommitter
from transactions import crash_points
from transactions.checkpoint_watch import tell_failed
from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator, CheckpointReport
from transactions.decision_log import DecisionLog
from transactions.errors import PhaseOneError, SparkOnceError
from transactions.events import publish
from transactions.healing import Rerun
from transactions.replay import Checkpoint
from transactions.sink import Committer

QUERY_ID = "continuous"

_IDLE_S = 0.5
_SWEEP_EVERY_S = 5.0
_DISCOVERY_S = 5.0
_END_S = 5.0


class Job(Protocol):
    """What runs the tasks; see `connectors.spark.barrier_stage`."""

    def start(self) -> None:
        """Start all tasks."""

    def stop(self, timeout_s: float) -> None:
        """Wait for the end of all tasks, and force it if it does not come."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """What a loop must know about its driver.

    Attributes:
        timeout_s: the timeout of one checkpoint.
        new_partitions: returns all partitions that the source has now; called on a thread of its
            own.
        format_offsets: writes offsets as the decision log keeps them.
        rerun: see `transactions.healing`.
        completed: called after each checkpoint that was decided, on the loop's thread.
        ends: the loop drains by itself when a decided checkpoint has reached these offsets; None
            for a loop without an end.
        all_read: all tasks read, also where fewer would be enough.
    """

    timeout_s: float
    new_partitions: Callable[[], Sequence[str]]
    format_offsets: Callable[[Mapping[str, int]], str]
    rerun: Rerun
    completed: Callable[[CheckpointReport], None]
    ends: Mapping[str, int] | None = None
    all_read: bool = False


class CheckpointLoop:
    """Makes checkpoints until `drain` is called, or something fails. Lives on the driver.

    Args:
        log: of this run, with a decision in it.
        sinks: by name.
        stage: the stage whose tasks write; not started yet.
        shares: what each task reads.
        pace: when the next barrier is due.
        options: see above.
    """

    def __init__(
        self,
        log: DecisionLog,
        sinks: Mapping[str, Committer],
        stage: RunningStage,
        *,
        shares: PartitionShares,
        pace: BarrierPace,
        options: LoopOptions,
    ) -> None:
        decision = log.state.decision
        assert decision is not None, "where reading begins is decided first"
        self._number = decision.checkpoint_id + 1
        self._stage = stage
        self._shares = shares
        self._active = ActiveTasks(stage.parallelism, SYSTEM_CLOCK.monotonic())
        self._pace = pace
        self._options = options
        self._coordinator = CheckpointCoordinator(
            log,
            {
                name: StageCommitter(sink, stage, sweep_every_s=_SWEEP_EVERY_S)
                for name, sink in sinks.items()
            },
            timeout_s=options.timeout_s,
            stopping=lambda: False,
            idle_sweep_s=_SWEEP_EVERY_S,
        )
        self._watch = PartitionWatch(
            options.new_partitions,
            application_id=self._coordinator.owner.application_id,
            every_s=_DISCOVERY_S,
            patience_s=options.timeout_s,
        )
        self._coordinator_tells = False
        self._draining = threading.Event()
        self._ended = threading.Event()
        self._job: Job | None = None
        self.failure: BaseException | None = None

    def start(self, job: Job) -> None:
        """Start the tasks, wait until all are ready, then make checkpoints on another thread.

        Raises:
            SparkOnceError: the stage did not come up.
        """
        self._job = job
        owner = self._coordinator.owner
        self._stage.open(
            lambda subtask: Start(
                application_id=owner.application_id,
                log_id=owner.log_id,
                run_epoch=owner.run_epoch,
                checkpoint_id=self._number,
                offsets=self._shares.start_of(subtask),
            )
        )
        try:
            job.start()
            self._stage.await_ready(Deadline(self._options.timeout_s))
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._run, name="sparkonce-checkpoints", daemon=True).start()

    def drain(self) -> None:
        """Make one more checkpoint of what has been read, then end. From any thread."""
        self._draining.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; True when it has come."""
        return self._ended.wait(timeout_s)

    def await_visible(self) -> None:
        """Wait until readers see the last checkpoint that was completed. From any thread.

        Raises:
            HiddenCommitError, BrokerUnavailableError: see `transactions.sweeper.refuse_hidden`.
        """
        self._coordinator.await_visible()

    def job_ended(self, error: BaseException | None) -> None:
        """Note that the tasks are gone. From the job's thread."""
        if error is not None or not self._draining.is_set():
            self._stage.fail(error or PhaseOneError("The continuous stage ended by itself."))

    def close(self) -> bool:
        """End the stage; True when every decided transaction is proven to have ended."""
        self._stage.close()
        if self._job is not None:
            self._job.stop(_END_S)
        self._coordinator.close()
        return self._coordinator.is_settled()

    def unfinished(self) -> SparkOnceError | None:
        """Return why the run did not end well: see `CheckpointCoordinator.unfinished`."""
        return self._coordinator.unfinished()

    def _run(self) -> None:
        try:
            self._watch.start()
            self._drain_at_ends()
            while not self._draining.wait(0.0 if self._shares.is_moving else self._pace.wait_s):
                # A partition that comes later begins at 0: nobody has ever read from it.
                found = dict.fromkeys(self._watch.take(), 0)
                change = self._shares.change(found, self._wanted_readers())
                if change.removed:
                    self._tell_rescaled()
                if change.added or change.removed or self._stage.await_moved(_IDLE_S):
                    began = SYSTEM_CLOCK.monotonic()
                    behind = self._checkpoint(change)
                    took = SYSTEM_CLOCK.monotonic() - began
                    if change.removed:
                        crash_points.reach("partitions_moving", self._number - 1)
                    self._pace.after(took, behind=behind)
                    self._drain_at_ends()
            self._checkpoint(self._shares.change({}, self._wanted_readers()), last=True)
            self._coordinator.await_visible()  # the end comes after readers see all of it
            self._stage.close()  # the tasks stay until then
        except BaseException as error:  # noqa: BLE001 - raised where the driver is waited for
            self._tell(error)
            self.failure = error
        finally:
            self._watch.close()
            self._ended.set()

    def _wanted_readers(self) -> int:
        return self._stage.parallelism if self._options.all_read else self._active.wanted

    def _drain_at_ends(self) -> None:
        """Drain if everything up to the ends is decided, of the partitions that this run reads."""
        ends, decided = self._options.ends, self._shares.offsets
        if ends is not None and all(decided.get(at, end) >= end for at, end in ends.items()):
            self.drain()

    def _checkpoint(self, change: Change, *, last: bool = False) -> float:
        """Make one checkpoint and return how far the tasks are behind: see `BarrierPace.after`."""
        self._coordinator.await_visible()
        number = self._number
        before = dict(self._shares.offsets)
        began = SYSTEM_CLOCK.monotonic()
        deadline = Deadline(self._options.timeout_s)
        answers = self._stage.barrier(number, deadline, change, last=last)
        written_ms = (SYSTEM_CLOCK.monotonic() - began) * 1000.0
        self._number += 1  # the tasks have begun it
        acknowledged = [answers[subtask] for subtask in sorted(answers)]
        for one in acknowledged:
            self._shares.offsets.update(one.positions)
        committables = _committables(acknowledged)
        # Positions alone are a decision as well: if a sink cannot carry them in a transaction (it
        # has none, or lies on another cluster), a crash would lead to a second read of all of it.
        if committables or self._shares.offsets != before:
            checkpoint = Checkpoint(
                checkpoint_id=number,
                query_id=QUERY_ID,
                start_offsets=(self._options.format_offsets(before),),
                end_offsets=(self._options.format_offsets(self._shares.offsets),),
                partitioning=change.partitioning,
            )
            self._coordinator_tells = True
            report = self._coordinator.commit_batch(
                checkpoint, lambda: committables, self._options.rerun, written_ms
            )
            self._coordinator_tells = False
            self._options.completed(report)
        self._stage.check()
        behind = max((_behind(one, before) for one in acknowledged), default=0.0)
        busy_s = {subtask: one.busy_s for subtask, one in answers.items()}
        self._active.after(SYSTEM_CLOCK.monotonic(), busy_s, behind=behind)
        return behind

    def _tell_rescaled(self) -> None:
        publish(
            "rescaled",
            app=self._coordinator.owner.application_id,
            checkpoint=self._number,
            tasks=self._shares.active,
            parallelism=self._stage.parallelism,
        )

    def _tell(self, error: BaseException) -> None:
        """Publish that a checkpoint failed while the tasks wrote or prepared it: its transactions
        are aborted. The coordinator publishes how a prepared checkpoint ends.
        """
        if isinstance(error, Exception) and not self._coordinator_tells:
            tell_failed(self._coordinator.owner.application_id, self._number, error)


def _behind(one: Acknowledge, before: Mapping[str, int]) -> float:
    """Return how much a task has still to read, as a multiple of what it read since the barrier."""
    read = sum(position - before.get(name, 0) for name, position in one.positions.items())
    return one.lag / max(read, 1)


def _committables(acknowledged: Sequence[Acknowledge]) -> list[Committable]:
    return [
        Committable.from_dict(one.committable)
        for one in acknowledged
        if one.committable is not None
    ]
