"""The look at the partitions while others write to them all the time, as in a running stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from connectors.kafka.sink.visibility import CommitVisibility
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.simulation.fake_cluster import FakeCluster
from tests.simulation.fake_producer import FakeProducer
from tests.simulation.fake_wire import FakeWire
from tests.simulation.log_reader import read_committed
from tests.simulation.virtual_clock import VirtualClock
from tests.unit.samples import committable
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import BrokerUnavailableError

SETTINGS = {"bootstrap.servers": "fake:9092"}
NOT_LEADER = 6
NO_RIGHT = 29
WRITTEN = ("out-0", "out-1")


class Rig:
    """Two producers, what they write to, and who looks at it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.clock.sleep(1000.0)
        self.skipped: set[str] = set()
        self.slow = False
        self.cluster = FakeCluster(
            self.clock.now_ms,
            slow_markers=lambda: self.slow,
            skips=lambda _, partition: partition in self.skipped,
        )
        self.asked: Counter[str] = Counter()
        self.after: Callable[[str], None] = lambda _: None
        self.spoilt = 0  # what leaders answer instead, and how often
        self.spoils = 0
        self.deposed = False  # the node that is asked leads no more, and lags; until metadata
        self.ours, self.other = self._producer("app.log.1.a.0"), self._producer("app.log.1.a.1")
        wires = CoordinatorWire(SETTINGS)
        wires._wire = FakeWire(self._exchange, self.clock)
        self.visibility = CommitVisibility(SETTINGS, wires)
        self.visibility._wire = FakeWire(self._exchange, self.clock)

    def _producer(self, name: str) -> FakeProducer:
        config = {"transactional.id": name, "transaction.timeout.ms": 60_000}
        made = FakeProducer(config, self.cluster.handle, self.clock.sleep)
        made.init_transactions(1.0)
        return made

    def _exchange(self, request: Any) -> Any:
        name = type(request).__name__
        self.asked[name] += 1
        answer = self.cluster.handle(request)
        if name == "DescribeProducersRequest" and self.spoils:
            self.spoils -= 1
            for topic in answer.topics:
                for row in topic.partitions:
                    row.error_code, row.active_producers = self.spoilt, []
        self.deposed = self.deposed and name != "MetadataRequest"
        if self.deposed and name in {"ListOffsetsRequest", "DescribeProducersRequest"}:
            for row in (row for topic in answer.topics for row in topic.partitions):
                if name == "ListOffsetsRequest":
                    row.error_code = NOT_LEADER
                else:
                    row.active_producers = []
        self.after(name)
        return answer

    def write(self, producer: FakeProducer, number: int) -> None:
        """Write to both partitions."""
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("out", f"{number}:{partition}".encode())
        producer.flush()

    def commit(self) -> Committable:
        """Commit ours, and return what was committed."""
        one = self.cluster.transactions["app.log.1.a.0"]
        self.ours.commit_transaction(1.0)
        return committable(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            start_time_ms=one.start_ms,
            partitions=WRITTEN,
        )

    def commit_whose_markers_come_after(self, answers: int) -> Committable:
        """Commit ours; the markers come with so many answers about producers in the next look."""
        self.slow = True

        def later(name: str) -> None:
            if name == "DescribeProducersRequest" and self.asked[name] >= answers:
                self.cluster.write_markers()

        self.after = later
        return self.commit()

    def look(self, *committed: Committable, seconds: float = 5.0) -> list[str]:
        self.asked.clear()
        return [str(one) for one in self.visibility.hidden(committed, Deadline(seconds))]


@pytest.fixture
def rig() -> Rig:
    """The other producer's transaction is open all the time, and older than ours."""
    made = Rig()
    made.write(made.other, 0)
    made.write(made.ours, 1)
    return made


def test_what_has_its_markers_costs_two_round_trips_to_the_leaders(rig):
    committed = rig.commit()
    assert rig.look(committed) == []
    assert rig.look(committed) == []
    assert rig.asked == {"ListOffsetsRequest": 1, "DescribeProducersRequest": 1}


@pytest.mark.parametrize("skipped", [{"out-0"}, {"out-1"}, set(WRITTEN)])
def test_a_marker_that_is_left_out_is_found(rig, skipped):
    rig.skipped = skipped
    committed = rig.commit()
    found = rig.look(committed)
    assert [one.partition(" ")[0] for one in found] == sorted(skipped)
    assert all("from offset 1, producer 1/0" in one for one in found)


def test_a_marker_that_is_left_out_is_found_after_many_that_were_not(rig):
    """The leaders are known by then, and so is that others write."""
    for number in range(3):
        assert rig.look(rig.commit()) == []
        rig.write(rig.ours, number)
    rig.skipped = {"out-1"}
    assert len(rig.look(rig.commit())) == 1


@pytest.mark.parametrize("looks", [1, 2, 8])
def test_markers_that_are_on_their_way_are_waited_for(rig, looks):
    committed = rig.commit_whose_markers_come_after(looks)
    assert rig.look(committed) == []
    assert rig.asked["DescribeProducersRequest"] == looks + 1


@pytest.mark.parametrize(("before", "asked"), [(2, 0), (3, 1)])
def test_the_fourth_look_asks_who_leads(rig, before, asked):
    """Until then the leaders of the last look are asked; one may know nothing of its end."""
    assert rig.look(rig.commit()) == []
    rig.write(rig.ours, 2)
    committed = rig.commit_whose_markers_come_after(before)
    assert rig.look(committed) == []
    assert rig.asked["MetadataRequest"] == asked


def test_a_leader_that_has_moved_is_looked_for(rig):
    committed = rig.commit()
    assert rig.look(committed) == []
    rig.spoilt, rig.spoils = NOT_LEADER, 1
    assert rig.look(committed) == []
    assert rig.asked["MetadataRequest"] == 1


def test_a_replica_that_leads_no_more_and_lags_is_not_believed(rig):
    """Kafka lets every replica answer DescribeProducers."""
    assert rig.look(rig.commit()) == []
    rig.write(rig.ours, 2)
    rig.skipped = {"out-1"}
    committed = rig.commit()
    rig.deposed = True
    assert len(rig.look(committed)) == 1


def test_without_a_leader_it_is_not_taken_for_visible(rig):
    committed = rig.commit()
    rig.spoilt, rig.spoils = NOT_LEADER, 1000
    with pytest.raises(BrokerUnavailableError, match="out-0"):
        rig.look(committed, seconds=0.3)


def test_where_we_may_not_read_nothing_is_found_and_nothing_waits(rig):
    rig.skipped = {"out-0"}
    committed = rig.commit()
    rig.spoilt, rig.spoils = NO_RIGHT, 1000
    assert rig.look(committed) == []
    assert rig.asked["DescribeProducersRequest"] == 1


def test_the_operators_marker_shows_it_to_readers(rig):
    rig.skipped = set(WRITTEN)
    committed = rig.commit()
    rig.skipped = set()
    rig.other.commit_transaction(1.0)
    for one in rig.visibility.hidden([committed], Deadline(5.0)):
        rig.visibility.write_commit(one, Deadline(5.0))
    assert rig.look(committed) == []
    seen = [v for name in WRITTEN for v in read_committed(rig.cluster.partitions[name].log)]
    assert "1:0" in seen
    assert "1:1" in seen
