"""The data source `kafka-exactly-once` in a real Spark, on a real broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connectors.spark.data_source import NAME, register
from connectors.spark.session import build_session

Topic = Callable[..., str]

#: What Spark's documentation says of its own Kafka source.
SPARKS_COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
SPARKS_HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    session = build_session("test_data_source", master="local[2]")
    session.sparkContext.setLogLevel("OFF")
    register(session)
    register(session)  # again is harmless
    return session


@pytest.fixture
def source(spark: SparkSession, bootstrap: str) -> Callable[..., Any]:
    """A reader or stream reader with the options that every test needs."""

    def make(topics: str, *, stream: bool = False, **options: str) -> DataFrame:
        reader = spark.readStream if stream else spark.read
        return (
            reader.format(NAME)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topics)
            .options(**options)
            .load()
        )

    return make


def produce(bootstrap: str, topic: str, low: int, high: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(low, high):
        producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(30) == 0


class Run:
    """One run of a query with Trigger.AvailableNow: the batches it made, and its progress."""

    def __init__(self, rows: DataFrame, checkpoint: str) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}
        query = (
            rows.writeStream.foreachBatch(self._collect)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120), "the query did not end"
        finally:
            query.stop()
        self.ends = [
            json.loads(each.json)["sources"][0]["endOffset"] for each in query.recentProgress
        ]

    def _collect(self, batch: DataFrame, number: int) -> None:
        found = batch.select("partition", "offset", "value").collect()
        assert all(row["offset"] == int(row["value"]) for row in found)
        self.batches[number] = sorted((row["partition"], row["offset"]) for row in found)

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for batch in self.batches.values() for row in batch)


def test_p10_columns_are_those_of_sparks_source(source: Any, topic: Topic) -> None:
    name = topic()

    assert source(name).schema == SPARKS_COLUMNS
    with_headers = source(name, includeHeaders="true").schema
    assert with_headers == StructType([*SPARKS_COLUMNS.fields, SPARKS_HEADERS])


def test_batch_reads_everything_once(source: Any, bootstrap: str, topic: Topic) -> None:
    name = topic(2)
    produce(bootstrap, name, 0, 500)
    produce(bootstrap, name, 0, 30, partition=1)

    rows = source(name, minPartitions="5")

    assert rows.rdd.getNumPartitions() == 6  # nearly 5: one range cannot be shared by two
    found = sorted((row["partition"], row["offset"]) for row in rows.collect())
    assert found == [(0, n) for n in range(500)] + [(1, n) for n in range(30)]


def test_batch_of_an_empty_topic_is_empty(source: Any, topic: Topic) -> None:
    assert source(topic(2)).count() == 0


def test_batch_between_given_offsets(source: Any, bootstrap: str, topic: Topic) -> None:
    name = topic(2)
    produce(bootstrap, name, 0, 10)
    produce(bootstrap, name, 0, 10, partition=1)

    rows = source(
        name,
        startingOffsets=json.dumps({name: {"0": 3, "1": -2}}),
        endingOffsets=json.dumps({name: {"0": 6, "1": -1}}),
    ).collect()

    found = sorted((row["partition"], row["offset"]) for row in rows)
    assert found == [(0, 3), (0, 4), (0, 5), *((1, n) for n in range(10))]


def test_p10_headers_nulls_and_timestamps(source: Any, bootstrap: str, topic: Topic) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(name, b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp=1_500)
    producer.produce(name, None, timestamp=2_000)
    assert producer.flush(30) == 0

    rows = source(name, includeHeaders="true")
    first, second = rows.selectExpr("*", "unix_micros(timestamp) AS us").orderBy("offset").collect()

    assert (first["key"], first["value"], first["topic"]) == (b"k", b"v", name)
    assert [tuple(header) for header in first["headers"]] == [("h", b"1"), ("n", None)]
    assert (first["us"], first["timestampType"]) == (1_500_000, 0)
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)


def test_p3_earliest_then_restart_goes_on_from_the_checkpoint(
    source: Any, bootstrap: str, topic: Topic, checkpoint: str
) -> None:
    name = topic(2)
    produce(bootstrap, name, 0, 8)
    rows = source(name, stream=True, startingOffsets="earliest")

    assert Run(rows, checkpoint).rows == [(0, n) for n in range(8)]
    produce(bootstrap, name, 8, 11)
    produce(bootstrap, name, 0, 2, partition=1)
    again = Run(rows, checkpoint)

    assert again.rows == [(0, 8), (0, 9), (0, 10), (1, 0), (1, 1)]
    assert again.ends[-1] == {name: {"0": 11, "1": 2}}
    assert Run(rows, checkpoint).rows == []


def test_p3_latest_is_a_streams_default(
    source: Any, bootstrap: str, topic: Topic, checkpoint: str
) -> None:
    name = topic()
    produce(bootstrap, name, 0, 8)
    rows = source(name, stream=True)

    assert Run(rows, checkpoint).rows == []
    produce(bootstrap, name, 8, 10)
    assert Run(rows, checkpoint).rows == [(0, 8), (0, 9)]


def test_p3_json(source: Any, bootstrap: str, topic: Topic, checkpoint: str) -> None:
    name = topic(3)
    for partition in range(3):
        produce(bootstrap, name, 0, 5, partition=partition)
    offsets = json.dumps({name: {"0": 3, "1": -1, "2": -2}})

    run = Run(source(name, stream=True, startingOffsets=offsets), checkpoint)

    assert run.rows == [(0, 3), (0, 4), *((2, n) for n in range(5))]


def test_p5_max_offsets_per_trigger_over_uneven_partitions(
    source: Any, bootstrap: str, topic: Topic, checkpoint: str
) -> None:
    name = topic(3)
    for partition, count in enumerate((101, 11, 1)):
        produce(bootstrap, name, 0, count, partition=partition)
    rows = source(name, stream=True, startingOffsets="earliest", maxOffsetsPerTrigger="40")

    run = Run(rows, checkpoint)

    sizes = [len(batch) for _, batch in sorted(run.batches.items())]
    first = [partition for partition, _ in run.batches[0]]
    assert [first.count(partition) for partition in range(3)] == [35, 3, 1]
    assert all(size <= 42 for size in sizes)
    assert run.rows == [(0, n) for n in range(101)] + [(1, n) for n in range(11)] + [(2, 0)]


def test_p5_the_largest_limit_does_not_overflow(
    source: Any, bootstrap: str, topic: Topic, checkpoint: str
) -> None:
    name = topic()
    produce(bootstrap, name, 0, 5)
    limit = str(2**63 - 1)

    run = Run(
        source(name, stream=True, startingOffsets="earliest", maxOffsetsPerTrigger=limit),
        checkpoint,
    )

    assert run.batches == {0: [(0, n) for n in range(5)]}


def test_p7_available_now_in_three_batches(
    source: Any, bootstrap: str, topic: Topic, checkpoint: str
) -> None:
    name = topic()
    produce(bootstrap, name, 0, 15)
    rows = source(name, stream=True, startingOffsets="earliest", maxOffsetsPerTrigger="5")

    run = Run(rows, checkpoint)

    assert run.batches == {
        number: [(0, n) for n in range(5 * number, 5 * number + 5)] for number in range(3)
    }


def test_a_running_stream_picks_up_what_arrives(
    source: Any, bootstrap: str, topic: Topic, checkpoint: str
) -> None:
    name = topic()
    seen: list[int] = []
    arrived = threading.Event()

    def collect(batch: DataFrame, _: int) -> None:
        seen.extend(row["offset"] for row in batch.collect())
        if len(seen) >= 6:
            arrived.set()

    rows = source(name, stream=True, startingOffsets="earliest")
    query = rows.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint).start()
    try:
        produce(bootstrap, name, 0, 3)
        query.processAllAvailable()
        produce(bootstrap, name, 3, 6)
        assert arrived.wait(60)
    finally:
        query.stop()

    assert sorted(seen) == list(range(6))


def failure(use: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the text is what is under test
        use()
    return str(raised.value)


def test_p8_missing_topic_arrives_whole(source: Any, checkpoint: str) -> None:
    for text in (
        failure(lambda: source("nobody-made-me").count()),
        failure(lambda: Run(source("nobody-made-me", stream=True), checkpoint)),
    ):
        assert "MissingTopicError: A topic or partition to read does not exist." in text
        assert "where:  nobody-made-me" in text
        assert "cause:  " in text
        assert "look at: subscribe" in text


def test_p11_unknown_and_wrong_options_arrive_whole(source: Any, topic: Topic) -> None:
    name = topic()

    unknown = failure(lambda: source(name, startingOffset="earliest"))
    assert "ConfigurationError: The source has no option startingoffset" in unknown.replace(
        "startingOffset", "startingoffset"
    )
    assert "did you mean 'startingOffsets'?" in unknown
    pattern = failure(lambda: source(name, subscribePattern="x.*"))
    assert "subscribePattern cannot be used: it is not supported yet" in pattern
    ours = failure(lambda: source(name, **{"kafka.group.id": "mine"}).count())
    assert "ConfigurationError: The Kafka option 'group.id' cannot be set." in ours


def test_p9_data_loss_arrives_whole(source: Any, bootstrap: str, topic: Topic) -> None:
    name = topic()
    produce(bootstrap, name, 0, 5)
    offsets = json.dumps({name: {"0": 9}})

    text = failure(lambda: source(name, startingOffsets=offsets).count())

    assert "DataLossError: Records that the pipeline still has to read are gone" in text
    assert f"startingOffsets: {name}-0 holds [0, 5)" in text
    assert "look at: failOnDataLoss=true" in text
