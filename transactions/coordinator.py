"""The checkpoint coordinator: one checkpoint, from its first task to its last visible record.

It knows neither Spark nor Kafka: phase 1 is a function that it is given, sinks are users of the
two-phase contract, and the decision log is the only thing it believes.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Callable, Mapping, Sequence

from transactions import crash_points
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.committable import Committable
from transactions.decision_log import DecisionLog
from transactions.errors import PhaseOneError, ReplayMismatchError, StoppedError
from transactions.log_entries import Decision
from transactions.recovery import Settlement, settle_last_decision
from transactions.sink import AnySink, DecidedToken, Owner
from transactions.sweeper import Janitor

logger = logging.getLogger(__name__)

_REMEMBERED_IDS = 256  # travels with every task


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Which checkpoint is to be made, as Spark describes it.

    Attributes:
        checkpoint_id: Spark's batch id.
        query_id: Spark's id of the query.
        start_offsets: JSON per source before the batch ("" when there is none yet).
        end_offsets: JSON per source after the batch.
        partitioning: facts of the plan that a replay must reproduce.
    """

    checkpoint_id: int
    query_id: str
    start_offsets: tuple[str, ...]
    end_offsets: tuple[str, ...]
    partitioning: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Replay(enum.Enum):
    """What the log says about a checkpoint that Spark wants to run."""

    AFRESH = "no decision: run it"
    DECIDED = "decided by an earlier run: finish it, write nothing"


@dataclasses.dataclass(slots=True, kw_only=True)
class CheckpointReport:
    """What a finished checkpoint cost, in milliseconds by phase, and what it wrote."""

    checkpoint_id: int
    records: int = 0
    transactions: int = 0
    replayed: bool = False
    recommitted: int = 0
    phase_ms: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def commit_ms(self) -> float:
        """Decision plus phase 2: from the last record at the broker to all of them visible."""
        return sum(self.phase_ms.get(name, 0.0) for name in ("check", "decide", "commit"))


class CheckpointCoordinator:
    """Makes checkpoints, one at a time, for one run. Lives on the driver."""

    def __init__(
        self,
        log: DecisionLog,
        sinks: Mapping[str, AnySink],
        *,
        timeout_s: float,
        stopping: Callable[[], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._log = log
        self._sinks = sinks
        self._timeout_s = timeout_s
        self._stopping = stopping
        self._clock = clock
        self.owner = Owner(
            application_id=log.state.application_id, log_id=log.log_id, run_epoch=log.run_epoch
        )
        self._janitor = Janitor(sinks, self.owner, timeout_s=timeout_s, clock=clock)
        self._last_decided: dict[str, DecidedToken] = {}
        self._settled = True

    def last_decided(self) -> Mapping[str, DecidedToken]:
        """Return, per transactional id of this run, its last decided token, for the closure."""
        return dict(self._last_decided)

    def retired(self) -> frozenset[str]:
        """Return the ids that no task may use again."""
        return frozenset().union(*(sink.retired() for sink in self._sinks.values()))

    def replay_of(self, checkpoint: Checkpoint) -> Replay:
        """Tell whether this checkpoint was decided before.

        Raises:
            ReplayMismatchError: it was, with another query or other offsets, or a later one was.
        """
        last = self._log.state.decision
        if last is None or last.checkpoint_id < checkpoint.checkpoint_id:
            return Replay.AFRESH
        same = (
            last.checkpoint_id == checkpoint.checkpoint_id
            and last.query_id == checkpoint.query_id
            and last.generation == self._log.state.generation
            and last.start_offsets == checkpoint.start_offsets
            and last.end_offsets == checkpoint.end_offsets
        )
        if same:
            return Replay.DECIDED
        raise ReplayMismatchError(
            f"Spark wants to run checkpoint {checkpoint.checkpoint_id} with other offsets, "
            "or another query, than were decided.",
            where=f"decided: checkpoint {last.checkpoint_id} of query {last.query_id}, "
            f"{last.start_offsets} to {last.end_offsets}; now: query {checkpoint.query_id}, "
            f"{checkpoint.start_offsets} to {checkpoint.end_offsets}",
            cause="Spark's part of the checkpoint was deleted, or restored from a backup",
            option="checkpoint: restore the whole folder, or start a new application on a new one",
        )

    def finish_decided(self, checkpoint: Checkpoint) -> CheckpointReport:
        """Finish a checkpoint that an earlier attempt decided; nothing is written again.

        Raises:
            TransactionLostError, OutcomeUnknownError: see `Settlement.settle`.
        """
        settlement = settle_last_decision(self._log, self._sinks, self._deadline())
        self._log.check_newest()
        return CheckpointReport(
            checkpoint_id=checkpoint.checkpoint_id,
            replayed=True,
            recommitted=settlement.recommitted,
        )

    def commit_batch(
        self, checkpoint: Checkpoint, phase_one: Callable[[], Sequence[Committable]]
    ) -> CheckpointReport:
        """Make one checkpoint; returns only when every record of it is committed.

        1. No newer run, no stop, and the sweep after the checkpoint before is done.
        2. Phase 1: the tasks write and prepare; one committable per non-empty transaction.
        3. The broker confirms that each is still as it was prepared.
        4. The decision is appended: the point of no return.
        5. Every transaction is committed; a lost answer is settled by proof.
        6. No newer run has fenced this one meanwhile.
        7. The sweep of what lingers begins, beside the engine's own log writes.

        Raises:
            StoppedError: a stop was asked for before the decision.
            FencedError: a newer run owns the log.
            PhaseOneError: an attempt failed; nothing of it will be visible.
            DecisionLogError: see `DecisionLog.decide`.
            TransactionLostError, OutcomeUnknownError: after the decision; a restart goes on.
        """
        number = checkpoint.checkpoint_id
        report = CheckpointReport(checkpoint_id=number)
        watch = _Watch(self._clock, report.phase_ms)
        deadline = self._deadline()

        self._janitor.finish()
        self._log.check_newest()
        self._check_not_stopping(number)
        crash_points.reach("batch_started", number)
        watch.lap("start")

        committables = list(phase_one())
        crash_points.reach("committables_collected", number)
        watch.lap("write")

        committables = self._check_prepared(committables, number, deadline)
        crash_points.reach("prepared_checked", number)
        watch.lap("check")

        self._check_not_stopping(number)
        self._settled = False
        self._log.decide(self._decision(checkpoint, committables))  # THE POINT OF NO RETURN
        crash_points.reach("decision_durable", number)
        watch.lap("decide")

        report.recommitted = self._commit(committables, number, deadline)
        self._settled = True
        self._remember(committables)
        crash_points.reach("all_committed", number)
        watch.lap("commit")

        self._log.check_newest()
        self._log.compact_if_due()
        self._janitor.start()
        crash_points.reach("batch_finished", number)
        watch.lap("finish")

        report.records = sum(one.record_count for one in committables)
        report.transactions = len(committables)
        return report

    def is_settled(self) -> bool:
        """Tell whether every decided transaction is proven committed, so that a sweep is safe."""
        return self._settled

    def close(self) -> None:
        """Wait for a sweep under way. The log needs no closing: it is whole at any moment."""
        self._janitor.close()

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_s, self._clock)

    def _check_not_stopping(self, number: int) -> None:
        if self._stopping():
            raise StoppedError(
                "The driver is stopping; the batch ends before its decision.",
                where=f"checkpoint {number}",
                cause="stop() or ctrl-C; the batch will run again at the next start",
            )

    def _check_prepared(
        self, committables: Sequence[Committable], number: int, deadline: Deadline
    ) -> list[Committable]:
        names = {one.sink for one in committables}
        tokens = {one.token for one in committables}
        if len(tokens) != len(committables) or not names <= set(self._sinks):
            raise PhaseOneError(
                "The committables of a batch are not one per transaction of a known sink.",
                where=f"checkpoint {number}: sinks {sorted(names)}, {len(tokens)} tokens of "
                f"{len(committables)} committables",
                cause="a bug in sparkonce, or the DataFrame was run by more than one action",
            )
        checked: list[Committable] = []
        for name, sink in self._sinks.items():
            mine = [one for one in committables if one.sink == name]
            checked += sink.check_prepared(mine, deadline) if mine else []
        assert len(checked) == len(committables)
        return checked

    def _decision(self, checkpoint: Checkpoint, committables: Sequence[Committable]) -> Decision:
        return Decision(
            checkpoint_id=checkpoint.checkpoint_id,
            query_id=checkpoint.query_id,
            generation=self._log.state.generation,
            start_offsets=checkpoint.start_offsets,
            end_offsets=checkpoint.end_offsets,
            committables=tuple(committables),
            partitioning=checkpoint.partitioning,
        )

    def _commit(self, committables: Sequence[Committable], number: int, deadline: Deadline) -> int:
        settlement = Settlement(committables)
        for name, sink in self._sinks.items():
            mine = [one for one in committables if one.sink == name]
            if mine:
                settlement.record(sink.commit(mine, deadline))
                crash_points.reach("one_committed", number)
        settlement.settle(self._sinks, deadline)
        return settlement.recommitted

    def _remember(self, committables: Sequence[Committable]) -> None:
        for one in committables:
            self._last_decided.pop(one.transactional_id, None)
            self._last_decided[one.transactional_id] = DecidedToken(
                checkpoint_id=one.checkpoint_id, token=one.token
            )
        # An id that fell out costs its worker a new producer, never a record: aborting a
        # committed transaction is refused by the broker and retires the producer.
        while len(self._last_decided) > _REMEMBERED_IDS:
            del self._last_decided[next(iter(self._last_decided))]


class _Watch:
    """Writes down how long each phase took."""

    def __init__(self, clock: Clock, laps: dict[str, float]) -> None:
        self._clock = clock
        self._laps = laps
        self._last = clock.monotonic()

    def lap(self, name: str) -> None:
        """End the phase that is running."""
        now = self._clock.monotonic()
        self._laps[name] = (now - self._last) * 1000.0
        self._last = now
