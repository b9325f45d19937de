"""New partitions are asked for beside the checkpoints, and what a broker's silence means there."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from connectors.continuous.partition_watch import PartitionWatch
from tests.waiting import until
from transactions.errors import BrokerUnavailableError, DataLossError
from transactions.events import Event, subscribe

SOON_S = 10.0


class Source:
    """Answers what a test says; counts the questions."""

    def __init__(self) -> None:
        self.there: list[str] = ["in-0"]
        self.error: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Semaphore(0)
        #: A question waits for its answer, and each one before it was answered.
        self.held = threading.Event()

    def __call__(self) -> Sequence[str]:
        self.asked.release()
        if not self.may_answer.wait(0.001):
            self.held.set()
            assert self.may_answer.wait(SOON_S)
        if self.error is not None:
            raise self.error
        return self.there

    def await_questions(self, count: int) -> None:
        for _ in range(count):
            assert self.asked.acquire(timeout=SOON_S)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def watch_on(source):
    made: list[PartitionWatch] = []

    def make(patience_s: float) -> PartitionWatch:
        watch = PartitionWatch(source, application_id="app", every_s=0.001, patience_s=patience_s)
        made.append(watch)
        watch.start()
        return watch

    yield make
    for one in made:
        one.close()


def eventually(watch: PartitionWatch) -> Sequence[str]:
    return until(watch.take, said=lambda: "no answer came")


def test_what_is_there_is_taken_once_and_a_slow_broker_delays_nobody(source, watch_on):
    watch = watch_on(SOON_S)
    assert eventually(watch) == ["in-0"]
    source.may_answer.clear()
    assert source.held.wait(SOON_S)
    watch.take()  # an answer from before
    began = time.monotonic()
    assert [watch.take() for _ in range(1000)] == [()] * 1000
    assert time.monotonic() - began < SOON_S / 2
    source.there = ["in-0", "in-1"]
    source.may_answer.set()
    assert eventually(watch) in (["in-0"], ["in-0", "in-1"])


def test_a_broker_that_is_away_ends_nothing_and_is_told_once(source, watch_on):
    heard: list[Event] = []
    unsubscribe = subscribe(heard.append)
    source.error = BrokerUnavailableError("no broker")
    watch = watch_on(SOON_S)
    source.await_questions(3)
    assert watch.take() == ()
    told = [one for one in heard if one.kind == "retried"]
    assert [one.fields["step"] for one in told] == ["partition discovery"]
    assert "no broker" in str(told[0].fields["cause"])
    source.error = None
    assert eventually(watch) == ["in-0"]
    source.error = BrokerUnavailableError("no broker again")
    while source.asked.acquire(blocking=False):
        pass
    source.await_questions(3)
    unsubscribe()
    assert len([one for one in heard if one.kind == "retried"]) == 2


def test_a_broker_that_stays_away_ends_the_run(source, watch_on):
    source.error = BrokerUnavailableError("no broker")
    watch = watch_on(0.0)
    source.await_questions(2)
    with pytest.raises(BrokerUnavailableError, match="no broker"):
        watch.take()


def test_a_bug_ends_the_run_at_once(source, watch_on):
    source.error = KeyError("a bug")
    watch = watch_on(SOON_S)
    source.await_questions(2)
    with pytest.raises(KeyError):
        watch.take()


def test_a_topic_made_anew_ends_the_run_at_once_behind_other_errors(source, watch_on):
    """A task reads on in the new topic, at the old offset, for as long as this waits."""
    source.error = BrokerUnavailableError("no broker")
    watch = watch_on(SOON_S)
    source.await_questions(2)
    assert watch.take() == ()
    source.error = DataLossError("the topic was made anew")
    while source.asked.acquire(blocking=False):
        pass
    source.await_questions(3)  # the first can have been asked before
    with pytest.raises(DataLossError):
        watch.take()
