"""Rows 51 to 60: what the sink writes of a frame, and what it refuses.

`make test` proves the same on its parts (`integration/test_transactional_sink.py`,
`test_branches.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver
from connectors.spark.data_source import NAME
from connectors.spark.failures import error_in
from connectors.testing.auditor.reader import Record, read_committed
from tests.parity.query import at, produce
from tests.tiers import long
from transactions.errors import ConfigurationError, SparkOnceError

parity = pytest.mark.parity
pytestmark = long

Write = Callable[..., list[Record]]


@pytest.fixture(params=["driver", "query", "job"])
def write(request, spark, bootstrap, topic, application_id, tmp_path: Path) -> Write:
    """Write ten records through a frame that the test makes; return what a reader sees. There are
    three ways: a driver, a query with one word changed, a batch job with one word changed.
    """
    source = topic(2)
    produce(bootstrap, source, range(5), range(5))
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": source}
    checkpoint = str(tmp_path / "checkpoint")

    def by_driver(make: Callable[[DataFrame], DataFrame], options: dict[str, str]) -> None:
        driver = StreamingDriver(
            spark,
            app_id=application_id,
            checkpoint=checkpoint,
            trigger="available-now",
            restart_strategy="none",
        )
        reads = KafkaSource(
            bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest"
        )
        driver.write(make(driver.read(reads)), KafkaSink.from_options(options))
        driver.run()
        assert driver.query.lastProgress is not None

    def by_query(make: Callable[[DataFrame], DataFrame], options: dict[str, str]) -> None:
        rows = spark.readStream.format(NAME).options(**given, startingOffsets="earliest").load()
        writer = make(rows).writeStream.format(NAME).options(**options)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def by_job(make: Callable[[DataFrame], DataFrame], options: dict[str, str]) -> None:
        rows = spark.read.format(NAME).options(**given).load()
        writer = make(rows).write.format(NAME).mode("append").options(**options)
        writer.option("checkpointLocation", checkpoint).option("job.id", application_id).save()

    way = {"driver": by_driver, "query": by_query, "job": by_job}[request.param]

    def run(
        make: Callable[[DataFrame], DataFrame],
        output: str,
        *,
        named: str | None = None,
        **options: str,
    ) -> list[Record]:
        options = {"kafka.bootstrap.servers": bootstrap, **options}
        if named is not None:
            options["topic"] = named
        try:
            way(make, options)
        except PySparkException as error:
            raise error_in(str(error)) or error from None
        return read_committed(bootstrap, output)

    return run


def values(records: list[Record]) -> list[str]:
    return sorted((one.value or b"").decode() for one in records)


TEN = sorted(str(n) for n in (*range(5), *range(5)))


@parity(51)
@pytest.mark.parametrize("by", ["option", "column", "both"])
def test_the_topic_from_an_option_or_a_column(write, topic, by):
    """The option wins."""
    output, other = topic(), topic()
    column = {"option": "", "column": f"'{output}' AS topic", "both": f"'{other}' AS topic"}[by]
    expressions = ["value", *filter(None, [column])]
    named = None if by == "column" else output
    records = write(lambda rows: rows.selectExpr(*expressions), output, named=named)
    assert values(records) == TEN


@parity(52)
def test_a_null_topic_is_an_error_at_that_row(write, topic, bootstrap):
    output = topic()
    choice = f"CASE WHEN offset = 3 THEN NULL ELSE '{output}' END AS topic"
    with pytest.raises(SparkOnceError, match="a row has no topic, and the sink has no `topic`"):
        write(lambda rows: rows.selectExpr("value", choice), output)
    assert read_committed(bootstrap, output) == []


@parity(53)
@pytest.mark.parametrize(
    ("expressions", "says"),
    [
        (["key"], "required column 'value' is missing"),
        (["1 AS value"], "column 'value' has the type int"),
        (["value", "1 AS key"], "column 'key' has the type int"),
        (["value", "1 AS headers"], "column 'headers' has the type int"),
        (["value", "'1' AS partition"], "column 'partition' has the type string"),
    ],
)
def test_columns_are_checked_at_the_start(write, topic, expressions, says):
    with pytest.raises(ConfigurationError, match=says):
        write(lambda rows: rows.selectExpr(*expressions), "x", named=topic())


@parity(54)
def test_other_columns_are_ignored(write, topic):
    output = topic()
    records = write(lambda rows: rows.drop("partition"), output, named=output)
    assert values(records) == TEN


@parity(54)
@pytest.mark.parametrize("written", [False, True])
def test_the_time_of_a_record(write, topic, written):
    """The source's records are an hour old. Spark's sink leaves the column out."""
    output = topic()
    options = {"writeTimestamp": "true"} if written else {}
    records = write(lambda rows: rows.select("value", "timestamp"), output, named=output, **options)
    assert values(records) == TEN
    for one in records:
        old = one.timestamp == at(int(one.value or b""))
        assert old == written


@parity(55)
def test_an_unknown_topic_is_an_error_at_the_start(write):
    with pytest.raises(SparkOnceError, match="nobody-made-me"):
        write(lambda rows: rows.select("value"), "x", named="nobody-made-me")


@parity(56)
@pytest.mark.parametrize("option", ["kafka.key.serializer", "kafka.value.serializer"])
def test_serializers_are_refused(write, topic, option):
    with pytest.raises(ConfigurationError, match="serializer"):
        write(lambda rows: rows.select("value"), "x", named=topic(), **{option: "mine"})


@parity(57)
def test_the_column_partition(write, topic):
    """Null leaves the record to the partitioner, which follows the key."""
    output = topic(3)
    partition = "CASE WHEN offset < 3 THEN 2 END AS partition"
    records = write(
        lambda rows: rows.selectExpr("'k' AS key", "value", partition), output, named=output
    )
    assert values(records) == TEN
    assert all(one.partition == 2 for one in records if int(one.value or b"") < 3)
    assert len({one.partition for one in records if int(one.value or b"") >= 3}) == 1


@parity(57)
def test_a_partition_that_is_not_there_is_an_error(write, topic, bootstrap):
    output = topic(2)
    with pytest.raises(SparkOnceError):
        write(lambda rows: rows.selectExpr("value", "7 AS partition"), output, named=output)
    assert read_committed(bootstrap, output) == []


@parity(58)
def test_headers_are_written(write, topic):
    output = topic()
    headers = "array(named_struct('key', 'h', 'value', value)) AS headers"
    records = write(
        lambda rows: rows.selectExpr("value", headers), output, named=output, includeHeaders="true"
    )
    assert values(records) == TEN
    assert all(one.headers == (("h", one.value),) for one in records)


@parity(60)
def test_more_than_the_buffer_holds(write, topic):
    output = topic()
    big = "cast(repeat(cast(value AS string), 300000) AS binary) AS value"
    records = write(
        lambda rows: rows.selectExpr(big),
        output,
        named=output,
        **{"kafka.buffer.memory": "1048576"},
    )
    assert sorted(len(one.value or b"") for one in records) == [300_000] * 10


@parity(61)
def test_the_save_modes_of_a_batch(spark, bootstrap, topic, application_id, tmp_path):
    """A topic is appended to. Spark's own sink appends by default too; Spark itself demands the
    word "append" of a data source in Python.
    """
    output = topic()
    writer = spark.sql("SELECT '1' AS value").write.format(NAME)
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", output)
    writer = writer.option("checkpointLocation", str(tmp_path)).option("job.id", application_id)
    for mode, says in {
        "overwrite": "cannot be overwritten",
        "error": "Append.* or .*Overwrite",
        "ignore": "Append.* or .*Overwrite",
    }.items():
        with pytest.raises(PySparkException, match=says):
            writer.mode(mode).save()
    assert read_committed(bootstrap, output) == []
    writer.mode("append").save()
    assert values(read_committed(bootstrap, output)) == ["1"]
