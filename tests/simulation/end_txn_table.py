"""What a transaction coordinator answers to EndTxn: one table, as data.

Read from Kafka 4.4's coordinator and measured on a broker; `test_fake_conformance.py` holds every
row that can be provoked against a real one. A request is first checked in the order of `CHECKS`;
only one that passes them is looked up in `ROWS`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Final

NONE: Final = 0
COORDINATOR_LOADING: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
CONCURRENT: Final = 51
FENCED: Final = 90

#: Asked of the coordinator before anything else; the same for every request to it.
NOT_NOW: Final = (COORDINATOR_LOADING, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)

LARGEST_EPOCH: Final = 32766  # 32767 is never given to a producer: the id gets a new pid before


class State(enum.Enum):
    """Kafka's names; a pending transition is any state plus a flag."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class Epoch(enum.Enum):
    """The request's epoch beside the coordinator's."""

    SMALLER = "smaller"
    RETRY = "one smaller: a repeated version 5"
    EQUAL = "equal"
    LARGER = "larger"


class Effect(enum.Enum):
    """What an answer NONE has done."""

    NOTHING = "nothing"
    END = "the transaction is ended, the epoch stays"
    END_AND_BUMP = "the transaction is ended, the epoch is one larger"
    EMPTY_ABORT = "no transaction was open: CompleteAbort, the epoch is one larger"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One answer."""

    code: int
    effect: Effect = Effect.NOTHING


_SAME = Row(NONE)
_WRONG = Row(INVALID_TXN_STATE)
_WAIT = Row(CONCURRENT)
_FENCED = Row(FENCED)
_END = Row(NONE, Effect.END)
_BUMP = Row(NONE, Effect.END_AND_BUMP)
_VOID = Row(NONE, Effect.EMPTY_ABORT)

#: Versions 0-4: only an equal epoch is looked at further. (commit, abort)
UP_TO_4: Final[Mapping[State, tuple[Row, Row]]] = {
    State.EMPTY: (_WRONG, _WRONG),
    State.ONGOING: (_END, _END),
    State.PREPARE_COMMIT: (_WAIT, _WRONG),
    State.PREPARE_ABORT: (_WRONG, _WAIT),
    State.COMPLETE_COMMIT: (_SAME, _WRONG),
    State.COMPLETE_ABORT: (_WRONG, _SAME),
}

#: Version 5. (commit equal, commit retry, abort equal, abort retry); other epochs are fenced.
VERSION_5: Final[Mapping[State, tuple[Row, Row, Row, Row]]] = {
    State.EMPTY: (_WRONG, _FENCED, _VOID, _FENCED),
    State.ONGOING: (_BUMP, _FENCED, _BUMP, _FENCED),
    State.PREPARE_COMMIT: (_FENCED, _WAIT, _FENCED, _WRONG),
    State.PREPARE_ABORT: (_FENCED, _WRONG, _FENCED, _WAIT),
    State.COMPLETE_COMMIT: (_WRONG, _SAME, _VOID, _WRONG),
    State.COMPLETE_ABORT: (_WRONG, _WRONG, _VOID, _SAME),
}


def epoch_relation(asked: int, known: int) -> Epoch:
    """Compare a request's epoch with the coordinator's."""
    if asked == known:
        return Epoch.EQUAL
    if asked > known:
        return Epoch.LARGER
    return Epoch.RETRY if asked == known - 1 else Epoch.SMALLER


def row_of(version: int, state: State, *, commit: bool, epoch: Epoch) -> Row:
    """Look a request up whose id and producer id are the coordinator's."""
    if version <= 4:
        if epoch is not Epoch.EQUAL:
            return _FENCED
        return UP_TO_4[state][0 if commit else 1]
    if epoch not in (Epoch.EQUAL, Epoch.RETRY):
        return _FENCED
    column = (0 if commit else 2) + (epoch is Epoch.RETRY)
    return VERSION_5[state][column]


def answered(version: int, code: int) -> int:
    """Return the code as the version writes it: before version 2 there was one code for both."""
    return INVALID_PRODUCER_EPOCH if version < 2 and code == FENCED else code


def end_txn(
    version: int,
    *,
    known: bool,
    same_producer: bool,
    pending: bool,
    state: State,
    commit: bool,
    epoch: Epoch,
) -> Row:
    """Return the answer to one request, in the coordinator's own order of checks."""
    if not known:
        return Row(INVALID_PRODUCER_ID_MAPPING)
    if version >= 5 and pending:
        return _WAIT
    if not same_producer:
        return Row(INVALID_PRODUCER_ID_MAPPING)
    if version <= 4 and epoch is not Epoch.EQUAL:
        return Row(answered(version, FENCED))
    if pending:
        return _WAIT
    row = row_of(version, state, commit=commit, epoch=epoch)
    return dataclasses.replace(row, code=answered(version, row.code))
