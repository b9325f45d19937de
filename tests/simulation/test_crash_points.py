"""Kill the driver at every point of the protocol, and at every pair of points; then restart.

The auditor is a plain list: what a reader sees must be the input, once, whatever died when.
"""

import dataclasses
import itertools
from collections import Counter

import pytest

from tests.simulation.pipeline import Crash, Driver, Durable
from transactions import crash_points
from transactions.committable import Committable
from transactions.errors import (
    FencedError,
    OutcomeUnknownError,
    ReplayMismatchError,
)
from transactions.events import Event, subscribe
from transactions.replay import Checkpoint

TOTAL = 14
#: Those of healing need a transaction that was lost: test_healing.py.
POINTS = [point for point in crash_points.POINTS if not point.startswith("heal_")]
EXPECTED = Counter(f"{side}:{value}" for side in ("left", "right") for value in range(TOTAL))


class Killer:
    """Raises at the n-th time that a point is reached."""

    def __init__(self, *moments: tuple[str, int]) -> None:
        self.moments = list(moments)
        self.counts: Counter[str] = Counter()

    def __call__(self, point: str, _checkpoint_id: int) -> None:
        self.counts[point] += 1
        if self.moments and (point, self.counts[point]) == self.moments[0]:
            del self.moments[0]
            self.counts.clear()
            raise Crash(point)


@pytest.fixture(autouse=True)
def nothing_is_lost():
    """Here the broker aborts nothing by itself, so what had to be healed was aborted by us."""
    events: list[Event] = []
    unsubscribe = subscribe(events.append)
    yield
    unsubscribe()
    assert [one for one in events if one.kind in {"lost", "healed"}] == []


@pytest.fixture
def killer():
    yield lambda *moments: crash_points.install(one := Killer(*moments)) or one
    crash_points.install(None)


def run_until_done(durable: Durable, most: int = 10) -> int:
    for restarts in range(most):
        try:
            Driver(durable).run(TOTAL)
        except Crash:
            continue
        return restarts
    raise AssertionError("it never came to its end")


def check(durable: Durable) -> None:
    assert durable.broker.open_ids() == []
    assert Counter(durable.broker.visible) == EXPECTED


def test_no_crash(killer):
    durable = Durable()
    assert run_until_done(durable) == 0
    check(durable)


def test_every_point_is_reached(killer):
    one = killer()
    run_until_done(Durable())
    assert set(one.counts) == set(POINTS)


@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_each_point(killer, point, nth):
    one, durable = killer((point, nth)), Durable()
    restarts = run_until_done(durable)
    assert restarts == (0 if one.moments else 1)
    check(durable)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(POINTS, repeat=2)))
def test_two_crashes_in_a_row(killer, first, second):
    killer((first, 1), (second, 1))
    durable = Durable()
    assert run_until_done(durable) == 2
    check(durable)


@pytest.mark.parametrize("point", POINTS)
def test_after_recovery_nothing_is_open(killer, point):
    """Readers wait behind an open transaction, so the sweep comes before any new data."""
    one, durable = killer((point, 1)), Durable()
    try:
        Driver(durable).run(TOTAL)
    except Crash:
        one.moments.clear()
    Driver(durable)
    assert durable.broker.open_ids() == []


OTHER = {
    "query": {"query_id": "another"},
    "start": {"start_offsets": ("1",)},
    "end": {"end_offsets": ("5",)},
}


@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER.keys())
def test_a_decided_checkpoint_with_another_range_or_query_is_refused(killer, other):
    """Returning as if it were the same would lose what lies between the two ends."""
    killer(("decision_durable", 1))
    durable = Durable()
    with pytest.raises(Crash):
        Driver(durable).run(TOTAL)
    decided = {"query_id": "q", "start_offsets": ("0",), "end_offsets": ("4",)}
    coordinator = Driver(durable).coordinator
    same = Checkpoint(checkpoint_id=0, **decided)

    def never() -> list[Committable]:
        raise AssertionError("what was decided is not written again")

    with pytest.raises(ReplayMismatchError, match="checkpoint 0"):
        coordinator.run(dataclasses.replace(same, **other), never)
    assert coordinator.run(same, never).replayed


def test_an_older_checkpoint_than_the_decided_one_is_refused(killer):
    """Spark's part of the checkpoint was deleted: batch 0 comes again after batch 3."""
    durable = Durable()
    Driver(durable).run(TOTAL)
    durable.commits.clear()
    with pytest.raises(ReplayMismatchError):
        Driver(durable).run(TOTAL)
    check(durable)


@pytest.mark.parametrize("dropped", range(1, 9))
def test_x6_lost_answers_are_settled_by_proof(killer, dropped):
    durable = Durable()
    durable.broker.drop_answers = dropped
    assert run_until_done(durable) == 0
    check(durable)


def test_x10_recovering_twice_finds_it_committed(killer):
    killer(("recovery_settled", 2))
    durable = Durable()
    Driver(durable).run(TOTAL)
    with pytest.raises(Crash):
        Driver(durable)
    Driver(durable)
    check(durable)


def test_x15_the_older_driver_stops_and_commits_nothing_more(killer):
    durable = Durable()
    older = Driver(durable)
    newer = Driver(durable)
    with pytest.raises(FencedError):
        older.run(TOTAL)
    assert durable.broker.visible == []
    newer.run(TOTAL)
    check(durable)


def test_x15_the_older_driver_is_fenced_between_its_phases(killer):
    """It has prepared batch 0 when the newer run begins; only the newer one's records count."""
    durable = Durable()
    older = Driver(durable)
    durable.offsets[0] = (0, 4)
    prepared = older.phase_one

    def phase_one(number):
        committables = prepared(number)
        Driver(durable)
        return committables

    older.phase_one = phase_one
    with pytest.raises(Exception, match=r"newer run|not as prepared"):
        older.batch(0)
    assert durable.broker.visible == []
    Driver(durable).run(TOTAL)
    check(durable)


def test_x21_a_sweep_leaves_other_applications_alone(killer):
    durable, other = Durable(), Durable()
    other.broker = durable.broker
    killer(("committables_collected", 1))
    with pytest.raises(Crash):
        Driver(other, "app-2").run(TOTAL)
    lingering = durable.broker.open_ids()
    crash_points.install(None)
    Driver(durable, "app").run(TOTAL)
    assert durable.broker.open_ids() == lingering


def test_a_broker_that_never_answers_ends_in_a_named_error(killer):
    durable = Durable()
    durable.broker.drop_answers = 10**9
    driver = Driver(durable)
    driver.sinks["left"].recover_and_commit = lambda ones, _deadline: {}
    with pytest.raises(OutcomeUnknownError, match="checkpoint 0"):
        driver.run(TOTAL)
