"""W1, W2: the columns that the sink takes, and the exact words for those that it does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors import KafkaSink
from connectors.spark.branches import make_branch, places_of_sources, unite
from connectors.spark.sink_stage import ROUTE
from transactions.errors import ConfigurationError

SINK = KafkaSink(bootstrap_servers="nowhere:9092", topic="out")
NO_TOPIC = KafkaSink(bootstrap_servers="nowhere:9092", name="out")

REFUSED = {
    "missing_value": ("SELECT 'k' AS key", SINK, "required column 'value' is missing"),
    "value_type": ("SELECT 1 AS value", SINK, "column 'value' has the type int"),
    "key_type": ("SELECT 1 AS key, 'v' AS value", SINK, "column 'key' has the type int"),
    "partition_type": (
        "SELECT 'p' AS partition, 'v' AS value",
        SINK,
        "column 'partition' has the type string",
    ),
    "topic_type": ("SELECT 1 AS topic, 'v' AS value", SINK, "column 'topic' has the type int"),
    "headers_type": ("SELECT 'h' AS headers, 'v' AS value", SINK, "'headers' has the type string"),
    "no_topic_at_all": ("SELECT 'v' AS value", NO_TOPIC, "A topic is needed"),
}


@pytest.mark.parametrize(("sql", "sink", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_w2_a_wrong_column_is_named(spark, sql, sink, words):
    with pytest.raises(ConfigurationError, match=words) as raised:
        make_branch(spark.sql(sql), sink)
    assert "sink 'out'" in str(raised.value)


def test_w1_the_topic_option_makes_the_column_stay_at_home(spark):
    frame = spark.sql("SELECT 't' AS topic, 'v' AS value")
    assert make_branch(frame, SINK).frame.columns == ["value"]
    assert make_branch(frame, NO_TOPIC).frame.columns == ["value", "topic"]


@pytest.mark.parity(54)
def test_other_columns_are_left_out_and_named(spark, caplog):
    """As Spark's own sink does, which says nothing."""
    frame = spark.sql("SELECT 'v' AS value, 1 AS offset, 0 AS timestampType")
    assert make_branch(frame, SINK).frame.columns == ["value"]
    (line,) = caplog.messages
    assert line.endswith("has no place for the columns offset, timestampType; they are not written")


@pytest.mark.parity(54)
def test_a_time_is_written_only_where_the_sink_says_so(spark, caplog):
    """A copied frame has the times of its source, and Kafka deletes old records by their time."""
    frame = spark.sql("SELECT 'v' AS value, current_timestamp() AS timestamp")
    assert make_branch(frame, SINK).frame.columns == ["value"]
    (line,) = caplog.messages
    assert "timestamp is not written" in line
    assert "writeTimestamp=true" in line
    writes = dataclasses.replace(SINK, write_timestamp=True)
    assert make_branch(frame, writes).frame.columns == ["value", "timestamp"]
    assert len(caplog.messages) == 1
    # Spark's sink does not look at the column, so its type does not matter either.
    text = spark.sql("SELECT 'v' AS value, 'noon' AS timestamp")
    assert make_branch(text, SINK).frame.columns == ["value"]
    with pytest.raises(ConfigurationError, match="'timestamp' has the type string"):
        make_branch(text, writes)


def test_strings_and_small_numbers_are_cast(spark):
    frame = spark.sql("SELECT 'k' AS key, 'v' AS value, CAST(1 AS SMALLINT) AS partition")
    types = dict(make_branch(frame, SINK).frame.dtypes)
    assert types == {"key": "binary", "value": "binary", "partition": "int"}


def test_several_branches_stand_in_struct_columns_beside_a_route(spark):
    one = make_branch(spark.sql("SELECT 'a' AS value"), SINK)
    other = make_branch(spark.sql("SELECT 'k' AS key, 'b' AS value"), SINK)
    rows = {row[ROUTE]: row for row in unite([one, other]).collect()}
    assert rows[0]["0"]["value"] == b"a"
    assert rows[0]["1"] is None
    assert (rows[1]["1"]["key"], rows[1]["1"]["value"]) == (b"k", b"b")


@pytest.mark.parametrize(
    ("query", "uses"),
    [
        ("SELECT value FROM counted", 1),
        ("SELECT value FROM counted UNION ALL SELECT value FROM counted", 2),
        ("WITH x AS (SELECT value FROM counted) SELECT value FROM x", 1),
        (
            "WITH x AS (SELECT value FROM counted) SELECT * FROM x UNION ALL SELECT * FROM x",
            1,
        ),
    ],
)
def test_the_uses_of_a_source_are_counted_as_spark_counts_them(
    spark: SparkSession, tmp_path: Path, query: str, uses: int
):
    """Its offsets have a line for each: another set of sinks needs another number."""
    counted = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    counted.createOrReplaceTempView("counted")
    frame = spark.sql(query)
    assert places_of_sources(frame) == uses
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path))
    running = writer.trigger(availableNow=True).foreachBatch(lambda *_: None).start()
    assert running.awaitTermination(60)
    lines = (tmp_path / "offsets" / "0").read_text().splitlines()
    assert len(lines) - 2 == uses
