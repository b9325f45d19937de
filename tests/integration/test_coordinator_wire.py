"""Ending, describing and fencing transactions on a real broker, with librdkafka as the writer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, TopicPartition

from connectors.wire import wire_requests
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.integration.wire_helpers import (
    begin,
    committable,
    eventually,
    open_producer,
    open_without_records,
    read,
    send_offset,
    settled,
    soon,
    values,
    write_and_die,
)
from transactions.clock import Deadline
from transactions.committable import Outcome
from transactions.errors import BrokerUnavailableError, ConfigurationError, OutcomeUnknownError


@pytest.fixture
def wire(bootstrap: str) -> Iterator[CoordinatorWire]:
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as connection:
        yield connection


@pytest.fixture
def name(application_id: str) -> str:
    return f"{application_id}.log.1.a.0"


# -- ending a transaction of another process ------------------------------------------------


def test_f20_commit_after_the_writer_was_killed(bootstrap, topic, wire, name):
    target = topic()
    write_and_die(bootstrap, name, target, ["a", "b"])
    assert values(bootstrap, target) == []
    assert wire.commit([committable(wire, name)], soon()) == {name: Outcome.COMMITTED}
    eventually(lambda: values(bootstrap, target), ["a", "b"])
    assert wire.doubtful == set()


def test_f21_an_empty_transaction_is_never_reported_committed(bootstrap, wire, name):
    producer = open_producer(bootstrap, name)
    producer.begin_transaction()  # the broker hears nothing of it
    assert wire.commit([committable(wire, name)], soon()) == {name: Outcome.UNKNOWN}
    assert "INVALID_TXN_STATE" in wire.answer_of(name)
    assert wire.doubtful == {name}


def test_f23_commit_twice(bootstrap, topic, wire, name):
    target = topic()
    write_and_die(bootstrap, name, target, ["a"])
    token = committable(wire, name)
    for _ in range(2):
        assert wire.commit([token], soon())[name].is_committed
    eventually(lambda: values(bootstrap, target), ["a"])


def test_f23_commit_after_fence_is_never_committed(bootstrap, topic, wire, name):
    target = topic()
    write_and_die(bootstrap, name, target, ["a"])
    token = committable(wire, name)
    wire.fence(name, 60_000, soon())
    assert wire.commit([token], soon()) == {name: Outcome.UNKNOWN}
    assert "PRODUCER_FENCED" in wire.answer_of(name)
    assert name in wire.doubtful
    settled(wire, name)
    assert values(bootstrap, target) == []


def test_f23_fence_after_commit_leaves_the_records_visible(bootstrap, topic, wire, name):
    target = topic()
    write_and_die(bootstrap, name, target, ["a"])
    wire.commit([committable(wire, name)], soon())
    wire.fence(name, 60_000, soon())
    settled(wire, name)
    assert values(bootstrap, target) == ["a"]


def test_f23_fence_twice(bootstrap, topic, wire, name):
    target = topic()
    write_and_die(bootstrap, name, target, ["a"])
    for _ in range(2):
        wire.fence(name, 60_000, soon())
    settled(wire, name)
    assert values(bootstrap, target) == []


def test_commit_after_the_writer_aborted_is_never_committed(bootstrap, topic, wire, name):
    target = topic()
    producer = open_producer(bootstrap, name)
    begin(producer, target, ["a"])
    token = committable(wire, name)
    producer.abort_transaction(20)
    assert wire.commit([token], soon()) == {name: Outcome.UNKNOWN}
    settled(wire, name)
    assert values(bootstrap, target) == []


def test_the_live_producer_goes_on_after_our_commit(bootstrap, topic, wire, name):
    target = topic()
    producer = open_producer(bootstrap, name)
    for value in ("a", "b"):
        begin(producer, target, [value])
        assert wire.commit([committable(wire, name)], soon()) == {name: Outcome.COMMITTED}
        producer.commit_transaction(20)  # resync; version 5 would have fenced it for good
    eventually(lambda: values(bootstrap, target), ["a", "b"])


def test_commit_of_an_unknown_id_is_unknown(bootstrap, topic, wire, name):
    producer = open_producer(bootstrap, name)
    begin(producer, topic(), ["a"])
    stranger = f"{name}9"
    token = committable(wire, name)
    lost = type(token).from_dict(token.to_dict() | {"transactional_id": stranger})
    outcomes = wire.commit([token, lost], soon())
    assert outcomes == {name: Outcome.COMMITTED, stranger: Outcome.UNKNOWN}
    assert "INVALID_PRODUCER_ID_MAPPING" in wire.answer_of(stranger)


def test_200_transactions_at_once(bootstrap, topic, application_id, wire):
    target = topic(partitions=4)
    names = [f"{application_id}.log.1.a.{slot}" for slot in range(200)]
    producers = [open_producer(bootstrap, one) for one in names[:10]]
    for slot, producer in enumerate(producers):
        begin(producer, target, [f"{slot}"])
    open_without_records(bootstrap, names[10:], target)
    assert {one.state for one in wire.describe(names, soon()).values()} == {"Ongoing"}
    tokens = [committable(wire, one) for one in names]
    assert wire.commit(tokens, soon()) == dict.fromkeys(names, Outcome.COMMITTED)
    assert wire.doubtful == set()
    settled(wire, *names)
    assert {one.state for one in wire.describe(names, soon()).values()} == {"CompleteCommit"}
    assert values(bootstrap, target) == [str(slot) for slot in range(10)]


# -- lingering transactions and readers -------------------------------------------------------


def test_fence_unblocks_the_last_stable_offset(bootstrap, topic, wire, name, application_id):
    target = topic()
    write_and_die(bootstrap, name, target, ["lost"])
    other = open_producer(bootstrap, f"{application_id}.log.1.b.0")
    begin(other, target, ["kept"])
    other.commit_transaction(20)
    assert values(bootstrap, target) == []  # behind the open transaction
    assert values(bootstrap, target, isolation="read_uncommitted") == ["kept", "lost"]
    wire.fence(name, 60_000, soon())
    eventually(lambda: values(bootstrap, target), ["kept"])


def test_f12_two_lingering_transactions_of_a_dead_writer(bootstrap, topic, wire, application_id):
    target = topic()
    dead = [f"{application_id}.log.1.dead.{slot}" for slot in range(2)]
    for one in dead:
        write_and_die(bootstrap, one, target, ["lost"])
    for row in wire.list_open(application_id, "log", soon()):
        wire.fence(row.transactional_id, 60_000, soon())
    assert wire.list_open(application_id, "log", soon()) == []
    recovered = open_producer(bootstrap, f"{application_id}.log.2.new.0")
    begin(recovered, target, ["1"])
    recovered.commit_transaction(20)
    eventually(lambda: values(bootstrap, target), ["1"])


def test_fence_ends_the_live_producer(bootstrap, topic, wire, name):
    target = topic()
    zombie = open_producer(bootstrap, name)
    begin(zombie, target, ["a"])
    wire.fence(name, 60_000, soon())
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(20)
    assert caught.value.args[0].fatal()
    assert values(bootstrap, target) == []


def test_fence_refuses_a_timeout_above_the_brokers(wire, name):
    with pytest.raises(ConfigurationError, match=r"transaction\.max\.timeout\.ms"):
        wire.fence(name, 2_000_000_000, soon())


# -- listing and describing -------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_list_open_never_matches_another_application(
    bootstrap, topic, wire, application_id, version, monkeypatch
):
    build = wire_requests.list_transactions
    monkeypatch.setattr(
        wire_requests,
        "list_transactions",
        lambda prefix, **wanted: build(prefix, max_version=version, **wanted),
    )
    target = topic()
    app = f"{application_id}-x"
    ours = [f"{app}.log.1.a.0", f"{app}.log-2.1.a.0", f"{app}.l0g.1.a.0"]
    strangers = [f"{app}-2.log.1.a.0", f"{app}2.log.1.a.0", f"p-{app}.log.1.a.0", f"{app}xlog.1"]
    producers = []
    for one in ours + strangers:
        producer = open_producer(bootstrap, one)
        begin(producer, target, ["a"])
        producers.append(producer)
    found = wire.list_open(app, None, soon())
    assert [row.transactional_id for row in found] == sorted(ours)
    assert {row.state for row in found} == {"Ongoing"}
    assert [row.transactional_id for row in wire.list_open(app, "log", soon())] == ours[:1]
    assert wire.list_open(app, "l.g", soon()) == []
    for producer in producers:
        producer.abort_transaction(20)
    eventually(lambda: wire.list_open(app, None, soon()), [])


def test_describe_of_an_unknown_id_hides_no_other(bootstrap, topic, wire, name):
    target = topic(partitions=2)
    producer = open_producer(bootstrap, name, **{"transaction.timeout.ms": 45_000})
    begin(producer, target, ["a"], partition=1)
    found = wire.describe([f"{name}7", name, f"{name}8"], soon())
    assert list(found) == [f"{name}7", name, f"{name}8"]
    assert {found[f"{name}7"].error, found[f"{name}8"].error} == {"TRANSACTIONAL_ID_NOT_FOUND"}
    one = found[name]
    assert (one.state, one.error, one.timeout_ms) == ("Ongoing", "", 45_000)
    assert one.partitions == {f"{target}-1"}
    assert one.producer_id >= 0
    assert one.start_time_ms > 0
    producer.abort_transaction(20)


# -- what readers see (K9, K10, K11, K15) -------------------------------------------------------


def test_k9_no_reader_of_committed_records_sees_an_intent_to_abort(bootstrap, topic, wire, name):
    target = topic()
    for slot, intent in enumerate(["committed", "aborted", "committed", "aborted"]):
        one = f"{name}{slot}"
        producer = open_producer(bootstrap, one)
        begin(producer, target, [f"{slot}"], headers={"transactionStatus": intent})
        if intent == "committed":
            wire.commit([committable(wire, one)], soon())
        else:
            wire.fence(one, 60_000, soon())
    eventually(lambda: values(bootstrap, target), ["0", "2"])
    assert {headers["transactionStatus"] for _, headers in read(bootstrap, target)} == {
        b"committed"
    }


def test_k10_abort_then_commit_to_two_topics(bootstrap, topic, wire, name):
    one, two = topic(), topic()
    for slot, value in enumerate(["aborted", "committed"]):
        producer = open_producer(bootstrap, f"{name}{slot}")
        producer.begin_transaction()
        producer.produce(one, value.encode())
        producer.produce(two, value.encode())
        assert producer.flush(20) == 0
    wire.fence(f"{name}0", 60_000, soon())
    wire.commit([committable(wire, f"{name}1")], soon())
    eventually(lambda: values(bootstrap, one, two), ["committed"] * 2)
    assert len(values(bootstrap, one, two, isolation="read_uncommitted")) == 4


def test_k11_readers_stop_at_the_first_open_transaction(bootstrap, topic, wire, name):
    target = topic()
    first = open_producer(bootstrap, f"{name}1")
    begin(first, target, ["1a"])
    second = open_producer(bootstrap, f"{name}2")
    begin(second, target, ["2"])
    first.produce(target, b"1b")
    assert first.flush(20) == 0
    wire.commit([committable(wire, f"{name}2")], soon())
    settled(wire, f"{name}2")
    assert values(bootstrap, target) == []
    wire.commit([committable(wire, f"{name}1")], soon())
    eventually(lambda: values(bootstrap, target), ["1a", "1b", "2"])


def test_k15_metadata_of_offsets_is_visible_after_the_commit_only(
    bootstrap, topic, wire, name, application_id
):
    target = topic(partitions=2)
    keys = [f"{target}-0", f"{target}-1"]
    assert wire.read_markers(application_id, keys, soon()) == {}
    write_and_die(bootstrap, name, target, ["a"], application_id)
    with pytest.raises(OutcomeUnknownError, match="UNSTABLE_OFFSET_COMMIT"):
        wire.read_markers(application_id, keys, Deadline(3.0))
    wire.commit([committable(wire, name)], soon())
    assert wire.read_markers(application_id, keys, soon()) == {keys[0]: (42, "token-42")}


def test_an_aborted_marker_leaves_the_old_value(bootstrap, topic, wire, name, application_id):
    target = topic()
    for slot, token in enumerate(["old", "new"]):
        producer = open_producer(bootstrap, f"{name}{slot}")
        begin(producer, target, ["a"])
        offset = TopicPartition(target, 0, slot, token)
        send_offset(producer, bootstrap, application_id, offset)
        if token == "old":
            wire.commit([committable(wire, f"{name}{slot}")], soon())
    wire.fence(f"{name}1", 60_000, soon())
    assert wire.read_markers(application_id, [f"{target}-0"], soon()) == {f"{target}-0": (0, "old")}


# -- settings and errors ------------------------------------------------------------------------


def test_broker_setting(wire):
    assert int(wire.broker_setting("transaction.max.timeout.ms", soon())) > 0
    with pytest.raises(ConfigurationError, match=r"no\.such\.setting"):
        wire.broker_setting("no.such.setting", soon())


def test_an_unreachable_broker_is_said_within_the_deadline():
    with CoordinatorWire({"bootstrap.servers": "127.0.0.1:1"}) as wire:
        deadline = Deadline(1.0)
        with pytest.raises(BrokerUnavailableError) as caught:
            wire.describe(["a"], deadline)
        assert caught.value.where == "127.0.0.1:1"
        assert caught.value.option.startswith("kafka.bootstrap.servers=127.0.0.1:1")


def test_commit_without_any_broker_is_unknown_and_not_doubtful(bootstrap, topic, wire, name):
    producer = open_producer(bootstrap, name)
    begin(producer, topic(), ["a"])
    token = committable(wire, name)
    with CoordinatorWire({"bootstrap.servers": "127.0.0.1:1"}) as unreachable:
        assert unreachable.commit([token], Deadline(0.5)) == {name: Outcome.UNKNOWN}
        assert unreachable.doubtful == set()
        assert "127.0.0.1:1" in unreachable.answer_of(name)
    assert wire.commit([token], soon()) == {name: Outcome.COMMITTED}
