"""Somebody has a query of Spark's guide, and changes one word on each side. Their topic is written
all the time, nothing else is set, and the machine dies.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import pytest

from tests.integration.query_script import plain_spark
from tests.journeys.conftest import PARTITIONS, Process, Stranger
from tests.pages import block, replaced
from tests.tiers import long

BEGINS = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
flights = spark.readStream.format("kafka-exactly-once")
flights = flights.option("kafka.bootstrap.servers", "{}").options(**{}).load()
lines = flights.selectExpr("key", "CAST(value AS STRING) AS value")
"""
ENDS = "query.awaitTermination()\n"
#: It is stopped when it has written what is there.
STOPS = "query.processAllAvailable()\nquery.stop()\n"
NEW = "new:"


def one_word(stranger: Stranger, *, ends: str = ENDS, **source: str) -> Path:
    """Write the script: the page's own lines between a start and an end.

    Args:
        stranger: has the topics.
        ends: the last lines.
        source: options of the source; by default it reads the busy topic.
    """
    here = {
        "localhost:9092": stranger.bootstrap,
        '"topic", "lines"': f'"topic", "{stranger.output}"',
        "/data/lines": str(stranger.folder / "checkpoint"),
    }
    path = stranger.folder / "one_word.py"
    lines = block("README.md", 'it was "kafka"')
    assert lines == block("docs/own_query.md", 'it was "kafka"')
    page = replaced(lines, here)
    begins = BEGINS.format(stranger.bootstrap, source or {"subscribe": stranger.topic})
    path.write_text(begins + page + ends)
    return path


@pytest.mark.timeout(600)
def test_one_word_makes_a_query_exactly_once(stranger: Stranger):
    script = one_word(stranger)
    environment = plain_spark()
    with stranger.follows_output() as reader, contextlib.ExitStack() as writing:
        writing.enter_context(stranger.busy_topic())
        before = stranger.input_ends()
        with stranger.runs(script, **environment) as query:
            stranger.more_comes_out(reader, query, records=300)
            seen = stranger.input_ends()
            query.kill_all()
        with stranger.runs(script, **environment) as query:
            stranger.more_comes_out(reader, query)
            writing.close()
            stranger.comes_to(stranger.input_ends(), reader, query)
            assert_quiet(query)
    begins = {partition: range(before[partition], seen[partition]) for partition in before}
    stranger.assert_each_record_came_once(begins)


@long  # `unit/test_source_stream.py` plans batch 0 again in `make test`
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["batch_started", "decision_durable", "all_committed"])
@pytest.mark.parametrize("begins", ["latest", "pattern", "time", "times"])
def test_a_query_that_dies_in_its_first_batch_begins_where_it_began(
    stranger: Stranger, begins: str, point: str
):
    """By default it begins at `latest`, which has moved when the query is started again. So has a
    start at a time of which there is no record.
    """
    environment = plain_spark()
    with stranger.follows_output() as reader, contextlib.ExitStack() as writing:
        writing.enter_context(stranger.busy_topic())
        before = stranger.input_ends()
        script = one_word(stranger, **first_start(stranger, begins))
        with stranger.runs(script, SPARKONCE_CRASH_AT=f"{point}@0", **environment) as query:
            assert query.ends() == 1
        seen = stranger.input_ends()
        offsets = stranger.folder / "checkpoint/offsets/0"
        began = json.loads(offsets.read_text().splitlines()[-1])["initial offsets"][stranger.topic]
        assert not (stranger.folder / "checkpoint/commits/0").exists()
        with stranger.runs(script, **environment) as query:
            stranger.more_comes_out(reader, query)
            writing.close()
            stranger.comes_to(stranger.input_ends(), reader, query)
    for partition, at in before.items():
        first = began[str(partition)]
        of_old = begins == "times" and partition == 0  # from its first record on
        assert first == 0 if of_old else at <= first < seen[partition]
    stranger.assert_each_record_came_once({int(n): range(at, at + 1) for n, at in began.items()})


def first_start(stranger: Stranger, begins: str) -> dict[str, str]:
    """Return options of a source whose start is another place at each look.

    No record is as new as the time, so the start is the end of then.
    """
    all_of_it = {"subscribe": stranger.topic}
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    in_a_day = int(1000 * (time.time() + 86_400))
    return {
        "latest": all_of_it,
        "pattern": {"subscribePattern": f"{stranger.topic}.*"},
        "time": {**all_of_it, **latest, "startingTimestamp": str(in_a_day)},
        "times": {
            **all_of_it,
            **latest,
            "startingOffsetsByTimestamp": json.dumps({stranger.topic: {"0": 1, "1": in_a_day}}),
        },
    }[begins]


@long  # `unit/test_source_stream.py` has it in `make test`
@pytest.mark.timeout(600)
@pytest.mark.parametrize("by", ["subscribe", "assign"])
def test_a_topic_made_anew_between_two_starts_is_another_topic(stranger: Stranger, by: str):
    """It has grown past the offset of the query. A query that reads on there leaves its first
    records out, and nobody hears of it.
    """
    reads = {
        "subscribe": {"subscribe": stranger.topic},
        "assign": {"assign": json.dumps({stranger.topic: [*range(PARTITIONS)]})},
    }[by] | {"startingOffsets": "earliest"}
    environment = plain_spark()
    with stranger.busy_topic():
        pass
    with stranger.runs(one_word(stranger, ends=STOPS, **reads), **environment) as query:
        assert query.ends() == 0, query.text
    came, ends = stranger.numbers_in_output(), stranger.input_ends()
    stranger.delete_topic()
    stranger.create_topic()
    with stranger.busy_topic(NEW, begin_with=max(ends.values()) + 100):
        pass
    script = one_word(stranger, ends=STOPS, **reads)
    with stranger.runs(script, **environment) as query:
        assert query.ends() == 1, query.text
    for part in ("DataLossError", stranger.topic, "created again", "failOnDataLoss=true"):
        assert part in query.text, query.text
    assert stranger.numbers_in_output() == came
    assert stranger.numbers_in_output(NEW) == {}
    goes_on = one_word(stranger, ends=STOPS, failOnDataLoss="false", **reads)
    with stranger.runs(goes_on, **environment) as query:
        assert query.ends() == 0, query.text
    assert "failOnDataLoss=false, reading continues" in query.text
    assert stranger.numbers_in_output() == came
    stranger.assert_each_record_came_once()
    stranger.assert_each_record_came_once(mark=NEW)
    wrote = {at: len(numbers) for at, numbers in stranger.numbers_in_output(NEW).items()}
    assert wrote == stranger.input_ends()


def assert_quiet(query: Process) -> None:
    """What is said is Spark's, or our own warnings, each once; no stack trace."""
    assert "Traceback" not in query.text, query.text
    ours = [line for line in query.lines if "connectors." in line]
    assert len(ours) == len({*ours}) <= 5, query.text
