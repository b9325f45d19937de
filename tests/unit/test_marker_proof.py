"""What a marker, or its absence, proves of a transaction whose coordinator knows it no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connectors.kafka.sink.kafka_sink import KafkaSink
from tests.both_halves import KafkaBothHalves
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
    sink = KafkaBothHalves(
        KafkaSink(bootstrap_servers="b:1", topic="out", name="out"),
        timeout_ms=60_000,
        checkpoint_timeout_s=10,
    )
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
