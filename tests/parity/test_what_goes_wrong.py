"""Rows 9, 19, 31, 40, 41, 42: a topic deleted while it is read, ends that go back, a time that is
no time, a broker that stands still, and records that are gone.
"""

from __future__ import annotations

import functools
import random
import string
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from connectors.cluster.local_cluster import LocalCluster
from connectors.spark.data_source import NAME
from tests.parity.query import Query, expected, produce, run_to_its_end
from tests.parity.test_topics_that_change import frame, topics
from tests.tiers import long
from tests.waiting import until
from transactions.clock import Deadline

__all__ = ["frame", "topics"]  # fixtures

parity = pytest.mark.parity
pytestmark = long

#: The latest time that a record can have, in milliseconds: too late for a timestamp column.
NO_TIME = 2**62


@parity(19)
def test_available_now_ends_with_an_error_when_ends_are_lower_than_planned(
    frame, topics, checkpoint
):
    """Else it would wait for ever for records that will not come."""
    topics.make("a", range(30))

    def each(batch: DataFrame, number: int) -> None:
        batch.collect()
        if number == 0:
            topics.delete("a")
            topics.make("a", range(2))

    query = (
        frame(maxOffsetsPerTrigger=5, failOnDataLoss="false")
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="still has to read are gone"):
        assert query.awaitTermination(120), "the query does not end"


@parity(9)
def test_a_topic_that_is_deleted_while_it_is_read(frame, topics, checkpoint, tmp_path):
    """The query fails, where Spark's goes on. Its next start goes on without the topic."""
    topics.make("a", range(5), range(5), range(5))
    hold = functools.partial(held, folder=str(tmp_path))

    def each(batch: DataFrame, _number: int) -> None:
        batch.select("offset").mapInArrow(hold, "offset long").collect()

    reads = frame(failOnDataLoss="false", **{"kafkaConsumer.pollTimeoutMs": 20_000})
    writer = reads.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
    query = writer.start()
    # Both slots are taken, the third task waits.
    until(lambda: len([*tmp_path.glob("came-*")]) >= 2, 60.0)
    topics.delete("a")
    (tmp_path / "go").touch()
    with pytest.raises(StreamingQueryException, match=r"was deleted while|nothing came"):
        assert query.awaitTermination(120), "the query does not end"
    topics.make("b", range(4))
    with Query(reads, checkpoint) as again:
        again.until(4)
        assert again.query.isActive
    assert again.rows == expected(topics.name("b"), range(4))


def held(batches: Iterator[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    """Hand on what a task has read, when the file `go` is there; `came-N` says that it waits."""
    for batch in batches:
        context = TaskContext.get()
        assert context is not None
        (Path(folder) / f"came-{context.partitionId()}").touch()
        until((Path(folder) / "go").exists, 120.0)
        yield batch


@parity(31)
def test_a_malformed_time_is_a_clear_error(source, bootstrap, topic):
    name = topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
    produce(bootstrap, name, range(3))
    produce_at(bootstrap, name, NO_TIME)
    with pytest.raises(Exception, match="timestamp of a record is out of range") as raised:
        source(stream=False, subscribe=name).collect()
    assert f"{name}-0 offset 3" in str(raised.value)


def produce_at(bootstrap: str, topic: str, time: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"3", partition=0, timestamp=time)
    assert producer.flush(30) == 0


@parity(40)
def test_a_query_stops_while_a_fetch_hangs(spark, checkpoint):
    """Its only broker stands still."""
    with LocalCluster() as cluster:
        name = "hangs"
        cluster.create_topic(name, 1)
        produce(cluster.bootstrap_servers, name, range(5))
        reader = spark.readStream.format(NAME).option("subscribe", name)
        reader = reader.option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        with Query(reader.option("startingOffsets", "earliest").load(), checkpoint) as query:
            query.until(5)
            cluster.pause_broker(0)
            try:
                deadline = Deadline(90.0)
                query.query.stop()
                assert not deadline.expired()
                assert not query.query.isActive
            finally:
                cluster.resume_broker(0)


@parity(41)
@pytest.mark.parametrize("seed", [41001, 41002])
def test_topics_and_partitions_that_come_and_go_at_random(frame, topics, checkpoint, seed):
    """Each record of the topics that stay comes once; of the others none comes twice."""
    chance = random.Random(seed)
    ends: dict[str, list[int]] = {}
    gone: set[str] = set()
    fresh = iter(string.ascii_lowercase)

    def make() -> None:
        short = next(fresh)
        topics.make(short, range(3))
        ends[short] = [3]

    def grow() -> None:
        short = chance.choice([*ends.keys() - gone])
        topics.add_partition(short, len(ends[short]) + 1)
        ends[short].append(0)

    def delete() -> None:
        left = [*ends.keys() - gone]
        if len(left) > 1:
            short = chance.choice(sorted(left))
            # All of it was read, a new partition too that Spark does not know yet (and would not
            # wait for). Else a plan or a task may be at it, and the query fails.
            all_of_it = {str(partition): end for partition, end in enumerate(ends[short])}
            deadline = Deadline(120.0)
            while read_up_to(topics.name(short)) != all_of_it:
                assert not deadline.expired(), query.query.lastProgress
                assert not query.query.awaitTermination(0.2)
            topics.delete(short)
            gone.add(short)

    def read_up_to(topic: str) -> dict[str, int]:
        query.query.processAllAvailable()
        progress = query.query.lastProgress
        return orjson.loads(progress.sources[0].endOffset).get(topic, {}) if progress else {}

    def write() -> None:
        for short in sorted(ends.keys() - gone):
            more = [chance.randrange(5) for _ in ends[short]]
            ranges = [range(at, at + n) for at, n in zip(ends[short], more, strict=True)]
            produce(topics.bootstrap, topics.name(short), *ranges)
            ends[short] = [one.stop for one in ranges]

    make()
    with Query(frame(failOnDataLoss="false"), checkpoint) as query:
        for _ in range(25):
            chance.choice([make, grow, delete, write, write, write])()
        write()
        wanted = sorted(
            row
            for short in ends.keys() - gone
            for row in expected(topics.name(short), *map(range, ends[short]))
        )
        deadline = Deadline(120.0)
        while not {*wanted} <= {*query.rows}:
            assert not deadline.expired(), sorted({*wanted} - {*query.rows})
            assert not query.query.awaitTermination(0.2)
    names = {topics.name(short) for short in gone}
    assert [row for row in query.rows if row[0] not in names] == wanted
    assert len(query.rows) == len({*query.rows}), "a record came twice"


@parity(42)
@pytest.mark.parametrize("running", [True, False])
def test_records_that_are_gone_cost_no_other_record(source, bootstrap, topic, checkpoint, running):
    """Neither a duplicate nor a hang: reading goes on at the first record that is left."""
    name = topic()
    produce(bootstrap, name, range(10))
    reading = source(
        stream=True, subscribe=name, startingOffsets="earliest", failOnDataLoss="false"
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    before = []
    if not running:
        before = run_to_its_end(reading, checkpoint).rows
    with Query(reading, checkpoint) as query:
        if running:
            query.until(10)
        produce(bootstrap, name, range(10, 100))
        admin.delete_records([TopicPartition(name, 0, 60)])[TopicPartition(name, 0)].result(30)
        produce(bootstrap, name, range(100, 110))
        query.query.processAllAvailable()
        rows = before + query.rows
    assert len(rows) == len({*rows}), "a record came twice"
    assert {*expected(name, range(10))} | {(name, 0, n) for n in range(60, 110)} <= {*rows}
