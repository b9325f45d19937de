"""The checkpoint coordinator: one checkpoint, from its first task to its last visible record.

It knows neither Spark nor Kafka. The caller passes phase 1 as a function, the sinks fulfil the
two-phase contract, and the coordinator believes only the decision log.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec

from transactions import crash_points
from transactions.checkpoint_watch import (
    PhaseWatch,
    tell_completed,
    tell_decided,
    tell_failed,
    tell_recommitted,
    tell_refused,
)
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.committable import Committable, check_distinct
from transactions.decision_log import DecisionLog
from transactions.errors import OutcomeUnknownError, SparkOnceError, StoppedError
from transactions.events import publish
from transactions.healing import MOST_ROUNDS, Rerun, matched, not_healed, refusal, tell_lost
from transactions.log_entries import ACCEPT_LOSS, Decision, Healed, Resolved
from transactions.recovery import Settlement, is_of_one_sink, settle_last_decision
from transactions.replay import Checkpoint, Replay, replay_of
from transactions.sink import Committer, DecidedToken, most_urgent_first
from transactions.sweeper import Janitor

logger = logging.getLogger(__name__)

P = ParamSpec("P")

_REMEMBERED_IDS = 256  # travels with every task


@dataclasses.dataclass(slots=True, kw_only=True)
class CheckpointReport:
    """What a finished checkpoint cost, in milliseconds by phase, and what it wrote."""

    checkpoint_id: int
    records: int = 0
    transactions: int = 0
    replayed: bool = False
    recommitted: int = 0
    healed: int = 0
    healed_records: int = 0
    phase_ms: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def commit_ms(self) -> float:
        """Decision plus phase 2: from the last record at the broker to all of them visible."""
        return sum(self.phase_ms.get(name, 0.0) for name in ("check", "decide", "commit"))


_Step = Callable[Concatenate["CheckpointCoordinator", Checkpoint, P], CheckpointReport]


def _told(step: _Step[P]) -> _Step[P]:
    """Publish how a checkpoint ended; a requested stop is no failure."""

    @functools.wraps(step)
    def telling(
        self: CheckpointCoordinator, checkpoint: Checkpoint, /, *args: P.args, **kwargs: P.kwargs
    ) -> CheckpointReport:
        app, number = self.owner.application_id, checkpoint.checkpoint_id
        try:
            report = step(self, checkpoint, *args, **kwargs)
        except StoppedError:
            raise
        except Exception as error:
            tell_failed(app, number, error)
            raise
        tell_completed(
            app,
            number,
            report.phase_ms,
            records=report.records,
            transactions=report.transactions,
            replayed=int(report.replayed),
        )
        return report

    return telling


class CheckpointCoordinator:
    """Makes checkpoints, one at a time, for one run. Lives on the driver.

    Args:
        log: the log of this run.
        sinks: by name.
        timeout_s: how long one checkpoint may take.
        stopping: returns whether a stop was requested.
        lost: what `recover` found lost; no new checkpoint is made before it is healed.
        idle_sweep_s: see `Janitor`.
        clock: replaced in tests.
    """

    def __init__(
        self,
        log: DecisionLog,
        sinks: Mapping[str, Committer],
        *,
        timeout_s: float,
        stopping: Callable[[], bool],
        lost: Sequence[Committable] = (),
        idle_sweep_s: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._log = log
        self._sinks = sinks
        self._timeout_s = timeout_s
        self._stopping = stopping
        self._clock = clock
        self.owner = log.owner
        self._janitor = Janitor(
            sinks, log, timeout_s=timeout_s, idle_every_s=idle_sweep_s, clock=clock
        )
        self._last_decided: dict[str, DecidedToken] = {}
        self._settled = True
        self._lost = tuple(lost)

    def last_decided(self) -> Mapping[str, DecidedToken]:
        """Return the last decided token per transactional id of this run, for the closure."""
        return dict(self._last_decided)

    def retired(self) -> frozenset[str]:
        """Return the ids that no task may use again."""
        return frozenset().union(*(sink.retired() for sink in self._sinks.values()))

    @property
    def lost(self) -> Sequence[Committable]:
        """What the broker has aborted of the last decision, and no replay has written again."""
        return self._lost

    def prepare(self) -> None:
        """Wait for the sweep after the checkpoint before. Only an engine that starts its tasks
        before `run` calls this, before the tasks begin.

        Raises:
            FencedError: a newer run owns the log.
            SparkOnceError: the sweep failed.
        """
        self._janitor.finish()
        self._log.check_newest()

    def resume(self) -> None:
        """Sweep again: what `prepare` was called for is given up, and its tasks may have left
        transactions. Precondition: `unfinished` returns None.
        """
        self._janitor.start(self._log.state.decision)

    def run(
        self,
        checkpoint: Checkpoint,
        phase_one: Callable[[], Sequence[Committable]],
        rerun: Rerun | None = None,
    ) -> CheckpointReport:
        """Make a checkpoint, or finish it if an earlier attempt decided it. An engine
        that replays checkpoints needs only this call. The report says which of the two it was.

        Args:
            checkpoint: what it covers.
            phase_one: runs the tasks; not called for a decided checkpoint.
            rerun: see `transactions.healing`; without it a lost transaction is an error.

        Raises:
            ReplayMismatchError: it was decided with other offsets: see `transactions.replay`.
            SparkOnceError: see `commit_batch` and `finish_decided`.
        """
        if replay_of(self._log.state, checkpoint) is Replay.DECIDED:
            return self.finish_decided(checkpoint, rerun)
        return self.commit_batch(checkpoint, phase_one, rerun)

    @_told
    def finish_decided(
        self, checkpoint: Checkpoint, rerun: Rerun | None = None
    ) -> CheckpointReport:
        """Finish a checkpoint that an earlier attempt decided. Only lost records are written again,
        and the report says how many.

        Args:
            checkpoint: the one for which `replay_of` said DECIDED.
            rerun: see `transactions.healing`; without it a lost transaction is an error.

        Raises:
            TransactionLostError: what was lost could not be produced again.
            OutcomeUnknownError: see `Settlement.settle`.
        """
        report = CheckpointReport(checkpoint_id=checkpoint.checkpoint_id, replayed=True)
        deadline = self._deadline()
        self._janitor.finish()
        settlement = settle_last_decision(self._log, self._sinks, deadline)
        report.recommitted = settlement.recommitted
        self._heal(settlement, rerun, report)
        self._lost = ()
        self._log.check_newest()
        self._janitor.start(self._log.state.decision)
        return report

    @_told
    def commit_batch(
        self,
        checkpoint: Checkpoint,
        phase_one: Callable[[], Sequence[Committable]],
        rerun: Rerun | None = None,
        written_ms: float = 0.0,
    ) -> CheckpointReport:
        """Make one checkpoint; returns only when every record of it is committed.

        `written_ms`: the milliseconds of phase 1 before this call, for the report.

        1. No newer run, no stop, and the sweep after the checkpoint before is done.
        2. Phase 1: the tasks write and prepare; one committable per non-empty transaction.
        3. The broker confirms that each is still as it was prepared. What needs no commit (a sink
           without transactions has flushed it) is counted, and goes no further.
        4. The decision is appended: the point of no return.
        5. Every transaction is committed; a lost answer is settled by proof, a transaction that
           the broker aborted all the same is healed.
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
        if self._lost:
            # This checkpoint would become the last decision, and the loss before it would be
            # forgotten.
            raise refusal(self._lost, f"the engine went on to checkpoint {number} without them")
        report = CheckpointReport(checkpoint_id=number)
        watch = PhaseWatch(self._clock, report.phase_ms)
        deadline = self._deadline()

        self._janitor.finish()
        self._log.check_newest()
        self._check_not_stopping(number)
        crash_points.reach("batch_started", number)
        watch.lap("start")

        written = list(phase_one())
        crash_points.reach("committables_collected", number)
        watch.lap("write")
        report.phase_ms["write"] += written_ms

        committables = self._check_prepared(written, number, deadline)
        crash_points.reach("prepared_checked", number)
        watch.lap("check")

        self._check_not_stopping(number)
        self._settled = False
        self._log.decide(self._decision(checkpoint, committables))  # THE POINT OF NO RETURN
        tell_decided(self.owner.application_id, number, committables, self._clock.now_ms())
        crash_points.reach("decision_durable", number)
        watch.lap("decide")

        settlement = self._commit(committables, number, deadline)
        report.recommitted = settlement.recommitted
        self._heal(settlement, rerun, report)
        decided = self._log.state.decision
        assert decided is not None
        self._remember(decided.committables)
        crash_points.reach("all_committed", number)
        watch.lap("commit")

        self._log.check_newest()
        self._log.compact_if_due()
        self._janitor.start(decided)
        crash_points.reach("batch_finished", number)
        watch.lap("finish")

        report.records = sum(one.record_count for one in written)
        report.transactions = len(committables)
        tell_refused(self.owner.application_id, number, written)
        return report

    def await_visible(self) -> None:
        """Wait until readers see the last checkpoint: see `Janitor.await_visible`."""
        self._janitor.await_visible()

    def is_settled(self) -> bool:
        """Return whether every decided transaction has a proven end; then a sweep is safe."""
        return self._settled

    def unfinished(self) -> SparkOnceError | None:
        """Return why the run did not end well, or None if it did: a decided transaction is not
        proven committed, or is lost and not healed.
        """
        if not self._settled:
            return OutcomeUnknownError(
                "The run ended before the commit of its decided transactions was proven.",
                where=f"application {self.owner.application_id}, the last decision of its log",
                cause="the run was stopped, or lost its engine, between the decision and the proof",
                option="start the pipeline: it commits what was decided",
            )
        return not_healed(self._lost) if self._lost else None

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
        check_distinct(committables, frozenset(self._sinks), number)
        prepared = [one for one in committables if one.needs_commit]
        checked: list[Committable] = []
        for name, sink in self._sinks.items():
            mine = [one for one in prepared if one.sink == name]
            checked += sink.check_prepared(mine, deadline) if mine else []
        assert len(checked) == len(prepared)
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

    def _commit(
        self, committables: Sequence[Committable], number: int, deadline: Deadline
    ) -> Settlement:
        settlement = Settlement(committables)
        for sink, mine in most_urgent_first(self._sinks, committables):
            try:
                settlement.record(sink.commit(mine, deadline))
            except SparkOnceError as error:
                if not is_of_one_sink(error):
                    raise
                # `settle` asks this sink once more, and raises its error behind the others.
            crash_points.reach("one_committed", number)
        settlement.settle(self._sinks, deadline)
        tell_recommitted(self.owner.application_id, number, settlement.recommitted)
        self._settled, self._lost = True, tuple(settlement.lost)
        tell_lost(self.owner.application_id, self._lost)
        return settlement

    def _heal(self, settlement: Settlement, rerun: Rerun | None, report: CheckpointReport) -> None:
        """Produce again what the broker aborted, until nothing is lost (docs/design.md).

        A crash before `Healed` is durable leaves an open transaction that is in no decision: the
        sweep ends it. A crash after that leaves a pending transaction: recovery commits it.
        """
        number = report.checkpoint_id
        for _ in range(MOST_ROUNDS):
            lost = settlement.lost
            if not lost:
                return
            if rerun is None:
                break
            crash_points.reach("heal_started", number)
            produced = list(rerun(lost))
            deadline = self._deadline()  # a large loss takes longer to write than a checkpoint
            pairs = matched(lost, produced, self._log.state.resolved)
            crash_points.reach("heal_produced", number)
            new = self._check_prepared([new for _, new in pairs if new], number, deadline)
            self._settled = False
            self._replace([old for old, _ in pairs], new, settlement, number)
            settlement = self._commit(new, number, deadline)
            records = sum(one.record_count for one in new)
            report.healed += len(new)
            report.healed_records += records
            app = self.owner.application_id
            publish("healed", app=app, checkpoint=number, transactions=len(new), records=records)
            crash_points.reach("heal_committed", number)
        if settlement.lost:
            raise refusal(settlement.lost, "the broker aborts them again and again")

    def _replace(
        self,
        lost: Sequence[Committable],
        new: Sequence[Committable],
        settlement: Settlement,
        number: int,
    ) -> None:
        """Append what takes the place of each lost transaction: another transaction, or nothing."""
        replacements = {(one.sink, one.subtask): one for one in new}
        for old in lost:
            replacement = replacements.get((old.sink, old.subtask))
            if replacement is None:
                gone, note = (old.token,), "the replay that was asked for wrote nothing"
                self._log.resolve(
                    Resolved(checkpoint_id=number, verdict=ACCEPT_LOSS, tokens=gone, note=note)
                )
                settlement.give_up(old.token)
            else:
                self._log.healed(
                    Healed(checkpoint_id=number, subtask=old.subtask, committable=replacement)
                )
                settlement.heal(old.token)
            crash_points.reach("heal_durable", number)

    def _remember(self, committables: Sequence[Committable]) -> None:
        # Only Kafka's ids are used again; no worker ever finds an id of another sink.
        for one in (each for each in committables if each.producer_id >= 0):
            self._last_decided.pop(one.transactional_id, None)
            self._last_decided[one.transactional_id] = DecidedToken(
                checkpoint_id=one.checkpoint_id, token=one.token
            )
        # A forgotten id costs its worker a new producer, never a record: the broker refuses to
        # abort a committed transaction, and this refusal retires the producer.
        while len(self._last_decided) > _REMEMBERED_IDS:
            del self._last_decided[next(iter(self._last_decided))]
