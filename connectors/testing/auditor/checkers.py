"""Judges a history: each anomaly is one pure function, history -> cases.

A history is what had to become visible (`Expected`) and what a read_committed reader saw (`Seen`).
The anomalies exclude each other: one fault in a history gives cases of one name only.
`tests/unit/test_auditor_checkers.py` proves this with a corrupted history for each (A6).

    duplicate              one expected record is visible more often than once
    lost at the tail       a record is missing, and no later one of its source partition is there
    lost in the middle     a record is missing, and a later one of its source partition is there
    out of order           two records of one source partition changed places in an output partition
    aborted value visible  a record of an aborted transaction is visible
    torn batch             one transaction of a batch is invisible as a whole, another is visible
    foreign value          a record is visible that nobody expected
    readers disagree       two readers of one topic saw different records at an offset

Not anomalies (argued): the order *between* source partitions, since Kafka promises none; and
interleaved writes of two transactions (Jepsen's G0), since Kafka does not isolate writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

INTENT_HEADER = "transactionStatus"
"""Header in which a test's producer says what it means to do with the transaction (K9)."""


class AnyRecord(Protocol):
    """The fields of `reader.Record` that a history needs."""

    @property
    def topic(self) -> str:
        """Topic that contains it."""

    @property
    def partition(self) -> int:
        """Partition of the topic."""

    @property
    def offset(self) -> int:
        """Place in the partition."""

    @property
    def key(self) -> bytes | None:
        """Key as stored."""

    @property
    def value(self) -> bytes | None:
        """Value as stored."""

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Headers in their order."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One record that must become visible exactly once.

    Attributes:
        id: unique identity, the same on both sides.
        source: the source partition.
        position: place in the source partition (its offset).
        batch: the checkpoint that must make it visible, None if the test does not know it.
        transaction: the transaction of that batch that carries it (a subtask, a sink), else None.
    """

    id: Hashable
    source: Hashable
    position: int
    batch: Hashable | None = None
    transaction: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One record that a read_committed reader saw.

    Attributes:
        id: identity found in the record.
        partition: topic and partition of the output.
        offset: its offset there.
        aborted: whether the record itself, or its attempt, says that it was aborted.
    """

    id: Hashable
    partition: Hashable
    offset: int
    aborted: bool = False


@dataclass(frozen=True)
class History:
    """What had to become visible, and what was seen."""

    expected: tuple[Expected, ...]
    seen: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One anomaly by name, and its place."""

    anomaly: str
    detail: str

    def __str__(self) -> str:
        return f"{self.anomaly}: {self.detail}"


Identify = Callable[[AnyRecord], Hashable]


def history_of(
    inputs: Iterable[AnyRecord],
    outputs: Iterable[AnyRecord],
    *,
    identify: Identify,
    identify_output: Identify | None = None,
    batch_of: Callable[[AnyRecord], tuple[Hashable, Hashable]] | None = None,
) -> History:
    """Make a history from records: every input is expected once in the outputs.

    Args:
        inputs: records of the source topics.
        outputs: records that a read_committed reader saw.
        identify: identity of an input record.
        identify_output: identity of an output record; without it, the same function.
        batch_of: batch and transaction of an input record, if the test knows them.
    """
    identify_output = identify_output or identify
    expected = []
    for record in inputs:
        batch, transaction = batch_of(record) if batch_of else (None, None)
        source = (record.topic, record.partition)
        expected.append(Expected(identify(record), source, record.offset, batch, transaction))
    seen = tuple(
        Seen(
            identify_output(record),
            (record.topic, record.partition),
            record.offset,
            aborted=(INTENT_HEADER, b"aborted") in record.headers,
        )
        for record in outputs
    )
    return History(tuple(expected), seen)


def duplicate(history: History) -> list[Case]:
    """Prove that no expected record is visible twice, by counting each identity."""
    counts = _visible(history)
    places = defaultdict(list)
    for seen in _committed(history):
        if counts[seen.id] > 1:
            places[seen.id].append(f"{seen.partition}@{seen.offset}")
    ids = {expected.id for expected in history.expected}
    return [
        Case("duplicate", f"{id_!r} is visible {counts[id_]} times, at {', '.join(where)}")
        for id_, where in places.items()
        if id_ in ids
    ]


def lost_at_the_tail(history: History) -> list[Case]:
    """Prove that no source partition ends early: its last expected record is visible.

    A checker misses this loss if it walks what it received instead of what it expected.
    """
    return [
        Case("lost at the tail", f"{lost.id!r} of {lost.source}@{lost.position}")
        for lost, followed in _lost(history)
        if not followed
    ]


def lost_in_the_middle(history: History) -> list[Case]:
    """Prove that no record is missing before a visible one of the same source partition."""
    return [
        Case("lost in the middle", f"{lost.id!r} of {lost.source}@{lost.position}")
        for lost, followed in _lost(history)
        if followed
    ]


def out_of_order(history: History) -> list[Case]:
    """Prove that records of one source partition have source order in each output partition.

    Only the first occurrence of an identity counts, so a duplicate is not also a swap.
    """
    origin = {expected.id: expected for expected in history.expected}
    latest: dict[tuple[Hashable, Hashable], Expected] = {}
    met: set[Hashable] = set()
    cases = []
    for seen in _in_log_order(_committed(history)):
        expected = origin.get(seen.id)
        if expected is None or seen.id in met:
            continue
        met.add(seen.id)
        pair = (expected.source, seen.partition)
        before = latest.get(pair)
        if before is not None and expected.position < before.position:
            where = f"{seen.id!r} of {expected.source}@{expected.position}"
            after = f"{before.id!r} of @{before.position}"
            text = f"{where} follows {after}, at {seen.partition}@{seen.offset}"
            cases.append(Case("out of order", text))
        else:
            latest[pair] = expected
    return cases


def aborted_value_visible(history: History) -> list[Case]:
    """Prove that no record of an aborted transaction is visible to a read_committed reader."""
    return [
        Case("aborted value visible", f"{seen.id!r} at {seen.partition}@{seen.offset}")
        for seen in history.seen
        if seen.aborted
    ]


def torn_batch(history: History) -> list[Case]:
    """Prove that a batch is visible with all of its transactions, or with none of them.

    A batch is torn when one of its transactions is completely invisible while another one is seen.
    A single record that is missing from a visible transaction is a loss, not a torn batch.
    """
    cases = []
    for batch, (visible, invisible) in _transactions(history).items():
        if visible and invisible:
            text = f"batch {batch!r}: visible {sorted(map(repr, visible))}, "
            text += f"invisible {sorted(map(repr, invisible))}"
            cases.append(Case("torn batch", text))
    return cases


def foreign_value(history: History) -> list[Case]:
    """Prove that every visible record was expected."""
    ids = {expected.id for expected in history.expected}
    return [
        Case("foreign value", f"{seen.id!r} at {seen.partition}@{seen.offset}")
        for seen in _committed(history)
        if seen.id not in ids
    ]


CHECKERS: tuple[Callable[[History], list[Case]], ...] = (
    duplicate,
    lost_at_the_tail,
    lost_in_the_middle,
    out_of_order,
    aborted_value_visible,
    torn_batch,
    foreign_value,
)


def readers_disagree(first: Sequence[AnyRecord], second: Sequence[AnyRecord]) -> list[Case]:
    """Prove that two readers saw one record per offset, the same records in the same order.

    K1 and K5: a consumer during the run must have seen the same as a consumer after it.
    """
    cases = []
    one, other = _by_partition(first), _by_partition(second)
    for partition in sorted({*one, *other}, key=repr):
        left, right = one.get(partition, []), other.get(partition, [])
        if [offset for offset, *_ in left] != sorted({offset for offset, *_ in left}):
            cases.append(Case("readers disagree", f"{partition}: the first reader went back"))
        if left != right:
            odd = sorted(set(left) ^ set(right), key=lambda item: item[0])[:1]
            where = f"@{odd[0][0]}" if odd else ": the same records in another order"
            cases.append(Case("readers disagree", f"{partition}{where}"))
    return cases


def judge(history: History) -> list[Case]:
    """Run every checker, in the order of the table above."""
    _assert_unique(history)
    return [case for checker in CHECKERS for case in checker(history)]


def assert_exactly_once(history: History, *, show: int = 20) -> None:
    """Fail with the first anomalies, and the number of cases of each name."""
    cases = judge(history)
    if cases:
        totals = Counter(case.anomaly for case in cases)
        summary = ", ".join(f"{name} ({count})" for name, count in totals.items())
        lines = "\n  ".join(str(case) for case in cases[:show])
        raise AssertionError(
            f"not exactly once: {summary}; expected {len(history.expected)}, "
            f"saw {len(history.seen)}\n  {lines}"
        )


def _assert_unique(history: History) -> None:
    """Refuse to judge repeated expected identities: a duplicate could not be distinguished."""
    repeated = [i for i, n in Counter(e.id for e in history.expected).items() if n > 1]
    if repeated:
        raise ValueError(f"expected identities repeat: {repeated[:5]!r}; choose a unique identity")


def _committed(history: History) -> Iterator[Seen]:
    return (seen for seen in history.seen if not seen.aborted)


def _visible(history: History) -> Counter[Hashable]:
    return Counter(seen.id for seen in _committed(history))


def _in_log_order(seen: Iterable[Seen]) -> list[Seen]:
    return sorted(seen, key=lambda item: (repr(item.partition), item.offset))


def _lost(history: History) -> Iterator[tuple[Expected, bool]]:
    """Yield missing records, and whether a visible record of their source partition follows.

    Records of a torn batch's invisible transactions are left out: that anomaly names them.
    """
    counts = _visible(history)
    torn = {
        (batch, transaction)
        for batch, (visible, invisible) in _transactions(history).items()
        if visible
        for transaction in invisible
    }
    last: dict[Hashable, int] = {}
    for expected in history.expected:
        if counts[expected.id]:
            last[expected.source] = max(last.get(expected.source, -1), expected.position)
    for expected in history.expected:
        of_torn = expected.batch is not None and (expected.batch, expected.transaction) in torn
        if not counts[expected.id] and not of_torn:
            yield expected, expected.position < last.get(expected.source, -1)


def _transactions(history: History) -> dict[Hashable, tuple[set[Hashable], set[Hashable]]]:
    """Return, for each batch, its visible and its wholly invisible transactions."""
    counts = _visible(history)
    visible: dict[Hashable, set[Hashable]] = defaultdict(set)
    all_of: dict[Hashable, set[Hashable]] = defaultdict(set)
    for expected in history.expected:
        if expected.batch is not None:
            all_of[expected.batch].add(expected.transaction)
            if counts[expected.id]:
                visible[expected.batch].add(expected.transaction)
    return {batch: (visible[batch], all_of[batch] - visible[batch]) for batch in all_of}


def _by_partition(
    records: Sequence[AnyRecord],
) -> dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]:
    found: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]] = defaultdict(list)
    for record in records:
        partition = (record.topic, record.partition)
        found[partition].append((record.offset, record.key, record.value))
    return found
