"""What Spark's Kafka integration guide shows, with one word changed: each way to read, each way to
write, with no other option than the guide's.

A batch write needs a name and a folder besides: docs/own_query.md says why.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from connectors.spark.data_source import NAME
from connectors.testing.auditor.reader import read_committed
from tests.parity.query import Query, produce
from tests.tiers import long

parity = pytest.mark.parity
pytestmark = long


@pytest.fixture
def topics(topic, bootstrap) -> tuple[str, str]:
    """Two topics of two partitions, with 60 and 5 records in each."""
    one, two = topic(2, name="guide-one"), topic(2, name="guide-two")
    produce(bootstrap, one, range(60), range(60))
    produce(bootstrap, two, range(5), range(5))
    return one, two


#: The ways to name topics; `{}` are the test's.
WAYS = {
    "one": {"subscribe": "{one}"},
    "headers": {"subscribe": "{one}", "includeHeaders": "true"},
    "several": {"subscribe": "{one},{two}"},
    "pattern": {"subscribePattern": "({one}|{two}).*"},
}


def filled(options: dict[str, str], topics: tuple[str, str]) -> dict[str, str]:
    one, two = topics
    return {
        name: text.replace("{one}", one).replace("{two}", two) for name, text in options.items()
    }


@parity(1, 3, 32)
@pytest.mark.parametrize("way", WAYS)
def test_a_stream_reads(spark, bootstrap, topics, checkpoint, way):
    """By default from the latest offsets on: what is written before the start does not come."""
    reader = spark.readStream.format(NAME).option("kafka.bootstrap.servers", bootstrap)
    frame = reader.options(**filled(WAYS[way], topics)).load()
    assert ("headers" in frame.columns) == (way == "headers")
    with Query(frame, checkpoint) as query:
        query.until_it_has_begun()
        produce(bootstrap, topics[0], range(60, 70), range(60, 65))
        rows = query.until(15)
    assert sorted({offset for _, _, offset in rows}) == list(range(60, 70))


BATCHES: dict[str, tuple[dict[str, str], int]] = {
    "defaults": ({"subscribe": "{one}"}, 120),
    "offsets": (
        {
            "subscribe": "{one},{two}",
            "startingOffsets": '{"{one}":{"0":23,"1":-2},"{two}":{"0":-2,"1":-2}}',
            "endingOffsets": '{"{one}":{"0":50,"1":-1},"{two}":{"0":-1,"1":-1}}',
        },
        27 + 60 + 10,
    ),
    "pattern": (
        {
            "subscribePattern": "({one}|{two}).*",
            "startingOffsets": "earliest",
            "endingOffsets": "latest",
        },
        130,
    ),
}


@parity(43, 44)
@pytest.mark.parametrize("way", BATCHES)
def test_a_batch_reads(spark, bootstrap, topics, way):
    options, count = BATCHES[way]
    reader = spark.read.format(NAME).option("kafka.bootstrap.servers", bootstrap)
    assert reader.options(**filled(options, topics)).load().count() == count


def key_and_value(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")


def written(bootstrap: str, topic: str) -> list[int]:
    return sorted(int(one.value or b"") for one in read_committed(bootstrap, topic))


@parity(51, 61)
@pytest.mark.parametrize("way", ["option", "column"])
def test_a_stream_and_a_batch_write(
    spark, bootstrap, topics, topic, checkpoint, application_id, way
):
    """The topic is an option, or each row names its own."""
    streamed, saved = topic(name="streamed"), topic(name="saved")

    def to(frame: DataFrame, output: str) -> tuple[DataFrame, dict[str, Any]]:
        options = {"kafka.bootstrap.servers": bootstrap, "checkpointLocation": checkpoint}
        if way == "option":
            return key_and_value(frame), {**options, "topic": output}
        named = frame.withColumn("topic", lit(output))
        return named.selectExpr("topic", "CAST(key AS STRING)", "CAST(value AS STRING)"), options

    reads = {"kafka.bootstrap.servers": bootstrap, "subscribe": topics[1]}
    stream = spark.readStream.format(NAME).options(**reads, startingOffsets="earliest").load()
    frame, options = to(stream, streamed)
    query = frame.writeStream.format(NAME).options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    frame, options = to(spark.read.format(NAME).options(**reads).load(), saved)
    options["job.id"] = application_id
    frame.write.format(NAME).mode("append").options(**options).save()
    assert written(bootstrap, streamed) == written(bootstrap, saved) == sorted(2 * [*range(5)])
