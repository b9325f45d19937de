"""What the fake answers where no real broker can be made to: the rows between two states.

`integration/test_fake_conformance.py` holds the rest against a real broker. The codes stand here
in full, so that a change of the table is seen.
"""

from __future__ import annotations

import pytest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from connectors.wire.coordinator_wire import CoordinatorWire
from tests.simulation import end_txn_table as table
from tests.simulation.end_txn_table import Epoch, State
from tests.simulation.fake_cluster import Append, FakeCluster, LogEntry
from tests.simulation.fake_wire import FakeWire
from tests.simulation.log_reader import read_committed
from tests.simulation.virtual_clock import VirtualClock
from transactions.clock import Deadline

CONCURRENT, STATE, FENCED, NONE, WRONG_ID = 51, 48, 90, 0, 49


@pytest.fixture
def cluster() -> FakeCluster:
    """A transaction is open under the id "a", pid 1, epoch 0; markers are written by hand."""
    made = FakeCluster(VirtualClock().now_ms, slow_markers=lambda: True)
    assert init(made).error_code == NONE
    assert add(made) == NONE
    return made


def init(cluster):
    return cluster.handle(
        InitProducerIdRequest(
            transactional_id="a", transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
        )
    )


def add(cluster, epoch=0):
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="a",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[topic],
    )
    answer = cluster.handle(request).results_by_topic_v3_and_below[0]
    return answer.results_by_partition[0].partition_error_code


def end(cluster, *, commit, version=4, epoch=0):
    request = EndTxnRequest(
        transactional_id="a",
        producer_id=1,
        producer_epoch=epoch,
        committed=commit,
        max_version=version,
    )
    return cluster.handle(request).error_code


def write(cluster, *values, first=0, epoch=0):
    return cluster.handle(Append("a", 1, epoch, "t-0", first, values)).error_code


@pytest.mark.parametrize("committing", [True, False])
def test_between_the_end_and_its_markers(cluster, committing):
    assert end(cluster, commit=committing) == NONE
    assert end(cluster, commit=committing) == CONCURRENT
    assert end(cluster, commit=not committing) == STATE
    assert end(cluster, commit=committing, epoch=1) == FENCED
    assert init(cluster).error_code == add(cluster) == CONCURRENT
    assert cluster.open_ids() == ["a"]
    cluster.write_markers()
    assert end(cluster, commit=committing) == NONE
    assert cluster.open_ids() == []


@pytest.mark.parametrize("committing", [True, False])
def test_between_the_end_and_its_markers_at_version_5(cluster, committing):
    """The epoch is one larger from the first moment."""
    assert end(cluster, commit=committing, version=5) == NONE
    for commit in (True, False):
        expected = CONCURRENT if commit is committing else STATE
        assert end(cluster, commit=commit, version=5, epoch=0) == expected
        assert end(cluster, commit=commit, version=5, epoch=1) == FENCED


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("state", State)
def test_a_pending_transition(state, version):
    """Version 5 looks at it first, the others after producer id and epoch."""
    for commit in (True, False):
        for same, epoch in ((True, Epoch.EQUAL), (True, Epoch.SMALLER), (False, Epoch.EQUAL)):
            early = {(True, Epoch.SMALLER): FENCED, (False, Epoch.EQUAL): WRONG_ID}
            expected = CONCURRENT if version == 5 else early.get((same, epoch), CONCURRENT)
            row = table.end_txn(
                version,
                known=True,
                same_producer=same,
                pending=True,
                state=state,
                commit=commit,
                epoch=epoch,
            )
            assert row.code == expected


@pytest.mark.parametrize("code", table.NOT_NOW)
def test_not_now_is_asked_again(cluster, code):
    """Loading, not available, moved: every verb of the product tries until it is answered."""
    clock, refusals = VirtualClock(), []

    def exchange(request):
        if len(refusals) < 5:
            refusals.append(request)
            return cluster.handle(request, refuse_with=code)
        return cluster.handle(request)

    wire = CoordinatorWire({"bootstrap.servers": "fake:9092"})
    wire._wire = FakeWire(exchange, clock)
    assert wire.describe(["a"], Deadline(10, clock))["a"].state == "Ongoing"
    refusals.clear()
    assert [one.transactional_id for one in wire.list_open("a", None, Deadline(10, clock))] == []
    refusals.clear()
    wire.fence("b", 1000, Deadline(10, clock))
    assert len(refusals) == 5


def test_a_leader_takes_no_record_twice_and_none_of_an_old_epoch(cluster):
    assert write(cluster, "1", "2") == NONE
    assert write(cluster, "1", "2") == NONE
    assert write(cluster, "4", first=3) == 45
    assert end(cluster, commit=True) == NONE
    cluster.write_markers()
    assert write(cluster, "3", first=2) == STATE  # no transaction: it would never be ended
    assert init(cluster).producer_epoch == 1
    assert add(cluster, epoch=1) == NONE
    assert write(cluster, "5", epoch=1) == NONE
    assert write(cluster, "6", first=2) == 47
    log = cluster.partitions["t-0"].log
    assert [entry.value for entry in log if entry.kind == "data"] == ["1", "2", "5"]
    assert read_committed(log) == ["1", "2"]


def test_the_reader_stops_at_what_is_open_and_leaves_out_what_was_aborted():
    def data(producer, value):
        return LogEntry("data", producer, 0, value)

    log = [data(1, "a"), data(2, "b"), LogEntry("abort", 1, 0), data(3, "c"), data(2, "d")]
    assert read_committed(log) == []
    assert read_committed([*log, LogEntry("commit", 2, 0)]) == ["b"]
    done = [*log, LogEntry("commit", 2, 0), LogEntry("commit", 3, 0), data(1, "e")]
    assert read_committed(done) == ["b", "c", "d"]
    assert read_committed([*done, LogEntry("commit", 1, 0)]) == ["b", "c", "d", "e"]
