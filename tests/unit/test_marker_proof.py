"""What a marker, or its absence, proves of a transaction whose coordinator knows it no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connectors.kafka.sink.kafka_committer import KafkaCommitter
from tests.unit.samples import committable
from transactions.clock import Deadline
from transactions.committable import Outcome

ID = "app.log.1.p.0"
HOUR_MS = 3_600_000
#: What the broker's clock shows; ours is not looked at.
NOW_MS = 86_400_000_000


def outcome(
    found: tuple[int, str] | None,
    *,
    group: str = "app",
    age_ms: int = HOUR_MS,
    now_ms: int | None = NOW_MS,
) -> Outcome:
    """Recover one transaction: its id is forgotten, and this stands where its token should be."""
    sink = KafkaCommitter("out", {"bootstrap.servers": "b:1"})
    wire: Any = SimpleNamespace(
        read_markers=lambda *_, **__: {} if found is None else {"in-0": found},
        broker_setting=lambda *_: "10080",
        broker_now_ms=lambda *_: now_ms,
    )
    sink._wire = wire
    one = committable(
        transactional_id=ID,
        checkpoint_id=5,
        token="5.0.t",
        marker_group=group,
        start_time_ms=NOW_MS - age_ms,
    )
    return sink._by_marker(one, "Empty", Deadline(1.0))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((7, "5.0.t"), Outcome.ALREADY_COMMITTED),
        ((7, "4.0.u"), Outcome.ABORTED),
        (None, Outcome.ABORTED),
        ((7, "6.0.u"), Outcome.UNKNOWN),
        ((7, "5.1.u"), Outcome.UNKNOWN),
        ((7, ""), Outcome.UNKNOWN),  # a group that was reset
        ((7, "by hand"), Outcome.UNKNOWN),
    ],
)
def test_only_a_token_of_ours_that_is_older_is_no_commit(found, expected):
    """An abort is healed: what was committed would come twice."""
    assert outcome(found) is expected


def test_in_a_group_of_its_own_id_a_later_token_is_a_proof():
    """Its producer began the later transaction when the commit of this one had been answered."""
    assert outcome((6, "6.0.u"), group=ID) is Outcome.ALREADY_COMMITTED


@pytest.mark.parametrize("age_ms", [-HOUR_MS, 8 * 24 * HOUR_MS])
def test_an_age_that_cannot_be_right_or_is_too_high_proves_nothing(age_ms):
    assert outcome(None, age_ms=age_ms) is Outcome.UNKNOWN


def test_a6_without_the_brokers_clock_nothing_is_proven():
    assert outcome(None, now_ms=None) is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("state", "found", "expected"),
    [
        ("Ongoing", None, Outcome.UNKNOWN),
        ("Ongoing", (5, "5.0.t"), Outcome.ALREADY_COMMITTED),
        ("CompleteCommit", None, Outcome.ABORTED),
        ("CompleteAbort", (5, "5.0.t"), Outcome.ALREADY_COMMITTED),
    ],
)
def test_a_later_transaction_of_the_same_producer_is_not_ours(state, found, expected):
    """Id, producer id and epoch are the same, only the start differs: what the coordinator says of
    the later transaction proves nothing, and a commit would make undecided records visible.
    """
    one = committable(
        transactional_id=ID,
        producer_id=7,
        producer_epoch=3,
        checkpoint_id=5,
        token="5.0.t",
        marker_group=ID,
        start_time_ms=NOW_MS - HOUR_MS,
    )
    later = SimpleNamespace(
        producer_id=7, producer_epoch=3, state=state, start_time_ms=NOW_MS - HOUR_MS + 1
    )
    committed: list[Any] = []
    wire: Any = SimpleNamespace(
        describe=lambda *_: {ID: later},
        commit=lambda ones, _: committed.extend(ones) or {ID: Outcome.COMMITTED},
        doubtful=frozenset(),
        read_markers=lambda *_, **__: {} if found is None else {"in-0": found},
        broker_setting=lambda *_: "10080",
        broker_now_ms=lambda *_: NOW_MS,
    )
    sink = KafkaCommitter("out", {"bootstrap.servers": "b:1"})
    sink._wire = wire
    assert sink.recover_and_commit([one], Deadline(1.0)) == {"5.0.t": expected}
    assert committed == []
