"""Settling decided transactions: each one gets a proven end, committed or lost.

Two users share these rules: a new run, for the last decision of the log, and a living run, for
answers that were lost. Only the last decision can be pending, because a decision is appended only
when the one before is settled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from transactions import crash_points
from transactions.checkpoint_watch import tell_aging, tell_recommitted, tell_retried
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome, oldest_start_ms
from transactions.decision_log import DecisionLog
from transactions.errors import (
    FencedError,
    OutcomeUnknownError,
    RecordRefusedError,
    SparkOnceError,
    StoppedError,
)
from transactions.events import publish
from transactions.healing import names
from transactions.log_entries import ACCEPT_LOSS
from transactions.sink import Committer, most_urgent_first
from transactions.sweeper import refuse_hidden, sweep
from transactions.two_phase import Event, Lifecycle, State

logger = logging.getLogger(__name__)

#: With less than this left of the deadline no new round begins; the next sweep needs it.
_LAST_ROUND_S = 1.0
#: Rounds without a proof (five seconds in all) before the word of a person is taken.
_ROUNDS_FOR_A_PERSON = 25

_EVENTS: Mapping[Outcome, Event] = {
    Outcome.COMMITTED: Event.ACKNOWLEDGE,
    Outcome.ALREADY_COMMITTED: Event.PROVE_COMMITTED,
    Outcome.ABORTED: Event.PROVE_ABORTED,
    Outcome.UNKNOWN: Event.LOSE_ANSWER,
}


def is_of_one_sink(error: SparkOnceError) -> bool:
    """Return whether the other sinks are to be asked before an error is raised: trying again cannot
    help, so they would wait for good. A run that is fenced or stopped asks nobody.
    """
    return error.permanent and not isinstance(error, FencedError | StoppedError)


class Settlement:
    """The decided transactions of one checkpoint on their way to their end.

    Args:
        committables: the transactions.
        resolved: per token, what a person decided about it (see `log_entries.Resolved`).
    """

    def __init__(
        self, committables: Sequence[Committable], resolved: Mapping[str, str] | None = None
    ) -> None:
        self._committables = {one.token: one for one in committables}
        self._walks = {
            one.token: Lifecycle(one.transactional_id, State.DECIDED) for one in committables
        }
        self._resolved = dict(resolved or {})
        self._looked_at: set[str] = set()
        self.recommitted = 0

    def record(self, outcomes: Mapping[str, Outcome]) -> None:
        """Note what a sink answered."""
        for token, outcome in outcomes.items():
            walk = self._walks[token]
            if walk.state is not State.COMMITTED:
                walk.advance(_EVENTS[outcome])
                if walk.state is State.LOST and self._resolved.get(token) == ACCEPT_LOSS:
                    self.give_up(token)

    def in_state(self, *states: State) -> list[Committable]:
        """Return the committables that stand in one of the states."""
        return [self._committables[t] for t, walk in self._walks.items() if walk.state in states]

    @property
    def lost(self) -> list[Committable]:
        """Decided transactions that the broker aborted, and nobody has healed or given up."""
        return self.in_state(State.LOST)

    def heal(self, token: str) -> None:
        """Note that another transaction has taken the place of a lost one, durably."""
        self._walks[token].advance(Event.HEAL)

    def give_up(self, token: str) -> None:
        """Note that a person accepted the loss, durably."""
        self._walks[token].advance(Event.ACCEPT_LOSS)

    def settle(self, sinks: Mapping[str, Committer], deadline: Deadline) -> None:
        """Bring every transaction to a proven end: committed, or lost (see `lost`).

        Raises:
            OutcomeUnknownError: not all could be proven before the deadline; a restart goes on.
            SparkOnceError: of a sink. If it is permanent, every other sink was asked before: one
                refused row must not keep their transactions from being committed.
        """
        tell_retried(self.in_state(State.IN_DOUBT), "their commits were not acknowledged")
        rounds = 0
        while pending := self.in_state(State.DECIDED, State.IN_DOUBT):
            rounds += 1
            permanent: SparkOnceError | None = None
            for sink, mine in most_urgent_first(sinks, pending):
                outcomes, error = self._asked(sink, mine, deadline)
                permanent = permanent or error
                self.record(outcomes)
                self._count(outcomes)
                now = [one for one in mine if outcomes.get(one.token) is Outcome.COMMITTED]
                tell_aging(now, deadline.now_ms())
            if permanent:
                raise permanent
            left = self.in_state(State.DECIDED, State.IN_DOUBT)
            if left and self._has_waited_enough(left, rounds, deadline):
                self._believe_a_person(left, deadline)
            elif left:
                if rounds == 1:  # once: it can go on for minutes
                    tell_retried(left, "the coordinator gives no proof yet")
                deadline.pause(0.2)

    def _asked(
        self, sink: Committer, mine: Sequence[Committable], deadline: Deadline
    ) -> tuple[Mapping[str, Outcome], SparkOnceError | None]:
        """Return a sink's answer, and the permanent error if one has ended it early.

        A refused row that a person has resolved is an answer: the target will never take it. No
        other error is one: a right or a table that is missing can come back.
        """
        try:
            return sink.recover_and_commit(mine, deadline), None
        except SparkOnceError as error:
            if not is_of_one_sink(error):
                raise
            refused = isinstance(error, RecordRefusedError)
            resolved = refused and any(one.token in self._resolved for one in mine)
            if not resolved:
                return {}, error
            if len(mine) == 1:
                return {mine[0].token: Outcome.ABORTED}, None
        # The error does not say which transaction it is about: ask for each alone, in their order.
        outcomes: dict[str, Outcome] = {}
        for one in sorted(mine, key=lambda one: (one.checkpoint_id, one.subtask)):
            answer, permanent = self._asked(sink, [one], deadline)
            outcomes |= answer
            if answer.get(one.token, Outcome.UNKNOWN) is Outcome.UNKNOWN:
                return outcomes, permanent  # nothing overtakes it
        return outcomes, None

    def _has_waited_enough(
        self, unproven: Sequence[Committable], rounds: int, deadline: Deadline
    ) -> bool:
        """Return whether to stop asking: it has no sense, or no time. The broker has answered so
        far, and a round that the deadline cuts off would look as if the broker were gone (seen).
        """
        answered = all(one.token in self._resolved for one in unproven)
        return deadline.remaining() < _LAST_ROUND_S or (answered and rounds >= _ROUNDS_FOR_A_PERSON)

    def _count(self, outcomes: Mapping[str, Outcome]) -> None:
        """Count as recommitted what was not committed at the first look."""
        for token, outcome in outcomes.items():
            ours = outcome is Outcome.COMMITTED or token in self._looked_at
            self.recommitted += outcome.is_committed and ours
            self._looked_at.add(token)

    def _believe_a_person(self, unproven: Sequence[Committable], deadline: Deadline) -> None:
        """Take a person's word for the end: the broker keeps no proof (any more)."""
        if open_questions := [one for one in unproven if one.token not in self._resolved]:
            raise _unknown(open_questions, deadline)
        self.record({one.token: Outcome.ABORTED for one in unproven})


def settle_last_decision(
    log: DecisionLog, sinks: Mapping[str, Committer], deadline: Deadline
) -> Settlement:
    """Finish the last decision of the log, whoever wrote it; healing handles the lost ones.

    Raises:
        OutcomeUnknownError: see `Settlement.settle`.
    """
    decision = log.state.decision
    committables = () if decision is None else decision.committables
    settlement = Settlement(committables, log.state.ended)
    settlement.settle(sinks, deadline)
    if decision is not None:
        app = log.state.application_id
        tell_recommitted(app, decision.checkpoint_id, settlement.recommitted)
    return settlement


def recover(
    log: DecisionLog, sinks: Mapping[str, Committer], deadline: Deadline, *, finished: int = -1
) -> Settlement:
    """Take over after an older run, before any new data moves. On the driver, once, at start.

    1. The Fence is already written: no older run can decide any more.
    2. What is open under an id that the last decision does not name belongs to no checkpoint: it is
       aborted, its writers are fenced. Such a transaction can hold the offsets whose markers are
       the proof in step 3, and a stable read waits for it (seen, after a crash while healing).
    3. The last decision is settled: what it promised is visible, or proven lost. What is lost is
       healed in the engine's replay of that checkpoint: it can read the records again.
    4. Readers must see what is committed before anything is aborted under the same ids.
    5. If nothing is lost, the log says so: `Settled`. An abort removes what the broker keeps of the
       transaction before, and a driver after us would need that proof in step 3.
    6. What is open under the decided ids is aborted as well: their producers had begun again.

    Args:
        log: opened by this run.
        sinks: by name.
        deadline: when to give up.
        finished: the newest checkpoint that the engine has written down as done. It does so only
            when all of it is proven committed. After a month of downtime the broker has forgotten
            ids and markers, and this is the proof that is left.

    Raises:
        OutcomeUnknownError: see `Settlement.settle`.
        HiddenCommitError: see `refuse_hidden`.
    """
    last = log.state.decision
    state: dict[str, str | int] = {
        "app": log.state.application_id,
        "run": log.run_epoch,
        "checkpoint": -1 if last is None else last.checkpoint_id,
        "transactions": 0 if last is None else len(last.committables),
    }
    oldest = oldest_start_ms(() if last is None else last.committables)
    publish("recovering", **state, oldest_start_ms=oldest)
    crash_points.reach("recovery_fenced")
    owner = log.owner
    decided = frozenset(() if last is None else (one.transactional_id for one in last.committables))
    swept = sweep(sinks, owner, deadline, spare=decided)
    if last is not None and last.checkpoint_id <= finished:
        settlement = Settlement(())
        committed = [one for one in last.committables if one.token not in log.state.ended]
    else:
        settlement = settle_last_decision(log, sinks, deadline)
        committed = settlement.in_state(State.COMMITTED)
    crash_points.reach("recovery_settled")
    refuse_hidden(sinks, owner, committed, deadline)
    if not settlement.lost:
        log.settle()
    swept += sweep(sinks, owner, deadline)
    if lost := settlement.lost:
        publish("lost", app=owner.application_id, transactions=len(lost), where=names(lost))
    ended = {"recommitted": settlement.recommitted, "lost": len(lost), "swept": len(swept)}
    publish("recovered", **state, **ended)
    return settlement


def sweep_overtaken(
    log: DecisionLog, sinks: Mapping[str, Committer], deadline: Deadline, *, finished: int
) -> bool:
    """Abort what an application has left open that another one has overtaken. On the driver.

    What it has decided is never aborted: the log or the engine says that all of it is committed, or
    its ids are spared, and a later start of that application settles them.

    Args:
        log: of the overtaken application; its Fence is the other one's, so no older run of it can
            decide any more.
        sinks: the other one's; they write to the same targets.
        deadline: when to give up.
        finished: see `recover`.

    Returns:
        Whether all of it is swept: nothing was spared.

    Raises:
        SparkOnceError: see `recover`.
    """
    last = log.state.decision
    if last is None or not last.committables or last.checkpoint_id <= finished:
        recover(log, sinks, deadline, finished=finished)
        return True
    spare = frozenset(one.transactional_id for one in last.committables)
    sweep(sinks, log.owner, deadline, spare=spare)
    return False


def _unknown(committables: Sequence[Committable], deadline: Deadline) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"The outcome of {len(committables)} decided transaction(s) is not known; "
        "a restart settles them.",
        where=names(committables),
        cause="the transaction coordinator does not answer, or answers without a proof",
        option=f"checkpoint_timeout={deadline.seconds:g} s; "
        "sparkonce transactions list, and resolve ID when the broker has forgotten it",
    )
