"""Settling decided transactions: every one ends committed, or an error names it.

Used twice with the same rules: by a new run, for the last decision of the log, and by a living
run for answers that were lost. Only the last decision can be pending, because a decision is
appended only when the one before is settled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.decision_log import DecisionLog
from transactions.errors import OutcomeUnknownError, TransactionLostError
from transactions.sink import AnySink, Owner
from transactions.sweeper import sweep
from transactions.two_phase import Event, Lifecycle, State

logger = logging.getLogger(__name__)

_EVENTS: Mapping[Outcome, Event] = {
    Outcome.COMMITTED: Event.ACKNOWLEDGE,
    Outcome.ALREADY_COMMITTED: Event.PROVE_COMMITTED,
    Outcome.ABORTED: Event.PROVE_ABORTED,
    Outcome.UNKNOWN: Event.LOSE_ANSWER,
}


class Settlement:
    """The decided transactions of one checkpoint on their way to their end."""

    def __init__(self, committables: Sequence[Committable]) -> None:
        self._committables = {one.token: one for one in committables}
        self._walks = {
            one.token: Lifecycle(one.transactional_id, State.DECIDED) for one in committables
        }
        self.recommitted = 0

    def record(self, outcomes: Mapping[str, Outcome]) -> None:
        """Note what a sink answered."""
        for token, outcome in outcomes.items():
            walk = self._walks[token]
            if walk.state is not State.COMMITTED:
                walk.advance(_EVENTS[outcome])

    def in_state(self, *states: State) -> list[Committable]:
        """Return the committables that stand in one of the states."""
        return [self._committables[t] for t, walk in self._walks.items() if walk.state in states]

    def settle(self, sinks: Mapping[str, AnySink], deadline: Deadline) -> None:
        """Bring every transaction to a proven end.

        Raises:
            TransactionLostError: the broker aborted a decided transaction.
            OutcomeUnknownError: not all could be proven before the deadline; a restart goes on.
        """
        while pending := self.in_state(State.DECIDED, State.IN_DOUBT):
            for name, sink in sinks.items():
                mine = [one for one in pending if one.sink == name]
                if mine:
                    outcomes = sink.recover_and_commit(mine, deadline)
                    self.record(outcomes)
                    self.recommitted += sum(o is Outcome.COMMITTED for o in outcomes.values())
            if lost := self.in_state(State.LOST):
                raise _lost(lost)
            left = self.in_state(State.DECIDED, State.IN_DOUBT)
            if left and deadline.expired():
                raise _unknown(left, deadline)
            if left:
                deadline.pause(0.2)


def settle_last_decision(
    log: DecisionLog, sinks: Mapping[str, AnySink], deadline: Deadline
) -> Settlement:
    """Finish the last decision of the log, whoever wrote it.

    Raises:
        TransactionLostError, OutcomeUnknownError: see `Settlement.settle`.
    """
    decision = log.state.decision
    settlement = Settlement(() if decision is None else decision.committables)
    settlement.settle(sinks, deadline)
    return settlement


def recover(log: DecisionLog, sinks: Mapping[str, AnySink], deadline: Deadline) -> Settlement:
    """Take over after an older run, before any new data moves. On the driver, once, at start.

    1. The Fence is already written: no older run can decide any more.
    2. The last decision is settled: what it promised is visible.
    3. What is still open belongs to no checkpoint: it is aborted, its writers are fenced.

    Raises:
        TransactionLostError, OutcomeUnknownError: see `Settlement.settle`.
    """
    crash_points.reach("recovery_fenced")
    settlement = settle_last_decision(log, sinks, deadline)
    crash_points.reach("recovery_settled")
    owner = Owner(
        application_id=log.state.application_id, log_id=log.log_id, run_epoch=log.run_epoch
    )
    swept = sweep(sinks, owner, deadline)
    logger.info(
        "recovered: run %d of %s, %d transactions re-committed, %d swept",
        log.run_epoch,
        log.state.application_id,
        settlement.recommitted,
        len(swept),
    )
    return settlement


def _names(committables: Sequence[Committable]) -> str:
    first = committables[0]
    ids = ", ".join(one.transactional_id for one in committables[:5])
    more = f" and {len(committables) - 5} more" if len(committables) > 5 else ""
    offsets = {name: o for one in committables for name, o in one.source_offsets.items()}
    return f"checkpoint {first.checkpoint_id}; {ids}{more}; source offsets up to {offsets}"


def _lost(committables: Sequence[Committable]) -> TransactionLostError:
    return TransactionLostError(
        f"{len(committables)} decided transaction(s) were aborted by the broker; "
        "their records are not in the output.",
        where=_names(committables),
        cause="the downtime was longer than the transaction timeout, or an operator aborted them",
        option=f"transaction_timeout_ms={committables[0].timeout_ms}",
    )


def _unknown(committables: Sequence[Committable], deadline: Deadline) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"The end of {len(committables)} decided transaction(s) could not be learnt; "
        "a restart settles them.",
        where=_names(committables),
        cause="the transaction coordinator does not answer, or answers without a proof",
        option=f"checkpoint_timeout={deadline.seconds:g} s",
    )
