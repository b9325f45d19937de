"""Kafka's own scenarios with three brokers: one replica lost, too few in sync, bounced for ever."""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from connectors.cluster.local_cluster import LocalCluster
from connectors.kafka.sink.kafka_writer import KafkaTransaction
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.kafka_source import KafkaSource
from connectors.wire.wire_client import TRANSACTION, WireClient
from tests.auditor.reader import Follower, read_committed
from tests.both_halves import KafkaBothHalves
from tests.integration.kafka_matrix import (
    Copier,
    attempt_of,
    by_partition,
    commit,
    decide,
    make_sink,
    new_owner,
    prepare,
    produce,
    rows,
)
from tests.integration.wire_helpers import eventually, soon
from tests.shared_broker import assert_no_open_transaction as assert_nothing_open
from tests.tiers import long
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import BrokerUnavailableError, DeliveryError, PhaseOneError

pytestmark = long

PATIENCE_S = 60.0
_STATE = "__transaction_state"
_NAMES = itertools.count()


class Three:
    """The cluster, and what the tests ask of its administrator."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap_servers

    def topic(self, partitions: int = 1) -> str:
        name = f"t{next(_NAMES)}"
        self.cluster.create_topic(name, partitions)
        return name

    def topic_on(self, broker: int) -> str:
        """Make a topic with one partition, whose only replica is on a broker."""
        name = f"single{next(_NAMES)}"
        topic = NewTopic(name, num_partitions=1, replica_assignment=[[broker + 1]])
        admin = self.admin()
        admin.create_topics([topic])[name].result(20)
        eventually(lambda: self.leaders(name), [broker])
        return name

    def admin(self) -> AdminClient:
        """Make a new one: an old one waits for brokers that are gone."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def partitions(self, topic: str) -> dict[int, Any]:
        with contextlib.suppress(KafkaException):
            return dict(self.admin().list_topics(topic, timeout=5).topics[topic].partitions)
        return {}

    def leaders(self, topic: str) -> list[int]:
        return [one.leader - 1 for _, one in sorted(self.partitions(topic).items())]

    def in_sync(self, topic: str) -> int:
        return min((len(one.isrs) for one in self.partitions(topic).values()), default=0)

    def settled(self) -> None:
        """Wait until every replica of the coordinators' topics is in sync again."""
        for topic in (_STATE, "__consumer_offsets"):
            eventually(lambda topic=topic: self.in_sync(topic), 3)

    def coordinator(self, name: str) -> int:
        """Return the broker that coordinates an id."""
        wire = WireClient({"bootstrap.servers": self.bootstrap}, 20.0)
        try:
            found = wire.run(wire.coordinators, TRANSACTION, [name], soon(), deadline=soon())
        finally:
            wire.close()
        return int(found[name]) - 1

    def set_min_isr(self, topic: str, replicas: int) -> None:
        entry = ConfigEntry(
            "min.insync.replicas", str(replicas), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = self.admin()
        admin.incremental_alter_configs([resource])[resource].result(20)

    def values(self, topic: str) -> list[str]:
        found = read_committed(self.bootstrap, topic)
        return sorted((record.value or b"").decode() for record in found)


@pytest.fixture(scope="module")
def three() -> Iterator[Three]:
    with LocalCluster(brokers=3) as cluster:
        three = Three(cluster)
        sink = make_sink(three.bootstrap, three.topic())
        commit(sink, prepare(sink, attempt_of(new_owner("warm"), 0), rows("x")))
        sink.close()
        yield three


@pytest.fixture
def application(three: Three) -> Iterator[str]:
    name = f"app-{uuid.uuid4().hex[:10]}"
    yield name
    assert_nothing_open(three.bootstrap, name)


# -- K20 ------------------------------------------------------------------------------------------


def test_k20_a_record_that_timed_out_is_never_seen_after_the_leader_is_back(three, application):
    """The only replica dies; the attempt fails in bounded time; the next one takes its place."""
    safe = three.topic()
    run = new_owner(application)
    sink = make_sink(three.bootstrap, None, checkpoint_timeout_s=6.0)
    transaction = sink.begin_transaction(attempt_of(run, 0))
    sink.invoke(transaction, rows("old", topic=[safe]))
    assert transaction.slot is not None
    producer = transaction.slot.producer
    producer.flush(soon())
    victim = (three.coordinator(producer.transactional_id) + 1) % 3
    single = three.topic_on(victim)
    three.cluster.kill_broker(victim)
    try:
        waiting = Deadline(PATIENCE_S)
        with pytest.raises(DeliveryError):
            sink.invoke(transaction, rows("old", topic=[single]))
            sink.pre_commit(transaction)
        sink.abort(transaction)
        assert waiting.remaining() > PATIENCE_S - 20
        three.cluster.start_broker(victim)
        three.settled()
        eventually(lambda: three.leaders(single), [victim])
        sink.recover_and_abort(sink.lingering(run, soon()), Deadline(PATIENCE_S))
        again = make_sink(three.bootstrap, None)
        attempt = attempt_of(run, 1, retired=sink.retired())
        committable = prepare(again, attempt, rows("new", "new", topic=[safe, single]))
        assert committable.transactional_id != producer.transactional_id
        commit(again, committable)
        again.close()
        for topic in (safe, single):
            assert three.values(topic) == ["new"]
    finally:
        three.cluster.start_broker(victim)
        sink.close()


# -- K21 ------------------------------------------------------------------------------------------


def test_k21_the_transaction_log_has_too_few_replicas_in_sync(three, application):
    """Every step is bounded and leaves a doubt, none a wrong answer; then the doubt is settled.

    The epoch grows by the one fence that came through, not by those that failed.
    """
    out = three.topic()
    run, next_run = new_owner(application), new_owner(application)
    task, sink = make_sink(three.bootstrap, out), make_sink(three.bootstrap, out)
    late = make_sink(three.bootstrap, out, checkpoint_timeout_s=3.0)

    def epoch_of(one: Committable) -> int:
        return sink.wire.describe([one.transactional_id], soon())[
            one.transactional_id
        ].producer_epoch

    victim = 0
    try:
        decided, undecided = decide(
            task, *(prepare(task, attempt_of(run, 0, n), rows(f"{n}")) for n in range(2))
        )
        victim = next(broker for broker in range(3) if broker not in three.leaders(out))
        three.set_min_isr(_STATE, 3)
        three.cluster.kill_broker(victim)
        eventually(lambda: three.in_sync(_STATE), 2)
        outcomes = sink.commit([decided], Deadline(3.0))
        assert outcomes == {decided.token: Outcome.UNKNOWN}
        assert "COORDINATOR_NOT_AVAILABLE" in sink.wire.answer_of(decided.transactional_id)
        assert sink.retired() == {decided.transactional_id}
        for _ in range(2):
            with pytest.raises(BrokerUnavailableError):
                sink.wire.fence(undecided.transactional_id, 60_000, Deadline(2.0))
        with pytest.raises(PhaseOneError):
            prepare(late, attempt_of(next_run, 0), rows("nobody"))
        unsettled = sink.recover_and_commit([decided], Deadline(2.0))
        assert unsettled == {decided.token: Outcome.UNKNOWN}
        three.cluster.start_broker(victim)
        three.settled()
        three.set_min_isr(_STATE, 2)
        assert epoch_of(undecided) == undecided.producer_epoch
        settled = sink.recover_and_commit([decided], Deadline(PATIENCE_S))
        assert settled[decided.token].is_committed
        assert undecided.transactional_id in sink.lingering(next_run, soon())
        sink.recover_and_abort(sink.lingering(next_run, soon()), Deadline(PATIENCE_S))
        assert epoch_of(undecided) == undecided.producer_epoch + 2  # of one fence, as ever
        assert sink.commit([undecided], soon()) == {undecided.token: Outcome.UNKNOWN}
        assert three.values(out) == ["0"]
    finally:
        three.cluster.start_broker(victim)
        three.set_min_isr(_STATE, 2)
        for one in (task, sink, late):
            one.close()


# -- K23 ------------------------------------------------------------------------------------------


def test_k23_the_source_plans_on_without_the_broker_that_it_takes_for_the_controller(three):
    """An admin client of librdkafka waits for that one, and for old leaders, until it times out.

    Each broker names another as the controller, so each of the three is away once.
    """
    name = three.topic(partitions=3)
    reads = KafkaSource(bootstrap_servers=three.bootstrap, subscribe=name, poll_timeout_ms=15_000)
    planner = SourcePlanner(reads)
    ends = {f"{name}-{number}": 0 for number in range(3)}
    assert planner.latest_offsets() == ends
    for victim in range(3):
        three.cluster.stop_broker(victim)
        try:
            assert SourcePlanner(reads).latest_offsets() == ends
            planner._partitions_until = None  # it trusts its list of partitions for a second
            assert planner.latest_offsets() == ends
        finally:
            three.cluster.start_broker(victim)
            three.settled()
        assert planner.latest_offsets() == ends


@pytest.mark.long
def test_k23_10000_records_while_brokers_are_bounced_and_every_third_try_fails(three, application):
    source, target = three.topic(partitions=3), three.topic(partitions=3)
    numbers = produce(three.bootstrap, source, 10_000, partitions=3)
    expected = {part: numbers[part::3] for part in range(3)}
    aborted, bounced = [], []

    def bounce() -> None:
        for broker in range(3):
            three.cluster.stop_broker(broker)
            three.cluster.start_broker(broker)
            three.settled()
            bounced.append(broker)

    def interfere(
        number: int, sink: KafkaBothHalves, transactions: Sequence[KafkaTransaction]
    ) -> None:
        if number % 3 == 2:
            aborted.append(number)
            for one in transactions:
                sink.abort(one)
            raise PhaseOneError("every third try")

    copier = Copier(
        three.bootstrap, application, source, target, per_batch=500, interfere=interfere
    )
    copier.timeout_s = PATIENCE_S
    bouncer = threading.Thread(target=bounce, daemon=True)
    with Follower(three.bootstrap, target) as follower:
        bouncer.start()
        try:
            copier.run(seconds=180)
        finally:
            bouncer.join(PATIENCE_S)
        assert by_partition(follower.drain()) == expected
    assert by_partition(read_committed(three.bootstrap, target)) == expected
    assert bounced == [0, 1, 2]
    assert len(aborted) >= 9
