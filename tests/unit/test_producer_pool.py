"""F50 below the broker: producers that nobody uses cost neither threads nor memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.sink import idle_cache, producer_pool
from connectors.kafka.sink.idle_cache import IdleCache
from connectors.kafka.sink.producer_pool import ProducerPool, Slot, pool_for
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.native.native_producer import NativeTransactionalProducer
from tests.simulation.virtual_clock import VirtualClock
from tests.waiting import until
from transactions.clock import Deadline
from transactions.sink import Owner

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
OWNER = Owner(application_id="app", log_id="log", run_epoch=1)


@pytest.fixture(autouse=True)
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(producer_pool, "_pools", IdleCache())
    gc.collect()
    gc.disable()  # as good as a frozen heap: what only it could free would stay
    yield
    gc.enable()


def threads() -> set[str]:
    return {one.name for one in Path("/proc/self/task").iterdir()}


def made(name: str, kind: type[TransactionalProducer] = TransactionalProducer) -> Any:
    return kind(NOBODY, name, timeout_ms=10_000)


@pytest.mark.parametrize("kind", [TransactionalProducer, NativeTransactionalProducer])
def test_f50_a_dropped_producer_is_gone_at_once(kind):
    """Its threads too: the callbacks that it gave to librdkafka do not keep it alive."""
    made("warm", kind)
    before = threads()
    pool = ProducerPool(OWNER, NOBODY, timeout_ms=10_000)
    slot = Slot(made("one", kind))
    pool._slots.append(slot)
    gone = weakref.ref(slot.producer)
    its = threads() - before
    assert its
    pool.drop(slot)
    del slot
    assert gone() is None
    # Those of other tests come and go. The kernel lists a thread a little longer than its join.
    until(lambda: not (its & threads()))


def test_f50_the_pools_of_an_older_run_are_gone_at_once():
    older = pool_for(OWNER, "out", NOBODY, timeout_ms=10_000)
    older._slots.append(Slot(made("older")))
    gone = weakref.ref(older._slots[0].producer)
    del older
    newer = Owner(application_id="app", log_id="log", run_epoch=2)
    pool_for(newer, "out", NOBODY, timeout_ms=10_000)
    assert gone() is None


def test_f50_a_pool_that_no_task_asks_for_is_gone(monkeypatch: pytest.MonkeyPatch):
    """A stopped query leaves it in a worker that has other work: it grew by 10 MB a minute."""
    clock = VirtualClock()
    monkeypatch.setattr(idle_cache, "_LOOK_S", 0.01)
    monkeypatch.setattr(producer_pool, "_pools", IdleCache(clock))
    made("warm")
    before = threads()
    idle, of_a_task = Slot(made("idle")), Slot(made("of a task"))
    its = threads() - before
    gone, used = weakref.ref(idle.producer), weakref.ref(of_a_task.producer)
    for _ in range(2):  # the second time it is watched again
        pool = pool_for(OWNER, "out", NOBODY, timeout_ms=10_000)
        pool._slots += [idle, of_a_task]
        for _ in range(3):
            clock.sleep(59.0)
            assert pool_for(OWNER, "out", NOBODY, timeout_ms=10_000) is pool
        dropped = weakref.ref(pool)
        clock.sleep(60.0)
        del pool
        until(lambda: dropped() is None and producer_pool._pools.values() == [])  # noqa: B023
    del idle
    until(lambda: gone() is None)
    assert used() is not None, "it was ended under its task"
    del of_a_task
    until(lambda: not (its & threads()))


def test_f50_a_branch_without_records_does_not_collect_statistics(monkeypatch: pytest.MonkeyPatch):
    """Ten a second are queued for it; a task of any branch takes those of all."""
    taken: list[str] = []

    def take(self: TransactionalProducer, _text: str) -> None:
        taken.append(self.transactional_id)

    monkeypatch.setattr(TransactionalProducer, "_read_statistics", take)
    idle = pool_for(OWNER, "rare", NOBODY, timeout_ms=10_000)
    idle._slots.append(Slot(made("idle")))
    deadline = Deadline(20)
    while len(taken) < 3:
        assert not deadline.expired()
        deadline.pause(0.1)
        pool_for(OWNER, "busy", NOBODY, timeout_ms=10_000)
    assert set(taken) == {"idle"}
