"""What a run that lasts for months keeps, and sends with every task: it does not grow (B10)."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Sequence
from typing import Any

import pytest

from connectors.kafka.sink import producer_pool
from connectors.kafka.sink.idle_cache import IdleCache
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.producer_pool import ProducerPool, Slot
from connectors.kafka.sink.retired_ids import MOST_IDLE_CHECKPOINTS, RetiredIds
from connectors.wire.coordinator_wire import MOST_KEPT, CoordinatorWire, _Ending
from connectors.wire.wire_client import MOST_COORDINATORS, TRANSACTION, WireClient
from tests.both_halves import KafkaBothHalves
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.sink import Attempt, DecidedToken, Owner

OWNER = Owner(application_id="app", log_id="log", run_epoch=1)
TASKS, CHECKPOINTS = 4, 1_000
BROKERS = {"bootstrap.servers": "127.0.0.1:1"}


def committables(checkpoint: int) -> list[Committable]:
    return [
        Committable(
            sink="out",
            transactional_id=f"app.log.1.p.{checkpoint * TASKS + subtask}",
            producer_id=1,
            producer_epoch=0,
            timeout_ms=60_000,
            checkpoint_id=checkpoint,
            subtask=subtask,
            attempt="1.1",
            token=f"{checkpoint}.{subtask}.x",
            record_count=1,
            fingerprint="",
        )
        for subtask in range(TASKS)
    ]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> CoordinatorWire:
    """A wire whose every EndTxn is answered late, after a retry: in doubt."""
    one = CoordinatorWire(BROKERS)
    doubt = _Ending(Outcome.COMMITTED, doubtful=True, answer="late")

    def run(
        _step: Any, mine: Sequence[Committable], endings: dict[str, _Ending], *_: Any, **__: Any
    ):
        endings.update({each.transactional_id: doubt for each in mine})

    monkeypatch.setattr(one._wire, "run", run)
    return one


@pytest.fixture
def sink(wire: CoordinatorWire) -> KafkaBothHalves:
    options = KafkaSink(bootstrap_servers="b:1", topic="out")
    made = KafkaBothHalves(options, timeout_ms=60_000, checkpoint_timeout_s=60.0)
    made._wire = wire
    return made


def test_b10_what_travels_with_every_task_is_bounded_by_age(sink):
    for checkpoint in range(CHECKPOINTS):
        mine = committables(checkpoint)
        sink.commit(mine, Deadline(1.0))
        retired = sink.retired()
        # As long as a worker could still use one, it is told.
        for back in range(min(checkpoint + 1, MOST_IDLE_CHECKPOINTS)):
            assert {one.transactional_id for one in committables(checkpoint - back)} <= retired
        assert len(retired) <= TASKS * (MOST_IDLE_CHECKPOINTS + 1)


def test_b10_the_wire_keeps_the_newest_answers(wire):
    for checkpoint in range(CHECKPOINTS):
        wire.commit(committables(checkpoint), Deadline(1.0))
        assert {one.transactional_id for one in committables(checkpoint)} <= wire.doubtful
    assert len(wire.doubtful) == len(wire._answers) == MOST_KEPT
    assert wire.answer_of(committables(CHECKPOINTS - 1)[0].transactional_id) == "late"


def test_b10_the_answers_of_one_call_are_all_kept(wire):
    many = [one for checkpoint in range(MOST_KEPT) for one in committables(checkpoint)]
    wire.commit(many, Deadline(1.0))
    assert wire.doubtful == {one.transactional_id for one in many}


def test_b10_coordinators_are_looked_up_again_rather_than_kept_for_ever(monkeypatch):
    client = WireClient(BROKERS, 1.0)
    asked: list[str] = []

    async def node(*_: Any) -> int:
        return 1

    async def send(_node: int, request: Any, _deadline: Deadline) -> Any:
        asked.extend(request.coordinator_keys)
        rows = [
            types.SimpleNamespace(key=key, error_code=0, node_id=1)
            for key in request.coordinator_keys
        ]
        return types.SimpleNamespace(coordinators=rows)

    monkeypatch.setattr(client, "any_broker", node)
    monkeypatch.setattr(client, "_ready", node)
    monkeypatch.setattr(client, "send", send)
    monkeypatch.setattr(client, "_version", lambda _: 4)
    for first in range(0, 3 * MOST_COORDINATORS, 100):
        keys = [str(number) for number in range(first, first + 100)]
        for _ in range(2):
            found = asyncio.run(client.coordinators(TRANSACTION, keys, Deadline(1.0)))
            assert list(found) == keys
        assert len(client._coordinators) <= MOST_COORDINATORS + 100
    assert len(asked) - len(set(asked)) <= 300  # of those that were just in use


class Producer:
    """What the pool asks of one."""

    spent = False

    def __init__(self, name: str) -> None:
        self.transactional_id = name
        self.resynced = 0

    def serve(self) -> None:
        pass

    def resync(self, _deadline: Deadline) -> None:
        self.resynced += 1


@pytest.mark.parametrize("idle", [1, MOST_IDLE_CHECKPOINTS, MOST_IDLE_CHECKPOINTS + 2])
def test_b10_no_worker_uses_an_id_that_the_driver_may_have_forgotten(monkeypatch, idle):
    """Retired at 5; the driver of checkpoint 5 + idle - 1 decides what travels with the next."""
    ids = RetiredIds()
    ids.reached([5])
    ids.add(["old"])
    ids.reached([5 + idle - 1])
    fresh = Slot(Producer("new"))
    monkeypatch.setattr(ProducerPool, "_make", lambda *_: fresh)
    monkeypatch.setattr(producer_pool, "_pools", IdleCache())
    pool = ProducerPool(OWNER, BROKERS, timeout_ms=10_000)
    pool._slots.append(Slot(Producer("old"), checkpoint_id=5, token="5.0.x", ended=False))
    attempt = Attempt(
        owner=OWNER,
        checkpoint_id=5 + idle,
        subtask=0,
        attempt_id="1.9",
        last_decided={"old": DecidedToken(checkpoint_id=5, token="5.0.x")},
        retired=ids.all(),
    )
    assert pool.take(attempt, "token", Deadline(1.0)) is fresh
    assert pool._slots == []


def test_a_producer_that_is_in_use_stays(monkeypatch):
    pool = ProducerPool(OWNER, BROKERS, timeout_ms=10_000)
    producer = Producer("mine")
    slot = Slot(producer, checkpoint_id=5, token="5.0.x", ended=False)
    pool._slots.append(slot)
    decided = {"mine": DecidedToken(checkpoint_id=5, token="5.0.x")}
    for checkpoint in (6, 6 + MOST_IDLE_CHECKPOINTS):
        attempt = Attempt(
            owner=OWNER,
            checkpoint_id=checkpoint,
            subtask=0,
            attempt_id="1.9",
            last_decided=decided,
        )
        slot.token, slot.ended = "5.0.x", False
        assert pool.take(attempt, "token", Deadline(1.0)) is slot
    assert producer.resynced == 2
