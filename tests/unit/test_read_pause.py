"""The pause between two reads: what comes in it is one batch, and belongs to the barrier's side."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from connectors.continuous.read_pause import ReadPause
from tests.waiting import until

LONG_S = 30.0


def test_a_pause_ends_by_itself():
    pause = ReadPause(0.01, 0.01)
    assert pause.take(1) is False


def test_a_barrier_cuts_it_short_and_waits_for_what_has_come():
    pause = ReadPause(LONG_S, LONG_S)
    order: list[str] = []

    def reading() -> None:
        assert pause.take(1) is True
        order.append("read")
        pause.over()

    thread = threading.Thread(target=reading)
    thread.start()
    until(lambda: pause._pausing)  # the moment that is tested
    pause.cut_short()
    order.append("barrier")
    thread.join(LONG_S)
    assert order == ["read", "barrier"]


def test_a_read_that_is_under_way_is_not_waited_for():
    pause = ReadPause(LONG_S, LONG_S)
    pause.cut_short()  # returns: nobody pauses
    short = ReadPause(0.01, 0.01)
    short.cut_short()
    assert short.take(1) is False, "it was not asked of this pause"


def test_a_function_that_takes_its_time_does_not_keep_the_barrier():
    pause = ReadPause(0.05, 0.05)
    hurried, may_end = threading.Event(), threading.Event()

    def reading() -> None:
        while not pause.take(1):
            pass
        hurried.set()
        may_end.wait(LONG_S)
        pause.over()

    thread = threading.Thread(target=reading)
    thread.start()
    while not hurried.is_set():
        began = time.monotonic()
        pause.cut_short()
    assert time.monotonic() - began < LONG_S / 2
    may_end.set()
    thread.join(LONG_S)
    assert not thread.is_alive()


@pytest.fixture
def waited_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the pauses are; a tenth of a second passes from one to the next."""
    waited: list[float] = []
    clock = itertools.count()
    monkeypatch.setattr(
        "connectors.continuous.read_pause.time.monotonic", lambda: next(clock) / 10.0
    )

    def wait_for(_: threading.Condition, _done: object, seconds: float) -> None:
        waited.append(round(seconds, 4))

    monkeypatch.setattr(threading.Condition, "wait_for", wait_for)
    return waited


def test_the_fewer_records_come_the_longer_is_the_pause(waited_s: list[float]):
    """500 records at the rate of the last read, between the two limits."""
    pause = ReadPause(0.005, 0.02)
    for rows in (1, 3000, 4000, 100_000):
        pause.take(rows)
    assert waited_s == [0.02, 0.0167, 0.0125, 0.005]


def test_behind_a_barrier_one_pause_is_short(waited_s: list[float]):
    """The next barrier waits for the first record behind it. Its transaction needs two round trips
    before it takes the record.
    """
    pause = ReadPause(0.005, 0.02)
    pause.take(1)
    pause.cut_short()
    pause.take(1)
    pause.take(1)
    assert waited_s == [0.02, 0.001, 0.02]
