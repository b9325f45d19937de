"""The native consumer beside the plain readers on a real broker: the same rows and positions."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.kafka.source.offsets import OffsetRange
from connectors.kafka.source.partition_reader import MOST_ROWS, PartitionReader, Read
from connectors.kafka.source.range_reader import (
    close_idle_consumers,
    consumer_settings,
    read_range,
)
from connectors.native import consumed_columns
from connectors.native.native_consumer import NativeConsumer, PartitionFailedError, Polled
from connectors.native.native_reader import NativePartitionReader
from connectors.options.kafka_source import KafkaSource
from connectors.records.message_schema import SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS
from tests.waiting import until
from transactions.clock import Deadline
from transactions.errors import (
    DataLossError,
    MissingTopicError,
    PhaseOneError,
    SparkOnceError,
)

BOTH = (PartitionReader, NativePartitionReader)
Topic = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_cached_consumers() -> Iterator[None]:
    yield
    close_idle_consumers()


@pytest.fixture
def consume(bootstrap: str) -> Iterator[Callable[..., NativeConsumer]]:
    """Make a consumer that reads from these offsets; closed in the end."""
    made = []

    def one(offsets: dict[str, int], *, headers: bool = False, **settings) -> NativeConsumer:
        source = KafkaSource(bootstrap_servers=bootstrap, subscribe="x")
        made.append(NativeConsumer(consumer_settings(source) | settings, headers=headers))
        made[-1].assign(offsets)
        return made[-1]

    yield one
    for consumer in made:
        consumer.close()


def read_to(consumer: NativeConsumer, ends: dict[str, int], *, most: int = 1000) -> list[Polled]:
    """Poll until every partition's position has reached its end."""
    found: list[Polled] = []
    left = dict(ends)
    deadline = Deadline(30)
    while left:
        assert not deadline.expired(), left
        polled = consumer.poll_batch(most, 0.1)
        found += [polled] if polled.moved else []
        for one in polled.moved:
            name = f"{one.topic}-{one.partition}"
            if one.next_offset >= left.get(name, one.next_offset + 1):
                del left[name]
    return found


def plain(bootstrap: str, topic: str, partition: int, end: int, *, headers: bool) -> pa.Table:
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=topic, include_headers=headers)
    schema = SOURCE_SCHEMA_WITH_HEADERS if headers else SOURCE_SCHEMA
    wanted = OffsetRange(topic, partition, 0, end)
    return pa.Table.from_batches(read_range(source, wanted), schema)


def native(found: list[Polled], topic: str, partition: int, *, headers: bool) -> pa.Table:
    schema = SOURCE_SCHEMA_WITH_HEADERS if headers else SOURCE_SCHEMA
    table = pa.Table.from_batches([one.batch for one in found], schema)
    table.validate(full=True)
    mine = (pc.field("topic") == topic) & (pc.field("partition") == partition)
    return table.filter(mine)


def same(bootstrap: str, consume, ends: dict[str, int], *, most: int = 1000) -> None:
    """Compare every partition with the plain range reader, with headers and without."""
    for headers in (False, True):
        found = read_to(consume(dict.fromkeys(ends, 0), headers=headers), ends, most=most)
        for name, end in ends.items():
            topic, _, partition = name.rpartition("-")
            expected = plain(bootstrap, topic, int(partition), end, headers=headers)
            assert native(found, topic, int(partition), headers=headers).equals(expected)


def produce(bootstrap: str, topic: str, records: list[dict], **settings) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(30) == 0


ODD_RECORDS = [
    {"value": None, "key": b"k"},
    {"value": b"", "key": None},
    {"value": b"v", "key": b""},
    {"value": b"\0\0", "key": b"\0", "headers": [("a", b"1"), ("a", None), ("ü", b"")]},
    {"value": b"t", "timestamp": 1},
    {"value": b"t", "timestamp": 1_700_000_000_123},
    {"value": "text", "headers": [("", "")]},
]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_odd_records(bootstrap, topic, consume, codec):
    out = topic()
    records = [{**one, "partition": 0} for one in ODD_RECORDS]
    produce(bootstrap, out, records, **{"compression.type": codec})
    same(bootstrap, consume, {f"{out}-0": len(records)})
    for order in (records[::-1], records[4:6] * 2):
        other = topic()
        produce(bootstrap, other, order)
        same(bootstrap, consume, {f"{other}-0": len(order)}, most=3)


def test_values_of_every_length_and_of_a_megabyte(bootstrap, topic, consume):
    out = topic(max_message_bytes="3000000")
    seeded = random.Random(7)
    sizes = [*range(300), *(seeded.randrange(40_000) for _ in range(200)), 1_000_000, 0, 1_000_000]
    records = [{"value": os.urandom(size), "key": os.urandom(size % 50)} for size in sizes]
    produce(bootstrap, out, records, **{"message.max.bytes": 3_000_000})
    same(bootstrap, consume, {f"{out}-0": len(sizes)}, most=64)


def test_many_partitions_of_two_topics(bootstrap, topic, consume):
    one, other = topic(5), topic(3)
    for out in (one, other):
        records = [{"value": b"%d" % n, "key": b"%d" % n} for n in range(5000)]
        produce(bootstrap, out, records)
    admin = Producer({"bootstrap.servers": bootstrap})
    ends = {}
    for out in (one, other):
        for partition in admin.list_topics(out, timeout=10).topics[out].partitions:
            ends[f"{out}-{partition}"] = 0
    for name in ends:
        out, _, partition = name.rpartition("-")
        probe = consume({})
        ends[name] = probe.get_watermark_offsets(TopicPartition(out, int(partition)), 10)[1]
        probe.close()
    assert sum(ends.values()) == 10_000
    same(bootstrap, consume, ends, most=700)


@pytest.mark.parametrize("kind", BOTH)
def test_the_lag_is_what_is_left_as_long_as_reads_are_full(bootstrap, topic, kind):
    """As of the last fetch, and without a question to the broker."""
    out, total = topic(), 3 * MOST_ROWS + 100
    produce(bootstrap, out, [{"value": b"%d" % n} for n in range(total)])
    reader = kind(KafkaSource(bootstrap_servers=bootstrap, subscribe=out), {f"{out}-0": 0})
    lags: list[int] = []
    deadline = Deadline(30)
    position = 0
    while position < total:
        assert not deadline.expired(), position
        before = position
        position = reader.read(0.1).positions.get(f"{out}-0", position)
        lags.append(reader.lag)
        assert reader.lag == (total - position if position - before == MOST_ROWS else 0)
    assert any(lags), "no read was full"
    reader.close()


def test_times_of_the_brokers_log(bootstrap, topic, consume):
    out = topic(message_timestamp_type="LogAppendTime")
    produce(bootstrap, out, [{"value": b"a", "timestamp": 5}, {"value": b"b"}])
    same(bootstrap, consume, {f"{out}-0": 2})
    found = read_to(consume({f"{out}-0": 0}), {f"{out}-0": 2})
    assert native(found, out, 0, headers=False)["timestampType"].to_pylist() == [1, 1]


def test_a_library_of_another_layout_is_asked_record_by_record(
    bootstrap, topic, consume, monkeypatch
):
    out = topic()
    produce(bootstrap, out, [{"value": b"%d" % n} for n in range(50)])
    calls = []
    slow = consumed_columns._time
    monkeypatch.setattr(consumed_columns, "_time", lambda one: calls.append(one) or slow(one))
    same(bootstrap, consume, {f"{out}-0": 50})
    assert 2 <= len(calls) < 20  # the first and the last of each batch
    wrong = consumed_columns._CONSUMED.fields["time"][1]
    names = list(consumed_columns._CONSUMED.names)
    formats = [consumed_columns._CONSUMED.fields[name][0] for name in names]
    offsets = [consumed_columns._CONSUMED.fields[name][1] for name in names]
    offsets[names.index("time")] = wrong - 24
    layout = {"names": names, "formats": formats, "offsets": offsets, "itemsize": 104}
    monkeypatch.setattr(consumed_columns, "_CONSUMED", consumed_columns.np.dtype(layout))
    calls.clear()
    same(bootstrap, consume, {f"{out}-0": 50})
    assert len(calls) >= 100


class Transactions:
    """A foreign transactional producer."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"foreign-{topic}"}
        )
        self.producer.init_transactions(30)

    def write(self, *values: bytes, commit: bool) -> None:
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(self.topic, value, partition=0)
        assert self.producer.flush(30) == 0
        if commit:
            self.producer.commit_transaction(30)
        else:
            self.producer.abort_transaction(30)


def test_p1_positions_over_markers_and_aborted_transactions(bootstrap, topic, consume):
    out = topic()
    foreign = Transactions(bootstrap, out)
    consumer = consume({f"{out}-0": 0})
    foreign.write(b"0", b"1", commit=True)  # marker at 2
    found = read_to(consumer, {f"{out}-0": 3})
    assert found[-1].moved[-1].next_offset == 3
    foreign.write(b"3", commit=False)  # marker at 4
    gap = read_to(consumer, {f"{out}-0": 5})
    assert [one.batch.num_rows for one in gap] == [0] * len(gap)
    assert gap[-1].batch.schema == SOURCE_SCHEMA
    for number in range(5, 25, 2):
        foreign.write(b"%d" % number, commit=number % 4 == 1)
    found += gap + read_to(consumer, {f"{out}-0": 25}, most=3)
    rows = native(found, out, 0, headers=False)
    assert rows["offset"].to_pylist() == [0, 1, 5, 9, 13, 17, 21]
    assert [int(value) for value in rows["value"].to_pylist()] == rows["offset"].to_pylist()
    same(bootstrap, consume, {f"{out}-0": 25}, most=2)


def test_an_open_transaction_is_not_read(bootstrap, topic, consume):
    out = topic()
    foreign = Transactions(bootstrap, out)
    foreign.write(b"0", commit=True)
    foreign.producer.begin_transaction()
    foreign.producer.produce(out, b"2", partition=0)
    assert foreign.producer.flush(30) == 0
    consumer = consume({f"{out}-0": 0})
    read_to(consumer, {f"{out}-0": 2})
    assert not consumer.poll_batch(10, 0.3).moved
    foreign.producer.abort_transaction(30)
    read_to(consumer, {f"{out}-0": 4})


def test_an_error_waits_until_the_records_beside_it_are_out(bootstrap, topic, consume):
    out = topic(2)
    produce(bootstrap, out, [{"value": b"a", "partition": 0}])
    consumer = consume({f"{out}-0": 0, f"{out}-1": 99})
    rows, failures = 0, []
    deadline = Deadline(20)
    while not rows or not failures:
        assert not deadline.expired()
        try:
            rows += consumer.poll_batch(10, 0.2).batch.num_rows
        except PartitionFailedError as failed:
            failures.append(failed)
    assert rows == 1
    assert (failures[0].topic, failures[0].partition) == (out, 1)
    produce(bootstrap, out, [{"value": b"b", "partition": 0}])
    read_to(consumer, {f"{out}-0": 2})


def everything(reader: PartitionReader, ends: dict[str, int]) -> list[Read]:
    """Read until every position has reached its end."""
    found: list[Read] = []
    at: dict[str, int] = {}
    deadline = Deadline(30)
    while any(at.get(name, 0) < end for name, end in ends.items()):
        assert not deadline.expired(), at
        one = reader.read(0.1)
        assert all(position > at.get(name, -1) for name, position in one.positions.items())
        at.update(one.positions)
        found.append(one)
    reader.close()
    return found


def test_the_readers_of_the_continuous_mode_agree(bootstrap, topic):
    out, late = topic(2), topic()
    produce(bootstrap, out, [{"value": b"%d" % n, "key": b"%d" % n} for n in range(9000)])
    foreign = Transactions(bootstrap, late)
    foreign.write(b"a", commit=False)
    foreign.write(b"b", commit=True)
    tables = []
    for kind in BOTH:
        source = KafkaSource(bootstrap_servers=bootstrap, subscribe=out, include_headers=True)
        reader = kind(source, {f"{out}-0": 0, f"{out}-1": 10})
        reader.add({f"{late}-0": 0})
        ends = {f"{late}-0": 4}
        probe = NativeConsumer(consumer_settings(source))
        for partition in (0, 1):
            high = probe.get_watermark_offsets(TopicPartition(out, partition), 10)[1]
            ends[f"{out}-{partition}"] = high
        probe.close()
        found = everything(reader, ends)
        table = pa.Table.from_batches([one.batch for one in found if one.batch is not None])
        tables.append(
            table.sort_by(
                [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
            )
        )
    assert tables[0].num_rows == 9000 - 10 + 1
    assert tables[1].equals(tables[0])


@pytest.mark.parametrize("kind", BOTH)
def test_one_read_brings_all_partitions_in_one_batch(bootstrap, topic, kind):
    """A topic of many partitions that few records come to, as most are: a call for each partition
    made a checkpoint take three times as long with sixteen partitions (measured).
    """
    one, other = topic(5), topic(3)
    names = [f"{one}-{n}" for n in range(5)] + [f"{other}-{n}" for n in range(3)]
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=f"{one},{other}")
    reader = kind(source, dict.fromkeys(names, 0))
    written = 0
    found: list[Read] = []

    def fetched(name: str) -> int:
        out, _, partition = name.rpartition("-")
        place = TopicPartition(out, int(partition))
        return reader._consumer.get_watermark_offsets(place, cached=True)[1]

    def all_at_once() -> bool:
        nonlocal written
        if not found or sum(len(one.positions) for one in found) >= written * len(names):
            for name in names:
                out, _, partition = name.rpartition("-")
                values = [{"value": b"%d" % n, "partition": int(partition)} for n in range(2)]
                produce(bootstrap, out, values)
            written += 1
            until(lambda: all(fetched(name) == 2 * written for name in names))
        found.append(reader.read(0.1))
        return found[-1].positions.keys() == set(names)

    try:
        until(all_at_once)
    finally:
        reader.close()
    batch = found[-1].batch
    places = [_place(row) for row in batch.to_pylist()]
    assert len(set(places)) == len(list(itertools.groupby(places))) == len(names)
    for name in names:
        mine = [row["offset"] for row in batch.to_pylist() if name == _place(row)]
        assert mine == list(range(mine[0], found[-1].positions[name]))


def _place(row: dict) -> str:
    return f"{row['topic']}-{row['partition']}"


def failure(kind: type[PartitionReader], source: KafkaSource, offsets: dict[str, int]):
    reader = kind(source, offsets)
    deadline = Deadline(30)
    try:
        while not deadline.expired():
            reader.read(0.1)
    except SparkOnceError as error:
        return type(error), str(error)
    finally:
        reader.close()
    raise AssertionError("no error")


@pytest.mark.parametrize("kind", BOTH)
def test_a_partition_that_left_gives_nothing_more_and_can_come_back(bootstrap, topic, kind):
    """What was fetched of it is dropped; another reader has it until it comes back behind that."""
    name = topic(2)
    rows = 3 * MOST_ROWS  # more than one read takes, and all of it is fetched at once
    records = [
        {"value": b"%d" % row, "partition": partition}
        for row in range(rows)
        for partition in (0, 1)
    ]
    produce(bootstrap, name, records)
    stays, leaves = f"{name}-0", f"{name}-1"
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name)
    reader = kind(source, {stays: 0, leaves: 0})
    found: dict[str, list[int]] = {stays: [], leaves: []}

    def read() -> bool:
        rows = reader.read(1.0).batch
        for row in [] if rows is None else rows.select(["partition", "offset"]).to_pylist():
            found[f"{name}-{row['partition']}"].append(row["offset"])
        return True

    try:
        until(lambda: read() and found[leaves])
        reader.remove([leaves])
        before = list(found[leaves])
        until(lambda: read() and len(found[stays]) == rows)
        assert found[leaves] == before
        reader.add({leaves: rows - 2})
        until(lambda: read() and len(found[leaves]) == len(before) + 2)
        assert found[leaves] == [*before, rows - 2, rows - 1]
        assert found[stays] == list(range(rows))
    finally:
        reader.close()


def test_what_is_gone_is_told_or_left_out(bootstrap, topic):
    out = topic()
    produce(bootstrap, out, [{"value": b"%d" % n} for n in range(10)])
    hole = TopicPartition(out, 0, 6)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([hole])[hole].result(30)
    strict = KafkaSource(bootstrap_servers=bootstrap, subscribe=out)
    failures = [failure(kind, strict, {f"{out}-0": 2}) for kind in BOTH]
    assert failures[0] == failures[1]
    assert failures[1][0] is DataLossError
    lenient = KafkaSource(bootstrap_servers=bootstrap, subscribe=out, fail_on_data_loss=False)
    for kind in BOTH:
        found = everything(kind(lenient, {f"{out}-0": 2}), {f"{out}-0": 10})
        values = [
            v
            for one in found
            if one.batch is not None
            for v in one.batch.column("value").to_pylist()
        ]
        assert values == [b"6", b"7", b"8", b"9"]
    # Behind the end: another topic of the name, perhaps. The driver knows, and begins a next run.
    failures = [failure(kind, lenient, {f"{out}-0": 20}) for kind in BOTH]
    assert failures[0] == failures[1]
    assert failures[1][0] is PhaseOneError
    assert "at offset 20; it holds [6, 10)" in failures[1][1]


def test_a_topic_that_does_not_exist(bootstrap):
    quick = {"topic.metadata.propagation.max.ms": "500"}
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe="no-such-topic", kafka=quick)
    failures = [failure(kind, source, {"no-such-topic-0": 0}) for kind in BOTH]
    assert failures[0] == failures[1]
    assert failures[1][0] is MissingTopicError


@pytest.mark.parametrize("kind", BOTH)
def test_a_topic_that_was_not_there_is_waited_for_without_fail_on_data_loss(kind, bootstrap):
    """And not read on: it may be another one by then."""
    name = f"comes-later-{uuid.uuid4().hex[:8]}"
    quick = {"topic.metadata.propagation.max.ms": "500"}
    strict = KafkaSource(bootstrap_servers=bootstrap, subscribe=name, kafka=quick)
    lenient = dataclasses.replace(strict, fail_on_data_loss=False)
    reader = kind(lenient, {f"{name}-0": 0})
    assert failure(kind, strict, {f"{name}-0": 0})[0] is MissingTopicError
    assert not reader.read(1.0).positions  # it has heard the same by now
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1)])[name].result(30)
    produce(bootstrap, name, [{"value": b"%d" % n} for n in range(3)])
    with pytest.raises(PhaseOneError, match="exists again"):
        everything(reader, {f"{name}-0": 3})
    reader.close()


def test_records_are_given_back(bootstrap, topic, consume):
    """Librdkafka stops fetching when what it may hold is out: then this would not end."""
    out = topic()
    produce(bootstrap, out, [{"value": os.urandom(1000)} for _ in range(30_000)])
    small = {"queued.max.messages.kbytes": 1024, "fetch.message.max.bytes": 100_000}
    read_to(consume({f"{out}-0": 0}, **small), {f"{out}-0": 30_000}, most=500)
