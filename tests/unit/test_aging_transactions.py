"""F51, rule 14: a decided transaction that has used up half of its timeout is told, once."""

from __future__ import annotations

import dataclasses

import pytest

from tests.simulation import pipeline
from tests.simulation.pipeline import Crash, Driver, Durable
from tests.simulation.virtual_clock import VirtualClock
from tests.unit.samples import committable
from transactions import crash_points
from transactions.checkpoint_watch import tell_aging
from transactions.events import Event, subscribe

TIMEOUT_MS = 900_000  # of the simulation's sink
TRANSACTIONS = 4  # of its checkpoints


@pytest.fixture
def heard():
    found: list[Event] = []
    unsubscribe = subscribe(found.append)
    yield found
    unsubscribe()
    crash_points.install(None)


def aging(heard: list[Event]) -> list[Event]:
    return [event for event in heard if event.kind == "aging"]


@pytest.mark.parametrize(("age_ms", "told"), [(0, 0), (30_000, 0), (30_001, 1), (90_000, 1)])
def test_f51_more_than_half_of_the_timeout(heard, age_ms: int, told: int):
    one = dataclasses.replace(committable(), start_time_ms=1_000, timeout_ms=60_000)
    unknown = dataclasses.replace(one, start_time_ms=-1)
    tell_aging([unknown, one], 1_000 + age_ms)
    assert [event.fields["oldest_ms"] for event in aging(heard)] == [age_ms] * told
    assert [event.fields["transactions"] for event in aging(heard)] == [1] * told


@pytest.mark.parametrize("downtime_s", [440, 460])
def test_f51_a_long_downtime_is_told_by_recovery(heard, monkeypatch, downtime_s: int):
    durable = Durable()

    def die(point: str, _checkpoint: int) -> None:
        if point == "decision_durable":
            raise Crash(point)

    crash_points.install(die)
    with pytest.raises(Crash):
        Driver(durable).run(4)
    crash_points.install(None)
    del heard[:]
    late = VirtualClock()
    late.sleep(downtime_s)
    monkeypatch.setattr(pipeline, "VirtualClock", lambda: late)
    Driver(durable).run(4)
    told = aging(heard)
    if downtime_s * 2000 < TIMEOUT_MS:
        assert not told
    else:
        (event,) = {one.fields["checkpoint"] for one in told}
        assert event == 0
        assert sum(int(one.fields["transactions"]) for one in told) == TRANSACTIONS


def test_f51_a_long_checkpoint_is_told_when_it_is_decided(heard):
    driver = Driver(Durable())

    def take_long(point: str, _checkpoint: int) -> None:
        if point == "prepared_checked":
            driver.clock.sleep(451)

    crash_points.install(take_long)
    driver.coordinator._timeout_s = 600
    driver.run(4)
    (event,) = aging(heard)
    assert event.fields["transactions"] == TRANSACTIONS
    assert event.fields["timeout_ms"] == TIMEOUT_MS
    kinds = [event.kind for event in heard]
    assert kinds.index("aging") == kinds.index("decided") + 1
