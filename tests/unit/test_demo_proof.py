"""The demo's proof fails by name on every kind of damage."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest

from connectors.demo.history import History, Kind
from connectors.demo.proof import check_counts, check_flights, check_nothing_open, check_plot

FLIGHTS = pa.table(
    {
        "flight_id": [0, 1, 2],
        "carrier": ["UA", "B6", "UA"],
        "flight": [1545, 725, 461],
        "origin": ["EWR", "JFK", "LGA"],
        "dest": ["IAH", "BQN", "IAH"],
        "distance": [1400, 1576, 1416],
        "dep_delay": [2, None, 40],
    }
)


def clean() -> list[tuple[bytes, bytes]]:
    return [(b"%d" % row["flight_id"], _without_nulls(row)) for row in FLIGHTS.to_pylist()]


def _without_nulls(row: dict[str, object]) -> bytes:
    return orjson.dumps({name: value for name, value in row.items() if value is not None})


def counts(*pairs: tuple[str, int]) -> list[tuple[bytes, bytes]]:
    return [(airport.encode(), orjson.dumps({"count": count})) for airport, count in pairs]


def test_flights_hold_in_any_order():
    assert check_flights(reversed(clean()), FLIGHTS).holds


@pytest.mark.parametrize(
    ("damaged", "name"),
    [
        (clean()[:2], "1 lost: 2"),
        ([clean()[0], clean()[2]], "1 lost: 1"),
        ([*clean(), clean()[1]], "1 duplicated: 1"),
        ([*clean(), (b"7", b"{}")], "1 foreign: b'7'"),
        ([*clean()[:2], (b"2", clean()[1][1])], "1 altered: 2"),
    ],
    ids=["lost at the tail", "lost in the middle", "duplicated", "foreign", "swapped"],
)
def test_damaged_flights_are_named(damaged: list[tuple[bytes, bytes]], name: str):
    check = check_flights(damaged, FLIGHTS)

    assert not check.holds
    assert name in check.detail


def test_counts_hold_when_they_grow_to_the_right_number():
    assert check_counts(counts(("IAH", 1), ("BQN", 1), ("IAH", 2)), FLIGHTS).holds


@pytest.mark.parametrize(
    ("damaged", "name"),
    [
        (counts(("IAH", 2)), "BQN 0 instead of 1"),
        (counts(("IAH", 3), ("BQN", 1)), "IAH 3 instead of 2"),
        (counts(("IAH", 2), ("IAH", 2), ("BQN", 1)), "not growing: IAH"),
        (counts(("IAH", 2), ("BQN", 1), ("XXX", 1)), "XXX 1 instead of 0"),
    ],
)
def test_damaged_counts_are_named(damaged: list[tuple[bytes, bytes]], name: str):
    check = check_counts(damaged, FLIGHTS)

    assert not check.holds
    assert name in check.detail


def test_open_transactions_and_a_plot_that_did_not_happen_fail():
    assert check_nothing_open([], []).holds
    assert not check_nothing_open(["t-0: readers stop at 3, the log ends at 5"], []).holds
    assert not check_nothing_open([], ["app.log.1.p.0 is Ongoing"]).holds
    assert check_plot(2, 2, 0).holds
    assert not check_plot(1, 2, 0).holds
    assert not check_plot(2, 2, 1).holds


def test_history_counts_lag_rates_and_pauses():
    history = History(total=300)
    for second, loaded, visible in ((0, 0, 0), (1, 100, 0), (2, 300, 100), (3, 300, 300)):
        history.loaded, history.visible = loaded, visible
        history.sample(float(second))
    history.mark(1.5, Kind.KILL, "SIGKILL")
    message = {"id": 0, "records": 100, "transactions": 2, "replayed": False, "recommitted": 1}
    for at in (1.0, 2.0, 3.0):
        history.checkpoint(at, message | {"commit_ms": at})

    assert history.max_lag == 200
    assert history.records_per_second == 150.0
    assert history.peak_per_second == 200.0
    assert history.outages == [(1.5, 2.0)]
    assert history.recommitted == 3
    assert history.commit_ms(50) == 2.0
    assert history.commit_ms(99) == 3.0
