"""The Kafka sink without Spark: what a task does, and what the driver ends, on a real broker."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import os
import signal

import pyarrow as pa
import pytest

from connectors.clients.client_settings import librdkafka_settings
from connectors.clients.offsets_topic import offsets_partition
from connectors.kafka.sink import producer_pool, transactional_producer
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.ownership import Ownership
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.records.message_schema import HEADERS_TYPE
from tests.auditor.reader import read_committed, read_uncommitted
from tests.both_halves import KafkaBothHalves
from tests.integration.wire_helpers import settled
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import (
    DeliveryError,
    FencedError,
    PhaseOneError,
    RecordRefusedError,
)
from transactions.sink import Attempt, DecidedToken, Owner

_epochs = itertools.count(1)


@pytest.fixture
def owner(application_id) -> Owner:
    return Owner(application_id=application_id, log_id="a1b2c3d4", run_epoch=next(_epochs))


@pytest.fixture
def make(bootstrap):
    sinks = []

    def sink(topic: str | None, **kafka: str) -> KafkaBothHalves:
        options = KafkaSink(bootstrap_servers=bootstrap, topic=topic, name="out", kafka=kafka)
        sinks.append(KafkaBothHalves(options, timeout_ms=60_000, checkpoint_timeout_s=30))
        return sinks[-1]

    yield sink
    for one in sinks:
        one.close()


def rows(*values: bytes | None, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary()), **columns})


def to_partition(number: int, value: bytes) -> pa.RecordBatch:
    return rows(value, partition=pa.array([number], pa.int32()))


def attempt(owner: Owner, checkpoint: int, **fields) -> Attempt:
    return Attempt(
        owner=owner,
        checkpoint_id=checkpoint,
        subtask=0,
        attempt_id=f"{owner.run_epoch}.0",
        **fields,
    )


def prepare(sink, one: Attempt, *batches: pa.RecordBatch) -> Committable:
    transaction = sink.begin_transaction(one)
    for batch in batches:
        sink.invoke(transaction, batch)
    committable = sink.pre_commit(transaction)
    assert committable is not None
    return committable


def commit(sink, *committables: Committable) -> None:
    checked = sink.check_prepared(committables, Deadline(10))
    assert all(one.start_time_ms > 0 for one in checked)
    outcomes = sink.commit(checked, Deadline(10))
    assert set(outcomes.values()) == {Outcome.COMMITTED}


def warm_up(make, owner: Owner, topic) -> None:
    """Let a fresh broker create its topic of offsets: a producer that waited for that is spent."""
    other = dataclasses.replace(owner, log_id="warm")
    sink = make(topic(1))
    commit(sink, prepare(sink, attempt(other, 0), rows(b"x")))


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_committed(bootstrap, topic)]


def decided(*committables: Committable) -> dict[str, DecidedToken]:
    return {
        one.transactional_id: DecidedToken(checkpoint_id=one.checkpoint_id, token=one.token)
        for one in committables
    }


def test_prepared_records_are_invisible_until_the_commit(make, owner, topic, bootstrap):
    out = topic()
    sink = make(out)
    committable = prepare(sink, attempt(owner, 0), rows(b"a", b"b"))
    assert [r.value for r in read_uncommitted(bootstrap, out)] == [b"a", b"b"]
    assert committable.record_count == 2
    commit(sink, committable)
    assert values(bootstrap, out) == [b"a", b"b"]


def test_f15_an_empty_transaction_is_no_committable(make, owner, topic):
    sink = make(topic())
    assert sink.pre_commit(sink.begin_transaction(attempt(owner, 0))) is None
    transaction = sink.begin_transaction(attempt(owner, 0))
    sink.invoke(transaction, rows())
    assert sink.pre_commit(transaction) is None


def test_f15_a_task_that_only_carries_offsets_is_not_empty(make, owner, topic, bootstrap):
    source = topic()
    sink = make(topic())
    committable = prepare(sink, attempt(owner, 0, source_offsets={f"{source}-0": 7}))
    assert committable.record_count == 0
    commit(sink, committable)
    markers = sink.wire.read_markers(owner.application_id, [f"{source}-0"], Deadline(10))
    assert markers == {f"{source}-0": (7, committable.token)}


def test_rule_7_a_decided_transaction_is_resynced_and_its_producer_used_again(
    make, owner, topic, bootstrap
):
    warm_up(make, owner, topic)
    out = topic()
    sink = make(out)
    first = prepare(sink, attempt(owner, 0), rows(b"a"))
    commit(sink, first)
    second = prepare(sink, attempt(owner, 1, last_decided=decided(first)), rows(b"b"))
    assert second.transactional_id == first.transactional_id
    commit(sink, second)
    assert values(bootstrap, out) == [b"a", b"b"]


def test_rule_7_an_undecided_transaction_of_an_earlier_checkpoint_is_aborted(
    make, owner, topic, bootstrap
):
    warm_up(make, owner, topic)
    out = topic()
    sink = make(out)
    lost = prepare(sink, attempt(owner, 0), rows(b"lost"))
    second = prepare(sink, attempt(owner, 1), rows(b"b"))
    assert second.transactional_id == lost.transactional_id
    commit(sink, second)
    assert values(bootstrap, out) == [b"b"]


def test_rule_7_a_second_task_of_the_same_checkpoint_takes_another_slot(
    make, owner, topic, bootstrap
):
    out = topic()
    sink = make(out)
    first = prepare(sink, attempt(owner, 0), rows(b"a"))
    second = prepare(sink, attempt(owner, 0), rows(b"b"))
    assert first.transactional_id != second.transactional_id
    commit(sink, first, second)
    assert sorted(values(bootstrap, out)) == [b"a", b"b"]


def test_rule_7_a_zombie_of_an_older_checkpoint_stops(make, owner, topic, bootstrap):
    out = topic()
    sink = make(out)
    committable = prepare(sink, attempt(owner, 5), rows(b"a"))
    zombie = sink.begin_transaction(attempt(owner, 4))
    with pytest.raises(FencedError, match="old batch"):
        sink.invoke(zombie, rows(b"zombie"))
    commit(sink, committable)
    assert values(bootstrap, out) == [b"a"]


def test_rule_3_a_retired_id_is_never_used_again(make, owner, topic):
    sink = make(topic())
    first = prepare(sink, attempt(owner, 0), rows(b"a"))
    commit(sink, first)
    again = attempt(
        owner,
        1,
        last_decided=decided(first),
        retired=frozenset({first.transactional_id}),
    )
    second = prepare(sink, again, rows(b"b"))
    assert second.transactional_id != first.transactional_id
    commit(sink, second)


def test_rule_5_a_fenced_producer_is_replaced_under_another_id(make, owner, topic, bootstrap):
    """The sweep fenced what an attempt left; the next task of the process goes on."""
    out = topic()
    sink = make(out)
    lost = prepare(sink, attempt(owner, 0), rows(b"lost"))
    assert sink.lingering(owner, Deadline(10)) == [lost.transactional_id]
    sink.recover_and_abort([lost.transactional_id], Deadline(10))
    assert sink.retired() == {lost.transactional_id}
    second = prepare(sink, attempt(owner, 1), rows(b"b"))
    assert second.transactional_id != lost.transactional_id
    commit(sink, second)
    assert values(bootstrap, out) == [b"b"]


def test_rule_1_x13_x21_a_sweep_is_of_one_log_and_its_older_runs(make, owner, topic):
    """Another log, an application whose name ours begins, and a newer run are left alone."""
    sink = make(topic(1))
    others = [
        dataclasses.replace(owner, log_id="a1b2c3d5"),
        dataclasses.replace(owner, application_id=owner.application_id + "-2"),
        dataclasses.replace(owner, run_epoch=owner.run_epoch + 100),
    ]
    mine, *foreign = (prepare(sink, attempt(one, 1), rows(b"x")) for one in [owner, *others])
    newer_run = dataclasses.replace(owner, run_epoch=owner.run_epoch + 7)
    assert sink.lingering(owner, Deadline(10)) == [mine.transactional_id]
    assert sink.lingering(newer_run, Deadline(10)) == [mine.transactional_id]
    sink.ownership = Ownership(owner.application_id + "-2")  # a run of it has overtaken `owner`
    assert sink.lingering(newer_run, Deadline(10)) == [mine.transactional_id]
    ids = [one.transactional_id for one in [mine, *foreign]]
    sink.recover_and_abort(ids, Deadline(10))


def test_rule_10_a_transaction_that_was_ended_behind_our_back_is_not_decided(make, owner, topic):
    sink = make(topic())
    committable = prepare(sink, attempt(owner, 0), rows(b"a"))
    sink.wire.fence(committable.transactional_id, 60_000, Deadline(10))
    with pytest.raises(PhaseOneError, match="transaction has changed"):
        sink.check_prepared([committable], Deadline(10))


@pytest.mark.parametrize("carries_offsets", [True, False], ids=["offsets", "marker_only"])
@pytest.mark.parametrize("looks", [True, False], ids=["looks", "can_fail_without_the_look"])
def test_a3_a_late_end_txn_between_two_records_is_found(
    make, owner, topic, bootstrap, carries_offsets: bool, looks: bool
):
    """The rest goes into a second transaction without any error. Its source offsets come last, and
    bring a partition of `__consumer_offsets` back: only the marker's is missing there.
    """
    out, source = topic(8), topic()
    sink = make(out)
    sink.count_offsets_partitions(Deadline(10))
    assert sink.offsets_partitions == 10
    first = prepare(sink, attempt(owner, 0), to_partition(0, b"a"))
    commit(sink, first)
    offsets = {f"{source}-0": 1} if carries_offsets else {}
    second = attempt(owner, 1, source_offsets=offsets, last_decided=decided(first))
    transaction = sink.begin_transaction(second)
    sink.invoke(transaction, to_partition(1, b"b"))
    producer = transaction.slot.producer
    assert producer.transactional_id == first.transactional_id
    producer._producer.flush()
    assert set(sink.wire.commit([first], Deadline(10)).values()) == {Outcome.COMMITTED}  # late
    settled(sink.wire, first.transactional_id)
    sink.invoke(transaction, to_partition(2, b"c"))
    committable = sink.pre_commit(transaction)
    if not looks:
        sink.offsets_partitions = 0
    if looks or not carries_offsets:
        with pytest.raises(PhaseOneError, match=r"marker is missing|offsets are missing"):
            sink.check_prepared([committable], Deadline(10))
        where = committable.marker_partition
        found = sink.wire.read_markers(committable.transactional_id, [where], Deadline(10))
        assert found == {where: (1, committable.token)}, "the next start can see it"
    else:
        sink.check_prepared([committable], Deadline(10))
    sink.wire.fence(committable.transactional_id, 60_000, Deadline(10))
    assert set(values(bootstrap, out)) == {b"a", b"b"}, "half of it is visible"


def test_a3_the_groups_of_ids_are_kept_elsewhere_than_the_applications(make, owner, topic):
    """The broker names the partition that the formula says; no id shares that of the offsets."""
    source = topic()
    sink = make(topic())
    sink.count_offsets_partitions(Deadline(10))
    offsets = {f"{source}-0": 1}
    prepared = [
        prepare(sink, attempt(owner, 0, source_offsets=offsets), rows(b"x")) for _ in range(12)
    ]
    (ours,) = {offsets_partition(owner.application_id, sink.offsets_partitions)}
    described = sink.wire.describe([one.transactional_id for one in prepared], Deadline(10))
    for one in prepared:
        own = offsets_partition(one.transactional_id, sink.offsets_partitions)
        in_topic = {name for name in described[one.transactional_id].partitions if "__" in name}
        assert in_topic == {ours, own}
        assert own != ours
    commit(sink, *prepared)


def test_recovery_finds_committed_and_aborted_by_proof(make, owner, topic):
    sink = make(topic())
    one, other, third = (prepare(sink, attempt(owner, 0), rows(b"%d" % n)) for n in range(3))
    one, other, third = sink.check_prepared([one, other, third], Deadline(10))
    commit(sink, one)
    sink.wire.fence(other.transactional_id, 60_000, Deadline(10))
    outcomes = sink.recover_and_commit([one, third], Deadline(10))
    assert outcomes[one.token] is Outcome.ALREADY_COMMITTED
    assert outcomes[third.token] is Outcome.COMMITTED
    # The fence reset pid's epoch and start time: no proof either way, and no marker.
    assert sink.recover_and_commit([other], Deadline(10))[other.token] in (
        Outcome.ABORTED,
        Outcome.UNKNOWN,
    )


def test_recovery_by_the_marker_after_a_stranger_took_the_id(make, owner, topic):
    """The id was initialised again after the commit: only the token inside can prove it."""
    sink = make(topic())
    committable = prepare(sink, attempt(owner, 0), rows(b"a"))
    (committable,) = sink.check_prepared([committable], Deadline(10))
    commit(sink, committable)
    sink.wire.fence(committable.transactional_id, 60_000, Deadline(10))
    outcomes = sink.recover_and_commit([committable], Deadline(10))
    assert outcomes == {committable.token: Outcome.ALREADY_COMMITTED}


def _write_and_die(sink: KafkaBothHalves, one: Attempt, pipe) -> None:
    committable = prepare(sink, one, rows(b"a", b"b"))
    pipe.send_bytes(committable.to_json())
    os.kill(os.getpid(), signal.SIGKILL)


def test_f16_another_process_commits_what_a_dead_one_prepared(make, owner, topic, bootstrap):
    out = topic()
    sink = make(out)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    writer = context.Process(target=_write_and_die, args=(sink, attempt(owner, 0), theirs))
    writer.start()
    committable = Committable.from_json(ours.recv_bytes())
    writer.join(30)
    assert writer.exitcode == -signal.SIGKILL
    commit(sink, committable)
    assert values(bootstrap, out) == [b"a", b"b"]


def test_w1_the_topic_option_wins_over_the_column(make, owner, topic, bootstrap):
    out, other = topic(), topic()
    column = pa.array([other], pa.string())
    sink = make(out)
    commit(sink, prepare(sink, attempt(owner, 0), rows(b"a", topic=column)))
    assert values(bootstrap, out) == [b"a"]
    assert values(bootstrap, other) == []


def test_w1_without_the_option_each_row_names_its_topic(make, owner, topic, bootstrap):
    out, other = topic(), topic()
    column = pa.array([other, out], pa.string())
    sink = make(None)
    commit(sink, prepare(sink, attempt(owner, 0), rows(b"a", b"b", topic=column)))
    assert values(bootstrap, out) == [b"b"]
    assert values(bootstrap, other) == [b"a"]


def test_w1_a_row_without_a_topic_fails_the_attempt(make, owner, topic):
    sink = make(None)
    transaction = sink.begin_transaction(attempt(owner, 0))
    with pytest.raises(DeliveryError, match="no topic"):
        sink.invoke(transaction, rows(b"a", topic=pa.array([None], pa.string())))
    sink.abort(transaction)


def test_w4_the_partition_column_beats_the_partitioner(make, owner, topic, bootstrap):
    out = topic(3)
    sink = make(out)
    keys = pa.array([b"k"] * 3, pa.binary())
    batch = rows(b"0", b"1", b"2", key=keys, partition=pa.array([0, 1, 2], pa.int32()))
    commit(sink, prepare(sink, attempt(owner, 0), batch))
    placed = {r.partition: r.value for r in read_committed(bootstrap, out)}
    assert placed == {0: b"0", 1: b"1", 2: b"2"}


def test_w5_more_than_the_buffer_holds_is_delivered(make, owner, topic, bootstrap):
    out = topic()
    sink = make(out, **{"queue.buffering.max.messages": "100"})
    batch = rows(*(b"%05d" % n for n in range(5000)))
    commit(sink, prepare(sink, attempt(owner, 0), batch))
    assert values(bootstrap, out) == [b"%05d" % n for n in range(5000)]


def test_w6_waiting_statistics_are_no_records(bootstrap, application_id, monkeypatch):
    """`len(producer)` counts them as well, and with it good batches were refused (seen)."""
    monkeypatch.setattr(transactional_producer, "_STATISTICS_MS", 1)
    settings = librdkafka_settings({"bootstrap.servers": bootstrap})
    producer = TransactionalProducer(
        settings, f"{application_id}.a1b2c3d4.1.p.0", timeout_ms=60_000
    )
    producer.init(Deadline(20))
    producer.begin()
    for_a_second = Deadline(1.5)
    while not for_a_second.expired():
        producer.flush(Deadline(10))
    producer.abort(Deadline(10))


def test_w6_x22_a_record_the_broker_refuses_fails_the_attempt(make, owner, topic, bootstrap):
    """The raw EndTxn would commit the transaction without the record: pre_commit must see it."""
    out = topic(max_message_bytes="2000")
    sink = make(out)
    transaction = sink.begin_transaction(attempt(owner, 0))
    with pytest.raises(RecordRefusedError, match="refused"):  # permanent: no restart helps
        for batch in (rows(b"small"), rows(b"x" * 10_000)):
            sink.invoke(transaction, batch)
        sink.pre_commit(transaction)
    sink.abort(transaction)
    assert values(bootstrap, out) == []
    committable = prepare(sink, attempt(owner, 0), rows(b"next"))
    commit(sink, committable)
    assert values(bootstrap, out) == [b"next"]


def test_w3_a_topic_that_does_not_exist_fails_and_does_not_hang(make, owner):
    sink = make("no-such-topic", **{"topic.metadata.propagation.max.ms": "500"})
    transaction = sink.begin_transaction(attempt(owner, 0))
    with pytest.raises(DeliveryError, match="no-such-topic"):
        sink.invoke(transaction, rows(b"a"))
        sink.pre_commit(transaction)
    sink.abort(transaction)


def test_p10_null_key_and_value_headers_and_timestamps(make, owner, topic, bootstrap):
    out = topic()
    sink = make(out)
    headers = pa.array(
        [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []], HEADERS_TYPE
    )
    batch = rows(
        None,
        b"",
        b"v",
        key=pa.array([b"k", None, b""], pa.binary()),
        headers=headers,
        timestamp=pa.array([1_700_000_000_123_000, None, 1], pa.timestamp("us", tz="UTC")),
    )
    commit(sink, prepare(sink, attempt(owner, 0), batch))
    seen = read_committed(bootstrap, out)
    assert [(r.key, r.value) for r in seen] == [(b"k", None), (None, b""), (b"", b"v")]
    assert [r.headers for r in seen] == [(("h", b"1"), ("h", None)), (), ()]
    assert seen[0].timestamp == 1_700_000_000_123


def test_pools_of_older_runs_are_dropped(make, owner, topic):
    sink = make(topic())
    commit(sink, prepare(sink, attempt(owner, 0), rows(b"a")))
    newer = Owner(application_id=owner.application_id, log_id="a1b2c3d4", run_epoch=next(_epochs))
    commit(sink, prepare(sink, attempt(newer, 1), rows(b"b")))
    owners = [one._owner for one in producer_pool._pools.values()]
    assert [one for one in owners if one.application_id == owner.application_id] == [newer]
