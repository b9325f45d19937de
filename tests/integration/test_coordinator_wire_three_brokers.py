"""Coordinators on several brokers, and one of them killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.cluster.local_cluster import LocalCluster
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.integration.wire_helpers import (
    begin,
    committable,
    eventually,
    open_producer,
    open_without_records,
    soon,
    values,
)
from tests.tiers import long
from transactions.clock import Deadline
from transactions.committable import Outcome

NAMES = [f"app.log.1.a.{slot}" for slot in range(12)]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as three:
        three.create_topic("records", partitions=3)
        yield three


@long  # `test_flink_matrix_outage.py` kills a single broker in `make test`
def test_every_verb_outlives_a_killed_coordinator(cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap_servers
    producer = open_producer(bootstrap, NAMES[0])
    begin(producer, "records", ["a"])
    open_without_records(bootstrap, NAMES[1:], "records")
    with CoordinatorWire({"bootstrap.servers": bootstrap}, request_timeout_s=5.0) as wire:
        tokens = [committable(wire, name) for name in NAMES]
        assert [row.transactional_id for row in wire.list_open("app", None, soon())] == sorted(
            NAMES
        )
        cluster.kill_broker(0)
        patient = Deadline(60.0)
        found = wire.describe(NAMES, patient)
        assert {one.state for one in found.values()} == {"Ongoing"}
        outcomes = wire.commit(tokens[:6], patient)
        unknown = [
            token for token in tokens[:6] if not outcomes[token.transactional_id].is_committed
        ]
        assert {token.transactional_id for token in unknown} <= wire.doubtful
        assert set(wire.commit(unknown, patient).values()) <= {Outcome.COMMITTED}
        for token in tokens[6:]:
            wire.fence(token.transactional_id, 60_000, patient)
        eventually(lambda: wire.list_open("app", "log", patient), [])
        assert int(wire.broker_setting("transaction.max.timeout.ms", patient)) > 0
        eventually(lambda: values(bootstrap, "records"), ["a"])


@pytest.mark.long
def test_a_broker_that_stops_answering_leaves_doubt(cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap_servers
    producers = [open_producer(bootstrap, name) for name in NAMES[:3]]
    for producer in producers:
        begin(producer, "records", ["a"])
    with CoordinatorWire({"bootstrap.servers": bootstrap}, request_timeout_s=1.0) as wire:
        tokens = [committable(wire, name) for name in NAMES[:3]]
        for broker in range(3):
            cluster.pause_broker(broker)
        outcomes = wire.commit(tokens, Deadline(3.0))
        for broker in range(3):
            cluster.resume_broker(broker)
        assert set(outcomes.values()) == {Outcome.UNKNOWN}
        assert wire.doubtful == set(NAMES[:3])  # connections stood: the requests were sent
        patient = Deadline(60.0)
        found = wire.describe(NAMES[:3], patient)
        states = {"Ongoing", "PrepareCommit", "CompleteCommit"}
        assert {one.state for one in found.values()} <= states
        assert set(wire.commit(tokens, patient).values()) == {Outcome.COMMITTED}
        eventually(lambda: values(bootstrap, "records"), ["a"] * 3)
