"""The two-phase commit of one transaction, as one table.

House rules of this file: everything that decides which step may follow which stands in `TABLE`;
the file does no I/O and does not know whether it runs in a task or on the driver.

Theory in half a page. A transaction is *open* while a task writes it and *prepared* once its
records and its source offsets are at the broker. Until the checkpoint's decision is durable the
only way out is abort, by anyone. With the decision the transaction is *decided*: from then on it
must become visible, whatever dies. A commit whose answer was lost is *in doubt*: it may or may
not have happened, and only a proof from the broker ends the doubt. A decided transaction that is
proven aborted (a timeout, an operator) is *lost*; its records are produced again in another
transaction, and it is *healed*, or a person accepts the loss and it is *given up*. Terminal states
have an empty row. A missing entry is a bug of ours: one lookup, one raise, and the refused event
changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from transactions.errors import IllegalTransitionError


class State(enum.Enum):
    """Where a transaction stands."""

    IDLE = "idle"
    OPEN = "open"
    PREPARED = "prepared"
    DECIDED = "decided"
    IN_DOUBT = "in doubt"
    COMMITTED = "committed"
    LOST = "lost"
    HEALED = "healed"
    GIVEN_UP = "given up"
    ABORTED = "aborted"


class Event(enum.Enum):
    """What can happen to a transaction."""

    BEGIN = "begin_transaction"
    INVOKE = "invoke"
    PRE_COMMIT = "pre_commit"
    PRE_COMMIT_EMPTY = "pre_commit, nothing written"
    ABORT = "abort"
    FENCE = "fenced by a sweep"
    DECIDE = "decision durable"
    ACKNOWLEDGE = "commit acknowledged"
    LOSE_ANSWER = "commit's answer lost"
    PROVE_COMMITTED = "proven committed"
    PROVE_ABORTED = "proven aborted"
    HEAL = "produced again, decided"
    ACCEPT_LOSS = "loss accepted by a person"


TABLE: Final[Mapping[State, Mapping[Event, State]]] = MappingProxyType(
    {
        State.IDLE: {Event.BEGIN: State.OPEN},
        State.OPEN: {
            Event.INVOKE: State.OPEN,
            Event.PRE_COMMIT: State.PREPARED,
            Event.PRE_COMMIT_EMPTY: State.IDLE,
            Event.ABORT: State.ABORTED,
            Event.FENCE: State.ABORTED,
        },
        State.PREPARED: {
            Event.DECIDE: State.DECIDED,
            Event.ABORT: State.ABORTED,
            Event.FENCE: State.ABORTED,
        },
        State.DECIDED: {
            Event.ACKNOWLEDGE: State.COMMITTED,
            Event.LOSE_ANSWER: State.IN_DOUBT,
            Event.PROVE_COMMITTED: State.COMMITTED,
            Event.PROVE_ABORTED: State.LOST,
        },
        State.IN_DOUBT: {
            Event.ACKNOWLEDGE: State.COMMITTED,
            Event.LOSE_ANSWER: State.IN_DOUBT,
            Event.PROVE_COMMITTED: State.COMMITTED,
            Event.PROVE_ABORTED: State.LOST,
        },
        State.LOST: {Event.HEAL: State.HEALED, Event.ACCEPT_LOSS: State.GIVEN_UP},
        State.COMMITTED: {},
        State.HEALED: {},
        State.GIVEN_UP: {},
        State.ABORTED: {},
    }
)


def next_state(state: State, event: Event, *, transaction: str = "") -> State:
    """Return the state that follows.

    Raises:
        IllegalTransitionError: the table has no such step.
    """
    try:
        return TABLE[state][event]
    except KeyError:
        raise IllegalTransitionError(
            f"A transaction that is {state.value!r} cannot take the event {event.value!r}.",
            where=f"transaction {transaction!r}" if transaction else "",
            cause="a bug in sparkonce; nothing was changed",
        ) from None


class Lifecycle:
    """One transaction's walk through the table."""

    def __init__(self, transaction: str, state: State = State.IDLE) -> None:
        self.transaction = transaction
        self.state = state

    def advance(self, event: Event) -> State:
        """Take one step; a refused event leaves the state as it was.

        Raises:
            IllegalTransitionError: the table has no such step.
        """
        self.state = next_state(self.state, event, transaction=self.transaction)
        return self.state


def diagram() -> str:
    """Return the table as a Mermaid state diagram; a test compares docs/how_it_works.md."""

    def identifier(state: State) -> str:
        return state.name.lower()

    lines = ["stateDiagram-v2", "    [*] --> idle"]
    for state, row in TABLE.items():
        lines += [
            f"    {identifier(state)} --> {identifier(target)}: {event.value}"
            for event, target in row.items()
        ]
        if not row:
            lines.append(f"    {identifier(state)} --> [*]")
    return "\n".join(lines)
