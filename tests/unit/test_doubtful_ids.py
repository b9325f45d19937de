"""An id that met a doubt is retired, whatever else happened in the same call (rule 3)."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.kafka.sink.kafka_committer import KafkaCommitter
from connectors.wire.coordinator_wire import CoordinatorWire
from connectors.wire.wire_client import AnswerLostError
from tests.simulation.end_txn_table import State
from tests.simulation.fake_cluster import FakeCluster, Transaction
from tests.simulation.fake_wire import FakeWire
from tests.simulation.virtual_clock import VirtualClock
from tests.unit.samples import committable
from transactions.clock import Deadline
from transactions.committable import Outcome
from transactions.errors import AuthenticationError

TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
LOST, REFUSED = "app.log.1.p.0", "app.log.1.p.1"


def test_rule_3_a_doubt_is_noted_although_another_id_is_refused():
    """The refusal passes, and the run goes on with the id: a late EndTxn would split what its
    producer writes next.
    """
    clock = VirtualClock()
    cluster = FakeCluster(clock.now_ms)
    ones = [
        committable(transactional_id=name, subtask=subtask, token=f"5.{subtask}.t")
        for subtask, name in enumerate((LOST, REFUSED))
    ]
    for one in ones:
        cluster.transactions[one.transactional_id] = Transaction(
            one.transactional_id, one.producer_id, one.producer_epoch, 60_000, State.ONGOING, 1000
        )

    def exchange(request: Any) -> Any:
        if type(request).__name__ != "EndTxnRequest":
            return cluster.handle(request)
        if request.transactional_id == REFUSED:
            return cluster.handle(request, refuse_with=TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        cluster.handle(request)
        raise AnswerLostError("injected")

    sink = KafkaCommitter("out", {"bootstrap.servers": "fake:9092"})
    sink._wire = CoordinatorWire(sink.settings)
    sink._wire._wire = network = FakeWire(exchange, clock)
    with pytest.raises(AuthenticationError):
        sink.commit(ones, Deadline(10, clock))
    network._exchange = cluster.handle
    outcomes = sink.recover_and_commit(ones, Deadline(10, clock))
    assert outcomes == {"5.0.t": Outcome.ALREADY_COMMITTED, "5.1.t": Outcome.COMMITTED}
    assert sink.retired() >= {LOST}
