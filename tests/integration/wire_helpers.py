"""Writers and readers for the tests of raw requests: nothing in here is under test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka.protocol.producer import AddPartitionsToTxnRequest

from connectors.wire.coordinator_wire import CoordinatorWire
from connectors.wire.wire_client import TRANSACTION, WireClient
from transactions.clock import Deadline
from transactions.committable import Committable

PATIENCE_S = 20.0

_WRITER = """
import sys
from confluent_kafka import Consumer, Producer, TopicPartition
bootstrap, name, topic, group, *values = sys.argv[1:]
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
producer.init_transactions(20)
producer.begin_transaction()
for value in values:
    producer.produce(topic, value.encode())
assert producer.flush(20) == 0
if group:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    producer.send_offsets_to_transaction(
        [TopicPartition(topic, 0, 42, "token-42")], consumer.consumer_group_metadata(), 20)
print("written", flush=True)
sys.stdin.read()
"""


def soon() -> Deadline:
    """Return the deadline that every step of a test gets."""
    return Deadline(PATIENCE_S)


def open_producer(bootstrap: str, name: str, **settings: Any) -> Producer:
    """Return a producer with an initialised transactional id."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name} | settings)
    producer.init_transactions(PATIENCE_S)
    return producer


def begin(producer: Producer, topic: str, values: Sequence[str], **produce: Any) -> None:
    """Begin a transaction and flush records into it."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value.encode(), **produce)
    assert producer.flush(PATIENCE_S) == 0


def send_offset(producer: Producer, bootstrap: str, group: str, offset: TopicPartition) -> None:
    """Put an offset with its metadata into the open transaction."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    producer.send_offsets_to_transaction([offset], consumer.consumer_group_metadata(), PATIENCE_S)
    consumer.close()


def write_and_die(
    bootstrap: str, name: str, topic: str, values: Sequence[str], group: str = ""
) -> None:
    """Write a transaction in another process, flush it, and SIGKILL that process."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, bootstrap, name, topic, group, *values],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
    finally:
        writer.kill()
        writer.communicate(timeout=PATIENCE_S)


def open_without_records(bootstrap: str, names: Sequence[str], topic: str) -> None:
    """Open many transactions by raw requests: a librdkafka producer each would take minutes."""
    wire = WireClient({"bootstrap.servers": bootstrap}, PATIENCE_S)
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as coordinators:
        for name in names:
            coordinators.fence(name, 60_000, soon())
        found = coordinators.describe(names, soon())

    async def add(name: str) -> int:
        node = (await wire.coordinators(TRANSACTION, [name], soon()))[name]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=found[name].producer_id,
            v3_and_below_producer_epoch=found[name].producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0])
            ],
            max_version=3,
        )
        response = await wire.send(node, request, soon())
        return (
            response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        )

    async def add_all() -> list[int]:
        return await wire.together(add, names)

    assert set(wire.run(add_all, deadline=soon())) == {0}
    wire.close()


def committable(wire: CoordinatorWire, name: str) -> Committable:
    """Make the committable of what is open under the id, from the broker's own words."""
    found = wire.describe([name], soon())[name]
    assert not found.error
    return Committable(
        sink="test",
        transactional_id=name,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        start_time_ms=found.start_time_ms,
        timeout_ms=found.timeout_ms,
        checkpoint_id=1,
        subtask=0,
        attempt="1.1",
        token="token",
        record_count=1,
        fingerprint="0" * 32,
    )


def read(
    bootstrap: str, *topics: str, isolation: str = "read_committed"
) -> list[tuple[str, Mapping[str, bytes]]]:
    """Read every topic to its end as `isolation` sees it: (value, headers), sorted by value."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "independent-reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    metadata = consumer.list_topics(timeout=PATIENCE_S).topics
    left = {(topic, number) for topic in topics for number in metadata[topic].partitions}
    consumer.assign([TopicPartition(topic, number, 0) for topic, number in left])
    records: list[tuple[str, Mapping[str, bytes]]] = []
    deadline = soon()
    while left:
        assert not deadline.expired(), f"no end of {left}"
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            records.append((message.value().decode(), dict(message.headers() or [])))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            left.discard((message.topic(), message.partition()))
        else:
            raise AssertionError(message.error())
    consumer.close()
    return sorted(records, key=lambda record: record[0])


def values(bootstrap: str, *topics: str, isolation: str = "read_committed") -> list[str]:
    """Return the values that `read` finds."""
    return [value for value, _ in read(bootstrap, *topics, isolation=isolation)]


def eventually(what: Callable[[], Any], expected: Any) -> None:
    """Wait until `what` gives `expected`: markers follow a commit within milliseconds."""
    deadline = soon()
    while (found := what()) != expected:
        assert not deadline.expired(), f"{found!r} is not {expected!r}"
        deadline.pause(0.02)


def settled(wire: CoordinatorWire, *names: str) -> None:
    """Wait until nothing is open under the ids, so that what is invisible stays so."""
    over = {"Empty", "CompleteCommit", "CompleteAbort"}
    eventually(lambda: {one.state for one in wire.describe(names, soon()).values()} - over, set())


def write_over_marker(bootstrap: str, one: Committable) -> None:
    """Commit an offset of somebody else's where the marker of a transaction stands, or would."""
    topic, _, partition = one.marker_partition.rpartition("-")
    stranger = Consumer({"bootstrap.servers": bootstrap, "group.id": one.marker_group})
    place = TopicPartition(topic, int(partition), 7, metadata="a stranger's")
    stranger.commit(offsets=[place], asynchronous=False)
    stranger.close()
