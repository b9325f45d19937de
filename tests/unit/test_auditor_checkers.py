"""A checker that cannot fail proves nothing: each is given a history that it must refuse (A6)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import pytest

from tests.auditor.checkers import (
    CHECKERS,
    Expected,
    History,
    Seen,
    assert_exactly_once,
    history_of,
    judge,
    readers_disagree,
)
from tests.auditor.reader import Record

SOURCES = 3
PER_SOURCE = 40
BATCH = 10  # records of one source partition in one batch, written by one transaction


def clean() -> History:
    """Three source partitions of 40 records, four batches, one transaction per source in each."""
    expected = [
        Expected(f"{s}/{i}", s, i, batch=i // BATCH, transaction=s)
        for s in range(SOURCES)
        for i in range(PER_SOURCE)
    ]
    in_log_order = sorted(expected, key=lambda e: (e.batch, e.source, e.position))
    ends = [0, 0]
    seen = []
    for e in in_log_order:
        out = hash(e.source) % 2  # two output partitions, two sources share the first
        seen.append(Seen(e.id, out, ends[out]))
        ends[out] += 1
    return History(tuple(expected), tuple(seen))


def without(history: History, *ids: str) -> History:
    """Hide the records of these identities."""
    return replace(history, seen=tuple(s for s in history.seen if s.id not in ids))


def one_duplicate(history: History) -> History:
    """A record is visible again at the end."""
    return replace(history, seen=(*history.seen, Seen("1/7", 1, 1000)))


def one_loss_at_the_tail(history: History) -> History:
    """The last record of a source partition is missing."""
    return without(history, f"2/{PER_SOURCE - 1}")


def one_loss_in_the_middle(history: History) -> History:
    """A record is missing, the next ones are there."""
    return without(history, "0/17")


def one_swap(history: History) -> History:
    """Two neighbours of one source partition change places."""
    other: dict[Hashable, str] = {"1/5": "1/6", "1/6": "1/5"}
    return replace(history, seen=tuple(replace(s, id=other.get(s.id, s.id)) for s in history.seen))


def one_aborted_value(history: History) -> History:
    """An aborted attempt of a record is visible beside the committed one."""
    return replace(history, seen=(*history.seen, Seen("1/7", 1, 1000, aborted=True)))


def one_torn_batch(history: History) -> History:
    """One transaction of the second batch is missing, the others are there."""
    return without(history, *(f"1/{i}" for i in range(BATCH, 2 * BATCH)))


def one_torn_last_batch(history: History) -> History:
    """One transaction of the last batch is missing: no loss at the tail."""
    return without(history, *(f"1/{i}" for i in range(PER_SOURCE - BATCH, PER_SOURCE)))


def one_foreign_value(history: History) -> History:
    """A record is visible that nobody sent."""
    return replace(history, seen=(*history.seen, Seen("9/9", 1, 1000)))


CORRUPTIONS = [
    (one_duplicate, "duplicate", 1),
    (one_loss_at_the_tail, "lost at the tail", 1),
    (one_loss_in_the_middle, "lost in the middle", 1),
    (one_swap, "out of order", 1),
    (one_aborted_value, "aborted value visible", 1),
    (one_torn_batch, "torn batch", 1),
    (one_torn_last_batch, "torn batch", 1),
    (one_foreign_value, "foreign value", 1),
]


def test_a6_the_clean_history_passes() -> None:
    """No checker invents an anomaly."""
    assert judge(clean()) == []
    assert_exactly_once(clean())


@pytest.mark.parametrize(
    ("corrupt", "anomaly", "cases"), CORRUPTIONS, ids=[c.__name__ for c, _, _ in CORRUPTIONS]
)
def test_a6_a_corrupted_history_fails_by_its_name_and_no_other(
    corrupt: Callable[[History], History], anomaly: str, cases: int
) -> None:
    """Each anomaly is seen, and only that one."""
    assert [case.anomaly for case in judge(corrupt(clean()))] == [anomaly] * cases
    with pytest.raises(AssertionError, match=f"not exactly once: {anomaly}"):
        assert_exactly_once(corrupt(clean()))


def test_a6_every_checker_has_a_corruption() -> None:
    """A checker without a history that it must refuse is not trusted."""
    named = {anomaly.replace(" ", "_") for _, anomaly, _ in CORRUPTIONS}
    assert {checker.__name__ for checker in CHECKERS} == named


def test_a6_a_batch_that_is_missing_as_a_whole_is_a_loss_and_not_torn() -> None:
    """All or nothing: nothing is not torn."""
    ids = [f"{s}/{i}" for s in range(SOURCES) for i in range(BATCH, 2 * BATCH)]
    names = {case.anomaly for case in judge(without(clean(), *ids))}
    assert names == {"lost in the middle"}


def test_a6_nothing_seen_at_all_is_a_loss_at_the_tail() -> None:
    """An empty output is no proof."""
    cases = judge(replace(clean(), seen=()))
    assert {case.anomaly for case in cases} == {"lost at the tail"}
    assert len(cases) == SOURCES * PER_SOURCE


def test_a6_an_identity_that_repeats_is_refused_and_not_judged() -> None:
    """It could not tell a duplicate."""
    history = clean()
    with pytest.raises(ValueError, match="expected identities repeat"):
        judge(replace(history, expected=(*history.expected, history.expected[0])))


def record(offset: int, value: bytes, *, intent: bytes | None = None) -> Record:
    """A record at an offset of one partition."""
    headers = (("transactionStatus", intent),) if intent else ()
    return Record("t", 0, offset, 0, None, value, headers)


def test_a6_k9_the_intent_header_marks_an_aborted_value() -> None:
    """K9: the record itself says what was meant."""
    inputs = [record(0, b"a"), record(1, b"b")]
    outputs = [
        record(0, b"a", intent=b"aborted"),
        record(2, b"a", intent=b"committed"),
        record(3, b"b", intent=b"committed"),
    ]
    cases = judge(history_of(inputs, outputs, identify=lambda r: r.value))
    assert [case.anomaly for case in cases] == ["aborted value visible"]


def test_a6_k1_readers_that_saw_the_same_agree() -> None:
    """K1: the reader during the run and the one after it."""
    records = [record(0, b"a"), record(1, b"b"), record(2, b"c")]
    assert readers_disagree(records, list(records)) == []


@pytest.mark.parametrize(
    "other",
    [
        [record(0, b"a"), record(1, b"b")],
        [record(0, b"a"), record(2, b"c")],
        [record(0, b"a"), record(1, b"x"), record(2, b"c")],
        [record(0, b"a"), record(2, b"c"), record(1, b"b")],
        [record(0, b"a"), record(1, b"b"), record(1, b"b"), record(2, b"c")],
    ],
    ids=["tail", "middle", "other value", "order", "twice"],
)
def test_a6_k1_readers_that_differ_are_named(other: list[Record]) -> None:
    """K1: each way to differ is seen."""
    records = [record(0, b"a"), record(1, b"b"), record(2, b"c")]
    assert {case.anomaly for case in readers_disagree(other, records)} == {"readers disagree"}
