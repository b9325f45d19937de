"""The source's driver and worker halves against a real broker, without Spark.

An independent producer writes; what the reader must return is written out in each test.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from connectors.clients.topic_leaders import has_leaders
from connectors.kafka.source import range_reader
from connectors.kafka.source.batch_ranges import limit_offsets
from connectors.kafka.source.offsets import OffsetRange
from connectors.kafka.source.range_reader import close_idle_consumers, read_range
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.kafka_source import KafkaSource
from connectors.records.message_schema import SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS
from tests.waiting import until
from transactions.clock import Deadline
from transactions.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    DataLossError,
    MissingTopicError,
)

Topic = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_cached_consumers() -> Iterator[None]:
    yield
    close_idle_consumers()


def read(source: KafkaSource, wanted: OffsetRange) -> pa.Table:
    schema = SOURCE_SCHEMA_WITH_HEADERS if source.include_headers else SOURCE_SCHEMA
    return pa.Table.from_batches(read_range(source, wanted), schema)


def offsets_of(source: KafkaSource, wanted: OffsetRange) -> list[int]:
    return list(read(source, wanted)["offset"].to_pylist())


def produce(bootstrap: str, topic: str, count: int, *, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    refused: list[object] = []

    def on_delivery(error: object, _message: object) -> None:
        if error is not None:
            refused.append(error)

    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=partition, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    assert refused == []


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    partition = TopicPartition(topic, 0, offset)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([partition])[partition].result(30)


class Transactions:
    """A foreign transactional producer; every record's value is its own offset."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"foreign-{topic}"}
        )
        self.producer.init_transactions(30)

    def send(self, *offsets: int) -> None:
        for offset in offsets:
            self.producer.produce(self.topic, str(offset), partition=0)
        assert self.producer.flush(30) == 0

    def begin(self, *offsets: int) -> None:
        self.producer.begin_transaction()
        self.send(*offsets)

    def commit(self) -> None:
        self.producer.commit_transaction(30)

    def abort(self) -> None:
        self.producer.abort_transaction(30)


class Batches:
    """The micro-batches of a source, one after another, as Spark would ask for them."""

    def __init__(self, source: KafkaSource) -> None:
        self.source = source
        self.planner = SourcePlanner(source)
        self.position = self.planner.starting_offsets("earliest")

    def next(self) -> list[int]:
        """Read one batch; the value of each record must be its offset."""
        end = self.planner.next_end(self.position)
        if limit := self.source.max_offsets_per_trigger:
            end = limit_offsets(self.position, end, limit)
        rows = [
            row
            for wanted in self.planner.plan(self.position, end)
            for row in read(self.source, wanted).to_pylist()
        ]
        self.position = end
        assert [int(row["value"]) for row in rows] == [row["offset"] for row in rows]
        return [row["offset"] for row in rows]

    def reach(self, end: int) -> None:
        """Wait until the markers up to `end` are written: EndTxn is answered before they are."""
        key = next(iter(self.position))
        until(
            lambda: self.planner.latest_offsets()[key] >= end,
            said=lambda: "the broker did not write its markers",
        )


def test_p1_read_committed_over_open_aborted_and_tiny_transactions(
    bootstrap: str, topic: Topic
) -> None:
    name = topic()
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name, max_offsets_per_trigger=3)
    foreign = Transactions(bootstrap, name)
    batches = Batches(source)

    foreign.begin(0, 1, 2, 3, 4)
    assert batches.next() == []  # open: nothing is visible
    foreign.commit()  # marker at 5
    batches.reach(6)
    assert batches.next() == [0, 1, 2]
    assert batches.next() == [3, 4]
    foreign.begin(6, 7, 8, 9, 10)
    foreign.abort()  # marker at 11
    batches.reach(12)
    assert batches.next() == []
    assert batches.next() == []  # both batches move on although there is no data in them
    assert batches.position == {f"{name}-0": 12}
    foreign.begin(12, 13, 14, 15, 16)
    foreign.commit()  # marker at 17
    for tiny in ((18,), (20,), (22, 23)):
        foreign.begin(*tiny)
        foreign.commit()  # markers at 19, 21, 24
    batches.reach(25)
    assert batches.next() == [12, 13, 14]
    assert batches.next() == [15, 16]
    assert batches.next() == [18, 20]
    assert batches.next() == [22, 23]
    assert batches.next() == []
    assert batches.position == {f"{name}-0": 25}


def test_p2_read_uncommitted_sees_what_was_aborted(bootstrap: str, topic: Topic) -> None:
    name = topic()
    foreign = Transactions(bootstrap, name)
    foreign.begin(0, 1)
    foreign.abort()
    foreign.begin(3)

    uncommitted = KafkaSource(
        bootstrap_servers=bootstrap, subscribe=name, isolation_level="read_uncommitted"
    )
    batches = Batches(uncommitted)
    batches.reach(4)
    seen = batches.next()
    foreign.abort()

    assert seen == [0, 1, 3]


def test_s2_position_is_behind_the_trailing_marker(bootstrap: str, topic: Topic) -> None:
    name = topic()
    batches = Batches(KafkaSource(bootstrap_servers=bootstrap, subscribe=name))
    foreign = Transactions(bootstrap, name)
    foreign.begin(0, 1)
    foreign.commit()
    batches.reach(3)

    assert batches.next() == [0, 1]
    partition = TopicPartition(name, 0)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    log_end = admin.list_offsets({partition: OffsetSpec.latest()})[partition].result(30).offset
    assert batches.position == {f"{name}-0": log_end} == {f"{name}-0": 3}


@pytest.mark.parametrize(("start", "end"), [(0, 1), (2, 5), (5, 6), (6, 12), (5, 12), (11, 13)])
def test_f37_ranges_that_begin_or_end_in_a_gap_do_not_hang(
    bootstrap: str, topic: Topic, start: int, end: int
) -> None:
    name = topic()
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name, poll_timeout_ms=20_000)
    foreign = Transactions(bootstrap, name)
    foreign.begin(0, 1, 2, 3, 4)
    foreign.commit()
    foreign.begin(6, 7, 8, 9, 10)
    foreign.abort()
    foreign.begin(12)
    foreign.commit()
    Batches(source).reach(14)

    data = {0, 1, 2, 3, 4, 12}
    assert offsets_of(source, OffsetRange(name, 0, start, end)) == sorted(
        data & set(range(start, end))
    )


def test_p10_every_column_survives(bootstrap: str, topic: Topic) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(
        name,
        b"\x00\xffvalue",
        key=b"\x80key",
        headers=[("a", b"1"), ("a", None), ("ü", b"\x00")],
        timestamp=1_234_567_890_123,
    )
    producer.produce(name, None, key=None, timestamp=1)
    producer.produce(name, b"", key=b"", headers=[], timestamp=1_000)
    assert producer.flush(30) == 0

    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name, include_headers=True)
    rows = read(source, OffsetRange(name, 0, 0, 3))

    assert rows.schema == SOURCE_SCHEMA_WITH_HEADERS
    assert rows["key"].to_pylist() == [b"\x80key", None, b""]
    assert rows["value"].to_pylist() == [b"\x00\xffvalue", None, b""]
    assert rows["topic"].to_pylist() == [name] * 3
    assert rows["partition"].to_pylist() == [0] * 3
    assert rows["offset"].to_pylist() == [0, 1, 2]
    microseconds = rows["timestamp"].cast(pa.int64()).to_pylist()
    assert microseconds == [1_234_567_890_123_000, 1_000, 1_000_000]
    assert rows["timestampType"].to_pylist() == [0] * 3
    assert rows["headers"].to_pylist() == [
        [
            {"key": "a", "value": b"1"},
            {"key": "a", "value": None},
            {"key": "ü", "value": b"\x00"},
        ],
        None,
        None,
    ]


def test_p10_log_append_time_is_type_one(bootstrap: str, topic: Topic) -> None:
    name = topic(1, "t", message_timestamp_type="LogAppendTime")
    produce(bootstrap, name, 1)

    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name)
    rows = read(source, OffsetRange(name, 0, 0, 1))

    assert rows["timestampType"].to_pylist() == [1]


def test_k5_order_is_kept_over_many_batches_and_ranges(bootstrap: str, topic: Topic) -> None:
    name = topic()
    count = 3 * range_reader.BATCH_ROWS + 17
    produce(bootstrap, name, count)
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name)
    cuts = [0, 1, 20, 5_000, 5_000 + 2 * range_reader.BATCH_ROWS, count]

    values: list[bytes] = []
    for low, high in pairwise(cuts):
        batches = list(read_range(source, OffsetRange(name, 0, low, high)))
        assert all(0 < len(batch) <= 2 * range_reader.BATCH_ROWS for batch in batches)
        values += [value for batch in batches for value in batch["value"].to_pylist()]

    assert values == [b"%d" % number for number in range(count)]


def test_batches_are_bounded_in_bytes(
    bootstrap: str, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(40):
        producer.produce(name, b"x" * 100_000)
    assert producer.flush(30) == 0
    monkeypatch.setattr(range_reader, "BATCH_BYTES", 1_000_000)
    monkeypatch.setattr(range_reader, "_CHUNK", 2)

    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name)
    sizes = [len(batch) for batch in read_range(source, OffsetRange(name, 0, 0, 40))]

    assert sum(sizes) == 40
    assert max(sizes) <= 12


def test_consumers_are_reused_and_ranges_do_not_mix(bootstrap: str, topic: Topic) -> None:
    first, second = topic(2), topic()
    for name, partition in ((first, 0), (first, 1), (second, 0)):
        produce(bootstrap, name, 100, partition=partition)
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=(first, second))
    close_idle_consumers()

    assert offsets_of(source, OffsetRange(first, 0, 0, 10)) == list(range(10))
    (pooled,) = range_reader._POOL._idle
    for name, partition, start in ((first, 1, 50), (second, 0, 3), (first, 0, 10), (first, 0, 2)):
        wanted = OffsetRange(name, partition, start, start + 5)
        assert offsets_of(source, wanted) == list(range(start, start + 5))

    assert range_reader._POOL._idle == [pooled]


def test_p14_two_readings_of_one_partition_at_the_same_time(bootstrap: str, topic: Topic) -> None:
    name = topic()
    count = 2 * range_reader.BATCH_ROWS
    produce(bootstrap, name, count)
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name)

    one = read_range(source, OffsetRange(name, 0, 0, count))
    other = read_range(source, OffsetRange(name, 0, 0, count))
    seen: tuple[list[int], list[int]] = ([], [])
    for left, right in zip(one, other, strict=True):
        seen[0].extend(left["offset"].to_pylist())
        seen[1].extend(right["offset"].to_pylist())

    assert seen[0] == seen[1] == list(range(count))


def test_p14_a_reading_that_was_given_up_leaves_no_consumer(bootstrap: str, topic: Topic) -> None:
    name = topic()
    count = 3 * range_reader.BATCH_ROWS
    produce(bootstrap, name, count)
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name)
    close_idle_consumers()

    reading = read_range(source, OffsetRange(name, 0, 0, count))
    next(reading)
    reading.close()  # type: ignore[attr-defined]

    assert range_reader._POOL._idle == []
    assert offsets_of(source, OffsetRange(name, 0, 0, count)) == list(range(count))


def test_the_pool_is_bounded(bootstrap: str, topic: Topic) -> None:
    name = topic()
    produce(bootstrap, name, 1)
    for number in range(6):
        source = KafkaSource(
            bootstrap_servers=bootstrap, subscribe=name, kafka={"client.id": str(number)}
        )
        assert offsets_of(source, OffsetRange(name, 0, 0, 1)) == [0]

    names = [dict(pooled.key[1:])["client.id"] for pooled in range_reader._POOL._idle]  # type: ignore[arg-type,misc]
    assert names == ["2", "3", "4", "5"]


def test_p9_deleted_records_are_data_loss_for_driver_and_worker(
    bootstrap: str, topic: Topic
) -> None:
    name = topic()
    produce(bootstrap, name, 20)
    delete_before(bootstrap, name, 8)
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name)

    with pytest.raises(DataLossError) as planned:
        SourcePlanner(source).plan({f"{name}-0": 5}, {f"{name}-0": 20})
    assert f"{name}-0[5, 20); the partition begins at 8" in planned.value.where
    with pytest.raises(DataLossError) as read_back:
        read(source, OffsetRange(name, 0, 5, 20))
    assert "holds [8, 20)" in read_back.value.where
    assert read_back.value.option == "failOnDataLoss=true"


def test_p9_without_fail_on_data_loss_the_rest_is_read_once(bootstrap: str, topic: Topic) -> None:
    name = topic()
    produce(bootstrap, name, 20)
    delete_before(bootstrap, name, 8)
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name, fail_on_data_loss=False)

    assert offsets_of(source, OffsetRange(name, 0, 5, 20)) == list(range(8, 20))
    assert offsets_of(source, OffsetRange(name, 0, 0, 8)) == []
    assert offsets_of(source, OffsetRange(name, 0, 30, 40)) == []
    planned = SourcePlanner(source).plan({f"{name}-0": 5}, {f"{name}-0": 20})
    assert planned == [OffsetRange(name, 0, 8, 20)]


def test_missing_topic_is_named_by_driver_and_worker(bootstrap: str) -> None:
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe="nobody-made-me")

    for ask in (SourcePlanner(source).starting_offsets, SourcePlanner(source).latest_offsets):
        with pytest.raises(MissingTopicError) as raised:
            ask()
        assert raised.value.where == "nobody-made-me"
    delivered = KafkaSource(
        bootstrap_servers=bootstrap,
        subscribe="nobody-made-me",
        kafka={"topic.metadata.propagation.max.ms": "0"},
    )
    with pytest.raises(MissingTopicError):
        read(delivered, OffsetRange("nobody-made-me", 0, 0, 1))


def test_w3_two_topics_of_which_one_is_missing(bootstrap: str, topic: Topic) -> None:
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=(topic(), "nobody-made-me"))

    with pytest.raises(MissingTopicError):
        SourcePlanner(source).latest_offsets()


def test_an_open_transaction_is_named_as_the_cause_of_a_silence(
    bootstrap: str, topic: Topic
) -> None:
    name = topic()
    foreign = Transactions(bootstrap, name)
    foreign.begin(0)
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name, poll_timeout_ms=3000)

    with pytest.raises(BrokerUnavailableError) as raised:
        read(source, OffsetRange(name, 0, 0, 1))
    foreign.abort()

    assert "still open" in raised.value.cause
    assert "3000 ms" in raised.value.cause


def test_unreachable_broker_ends_in_time(unused_port: int) -> None:
    source = KafkaSource(
        bootstrap_servers=f"127.0.0.1:{unused_port}", subscribe="t", poll_timeout_ms=500
    )

    with pytest.raises(BrokerUnavailableError) as planned:
        SourcePlanner(source).latest_offsets()
    with pytest.raises(BrokerUnavailableError) as read_back:
        read(source, OffsetRange("t", 0, 0, 1))

    for raised in (planned, read_back):
        assert raised.value.option == f"kafka.bootstrap.servers=127.0.0.1:{unused_port}"


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("setting", ["no.such.setting", "fetch.min.bytes"])
def test_wrong_client_settings_are_configuration_errors(bootstrap: str, setting: str) -> None:
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe="t", kafka={setting: "many"})

    for use in (
        SourcePlanner(source).latest_offsets,
        lambda: read(source, OffsetRange("t", 0, 0, 1)),
    ):
        with pytest.raises(ConfigurationError) as raised:
            use()
        assert raised.value.option == f"kafka.{setting}=many"


def test_p8_added_partition_is_seen_and_begins_at_zero(bootstrap: str, topic: Topic) -> None:
    from confluent_kafka.admin import NewPartitions

    name = topic()
    produce(bootstrap, name, 3)
    planner = SourcePlanner(KafkaSource(bootstrap_servers=bootstrap, subscribe=name))
    start = planner.latest_offsets()
    assert start == {f"{name}-0": 3}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(30)
    # A broker that does not know it yet refuses records.
    until(lambda: has_leaders(admin, name, 2), pause_s=0.1)
    produce(bootstrap, name, 4, partition=1)

    deadline = Deadline(30)
    end = planner.next_end(start)
    while len(end) < 2:
        assert not deadline.expired(), "the new partition was never seen"
        deadline.pause(0.05)
        end = planner.next_end(start)

    assert planner.plan(start, end) == [OffsetRange(name, 1, 0, 4)]


def test_no_client_is_made_by_an_import() -> None:
    """Workers fork: a librdkafka handle made before would be dead in the child."""
    code = (
        "import connectors.spark.source_readers, connectors.kafka.source.range_reader as r, sys\n"
        "sys.exit(len(r._POOL._idle))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
