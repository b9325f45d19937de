"""The pause between two reads: what comes in it is one batch, and belongs to the barrier's side."""

from __future__ import annotations

import threading
import time

from connectors.continuous.read_pause import ReadPause
from tests.waiting import until

LONG_S = 30.0


def test_a_pause_ends_by_itself():
    pause = ReadPause(0.01)
    assert pause.take() is False


def test_a_barrier_cuts_it_short_and_waits_for_what_has_come():
    pause = ReadPause(LONG_S)
    order: list[str] = []

    def reading() -> None:
        assert pause.take() is True
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
    pause = ReadPause(LONG_S)
    pause.cut_short()  # returns: nobody pauses
    short = ReadPause(0.01)
    short.cut_short()
    assert short.take() is False, "it was not asked of this pause"


def test_a_function_that_takes_its_time_does_not_keep_the_barrier():
    pause = ReadPause(0.05)
    hurried, may_end = threading.Event(), threading.Event()

    def reading() -> None:
        while not pause.take():
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
