"""Rows 14 to 38: what micro-batches take, what a row holds, and which options are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
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

from connectors.kafka.source.offsets import TOPIC_IDS
from tests.parity.query import Query, at, expected, produce, run_to_its_end
from tests.tiers import long

Source = Callable[..., DataFrame]
Topic = Callable[..., str]
parity = pytest.mark.parity

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


def earliest(source: Source, topic: str, **options: object) -> DataFrame:
    return source(stream=True, subscribe=topic, startingOffsets="earliest", **options)


def sizes(query: Query) -> list[int]:
    return [len(query.batches[number]) for number in sorted(query.batches)]


@parity(14)
def test_a_limit_is_divided_by_what_waits(source, bootstrap, topic, checkpoint):
    """At least one from each partition, so the limit can be passed by a few."""
    name = topic(3)
    ranges = (range(101), range(11), range(1))
    produce(bootstrap, name, *ranges)
    query = run_to_its_end(earliest(source, name, maxOffsetsPerTrigger=40), checkpoint)
    first = [partition for _, partition, _ in query.batches[0]]
    assert [first.count(partition) for partition in range(3)] == [35, 3, 1]
    assert max(sizes(query)) <= 42
    assert query.rows == expected(name, *ranges)


@long
@parity(15)
def test_the_largest_limit_does_not_overflow(source, bootstrap, topic, checkpoint):
    name = topic()
    produce(bootstrap, name, range(5))
    frame = earliest(source, name, maxOffsetsPerTrigger=2**63 - 1)
    assert run_to_its_end(frame, checkpoint).batches == {0: expected(name, range(5))}


@long
@parity(16)
def test_a_batch_waits_for_enough_records(source, bootstrap, topic, checkpoint):
    """Only the first batch of a run does not wait."""
    name = topic()
    produce(bootstrap, name, range(5))
    with Query(earliest(source, name, minOffsetsPerTrigger=10), checkpoint) as query:
        query.until(5)
        produce(bootstrap, name, range(5, 11))
        assert not query.query.awaitTermination(1)  # a chance to take what it must not take
        assert sizes(query) == [5]
        produce(bootstrap, name, range(11, 15))
        assert query.until(15) == expected(name, range(15))
        assert sizes(query) == [5, 10]


@parity(16)
def test_a_batch_does_not_wait_longer_than_the_delay(source, bootstrap, topic, checkpoint):
    name = topic()
    produce(bootstrap, name, range(5))
    frame = earliest(source, name, minOffsetsPerTrigger=6, maxTriggerDelay="3s")
    with Query(frame, checkpoint) as query:
        query.until(5)
        produce(bootstrap, name, range(5, 11))
        query.until(11)
        produce(bootstrap, name, range(11, 12))
        assert query.until(12) == expected(name, range(12))
        query.query.processAllAvailable()  # Spark tells progress after a batch
        told = query.query.recentProgress
    # Not since the first batch: that one can take longer than the delay.
    *_, before, last = (
        datetime.fromisoformat(one["timestamp"]) for one in told if one["numInputRows"]
    )
    assert last - before > timedelta(seconds=2.9)


@long
@parity(17)
def test_both_limits_together(source, bootstrap, topic, checkpoint):
    """Eight at most, five at least; the four that are left wait for the delay."""
    name = topic()
    produce(bootstrap, name, range(20))
    frame = earliest(
        source, name, minOffsetsPerTrigger=5, maxOffsetsPerTrigger=8, maxTriggerDelay="2s"
    )
    with Query(frame, checkpoint) as query:
        assert query.until(20) == expected(name, range(20))
        assert sizes(query) == [8, 8, 4]


@parity(16, 17, 18)
def test_available_now_waits_for_nothing(source, bootstrap, topic, checkpoint):
    name = topic()
    produce(bootstrap, name, range(15))
    frame = earliest(source, name, minOffsetsPerTrigger=5, maxOffsetsPerTrigger=6)
    query = run_to_its_end(frame, checkpoint)
    assert query.rows == expected(name, range(15))
    assert sizes(query) == [6, 6, 3]


@long  # `integration/test_exactly_once.py` has three in each run
@parity(18)
def test_available_now_in_several_batches(source, bootstrap, topic, checkpoint):
    name = topic()
    produce(bootstrap, name, range(15))
    query = run_to_its_end(earliest(source, name, maxOffsetsPerTrigger=5), checkpoint)
    starts = range(0, 15, 5)
    assert query.batches == {
        number: expected(name, range(low, low + 5)) for number, low in enumerate(starts)
    }


@parity(12, 18, 21)
def test_a_restart_goes_on_from_the_checkpoint(source, bootstrap, topic, checkpoint):
    name = topic(2)
    produce(bootstrap, name, range(8))
    frame = earliest(source, name)
    assert run_to_its_end(frame, checkpoint).rows == expected(name, range(8))
    produce(bootstrap, name, range(8, 11), range(2))
    again = run_to_its_end(frame, checkpoint)
    assert again.rows == expected(name, range(8, 11), range(2))
    progress = again.query.recentProgress
    end = json.loads(progress[-1].json)["sources"][0]["endOffset"]
    assert end[name] == {"0": 11, "1": 2}
    assert end.keys() == {name, TOPIC_IDS}, "Spark's source has no ids"
    assert sum(one.numInputRows for one in progress) == 5
    assert run_to_its_end(frame, checkpoint).batches == {}


@parity(1, 21)
def test_a_running_query_takes_what_arrives(source, bootstrap, topic, checkpoint):
    name = topic()
    with Query(earliest(source, name), checkpoint) as query:
        for low in (0, 3):
            produce(bootstrap, name, range(low, low + 3))
            assert query.until(low + 3) == expected(name, range(low + 3))


@parity(20, 29, 30)
@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 2),
        ({"minPartitions": 6}, 6),
        ({"minPartitions": 2}, 2),
        ({"maxRecordsPerPartition": 4}, 6),
        ({"maxRecordsPerPartition": 4, "minPartitions": 12}, 12),
        ({"maxRecordsPerPartition": 10, "minPartitions": 1}, 2),
    ],
)
def test_how_many_tasks_share_a_batch(source, bootstrap, topic, options, tasks):
    """An empty partition has none."""
    name = topic(3)
    produce(bootstrap, name, range(10), range(0), range(10))
    frame = source(stream=False, subscribe=name, **options)
    assert frame.rdd.getNumPartitions() == tasks
    assert frame.count() == 20


@parity(28, 32)
def test_headers_nulls_and_timestamps(source, bootstrap, topic):
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    headers = [("h", b"1"), ("n", None), ("h", b"2")]
    producer.produce(name, b"v", key=b"k", headers=headers, timestamp=at(0))
    producer.produce(name, None, timestamp=at(1))
    assert producer.flush(30) == 0

    rows = source(stream=False, subscribe=name, includeHeaders=True)
    first, second = rows.selectExpr("*", "unix_micros(timestamp) AS us").orderBy("offset").collect()

    assert (first["key"], first["value"], first["topic"]) == (b"k", b"v", name)
    assert [tuple(header) for header in first["headers"]] == headers
    assert (first["us"], first["timestampType"]) == (at(0) * 1000, 0)
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)


@parity(32, 37, 38)
def test_columns_are_those_of_sparks_source(source, topic):
    name = topic()
    assert source(stream=False, subscribe=name).schema == SPARKS_COLUMNS
    with_headers = source(stream=True, SUBSCRIBE=name, includeheaders="TRUE").schema
    assert with_headers == StructType([*SPARKS_COLUMNS.fields, SPARKS_HEADERS])


def failure(use: Callable[[], object]) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the text is what is under test
        use()
    return str(raised.value)


@parity(35)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 8}, "maxOffsetsPerTrigger=8 is less"),
        ({"startingOffsetsByTimestampStrategy": "soon"}, "allowed: error, latest"),
        ({"assign": '{"t": [0]}'}, "subscribe is given too"),
        ({"subscribe": " "}, "no topic is named"),
        ({"maxOffsetsPerTrigger": 0}, "it must be 1 or more"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(source, options, says):
    text = failure(lambda: source(stream=True, **{"subscribe": "t"} | options))
    assert "ConfigurationError" in text
    assert says in text


@parity(29)
@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
@pytest.mark.parametrize("value", [0, -1])
def test_no_tasks_are_refused(source, option, value):
    text = failure(lambda: source(stream=False, subscribe="t", **{option: value}))
    assert f"{option} cannot be used: it must be 1 or more" in text


@long
@parity(34)
def test_groups_and_javas_settings_are_accepted(source, bootstrap, topic, checkpoint):
    """The source joins no group. What was pasted from Spark's options loses nothing here."""
    name = topic()
    produce(bootstrap, name, range(3))
    frame = earliest(
        source,
        name,
        groupIdPrefix="mine",
        **{
            "kafka.group.id": "mine",
            "kafka.isolation.level": "read_committed",
            "kafka.max.poll.records": 500,
            "kafka.default.api.timeout.ms": 60000,
            "fetchOffset.numRetries": 3,
        },
    )
    assert run_to_its_end(frame, checkpoint).rows == expected(name, range(3))


@parity(36, 56)
@pytest.mark.parametrize(
    "option",
    ["enable.auto.commit", "auto.offset.reset", "interceptor.classes", "value.deserializer"],
)
def test_client_settings_that_the_source_sets_are_refused(source, topic, option):
    frame = source(stream=False, subscribe=topic(), **{f"kafka.{option}": "earliest"})
    assert "ConfigurationError" in (text := failure(frame.count))
    assert option in text


def test_a_missing_topic_arrives_whole(source, checkpoint):
    nobody = {"subscribe": "nobody-made-me"}
    for text in (
        failure(source(stream=False, **nobody).count),
        failure(lambda: run_to_its_end(source(stream=True, **nobody), checkpoint)),
    ):
        assert "MissingTopicError: A topic or partition to read does not exist." in text
        assert "where:  nobody-made-me" in text
        assert "cause:  " in text
        assert "look at: subscribe" in text


@parity(7)
def test_offsets_that_are_gone_arrive_whole(source, bootstrap, topic, checkpoint):
    name = topic()
    produce(bootstrap, name, range(5))
    frame = source(stream=True, subscribe=name, startingOffsets=json.dumps({name: {"0": 9}}))
    with pytest.raises(StreamingQueryException) as raised:
        run_to_its_end(frame, checkpoint)
    text = str(raised.value)
    assert "DataLossError: Records that the pipeline still has to read are gone" in text
    assert f"startingOffsets: {name}-0 holds [0, 5)" in text
    assert "look at: failOnDataLoss=true" in text
