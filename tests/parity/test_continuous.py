"""The rows that mean something in the continuous mode, in that mode.

Options have Spark's names, as in a job file. What was read is in an output topic, so that each of
these tests is one of the mode's transactions too.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors import KafkaSink, KafkaSource
from connectors.spark.continuous_driver import ContinuousDriver
from connectors.testing.auditor.reader import Follower, read_committed
from tests.parity.continuous_query import (
    ContinuousQuery,
    made_large,
    no_value,
    one_column_more,
    place_and_value,
    with_partitions,
    with_topics,
)
from tests.parity.query import at, expected, produce
from tests.parity.test_topics_that_change import Topics, topics
from tests.parity.test_what_goes_wrong import NO_TIME, produce_at
from tests.parity.test_where_it_begins import WAYS, more, three
from tests.tiers import long, sampled
from transactions.errors import ConfigurationError, SparkOnceError

__all__ = ["three", "topics"]  # fixtures

Make = Callable[..., ContinuousQuery]
Topic = Callable[..., str]
NOW = "available-now"


def parity(*rows: int) -> pytest.MarkDecorator:
    return pytest.mark.parity(*rows, mode="continuous")


@pytest.fixture
def make(spark, bootstrap, topic, application_id, checkpoint) -> Iterator[Make]:
    """Make the next run of one pipeline, from options of the source."""
    output = topic(1, "out")
    sink = KafkaSink(bootstrap_servers=bootstrap, topic=output)
    with Follower(bootstrap, output) as follower:

        def run(
            *, trigger: str | None = None, transform: Any = place_and_value, **options: object
        ) -> ContinuousQuery:
            given = {name: str(value) for name, value in options.items()}
            source = KafkaSource.from_options({"kafka.bootstrap.servers": bootstrap, **given})
            names: dict[str, Any] = {"app": application_id, "checkpoint": checkpoint}
            names |= {"trigger": trigger, "transform": transform}
            return ContinuousQuery(spark, source, sink, follower=follower, **names)

        yield run


ROW_OF = {"subscribe": 1, "assign": 2, "subscribePattern": 3}

STARTS: list[tuple[dict[str, Any], list[range], tuple[int, ...]]] = [
    ({"startingOffsets": "earliest"}, [range(10)] * 3, ()),
    ({"startingOffsets": {"0": 7, "1": -2, "2": -1}}, [range(7, 10), range(10)], ()),
    (
        {"startingOffsetsByTimestamp": {"0": at(7), "1": 0, "2": at(9)}},
        [range(7, 10), range(10), range(9, 10)],
        (4,),
    ),
    ({"startingTimestamp": at(8)}, [range(8, 10)] * 3, (4,)),
]
CASES = [
    pytest.param(
        way,
        start,
        ranges,
        id=f"{way}-{next(iter(start))}-{number}",
        marks=[parity(ROW_OF[way], *rows), *([] if number == 0 and way == "assign" else [long])],
    )
    for way in WAYS
    for number, (start, ranges, rows) in enumerate(STARTS)
]


@pytest.mark.parametrize(("way", "start", "ranges"), CASES)
def test_from_each_start(make: Make, three: str, way, start, ranges):
    where = {
        name: json.dumps({three: value}) if isinstance(value, dict) else value
        for name, value in start.items()
    }
    query = make(trigger=NOW, **{way: WAYS[way](three)}, **where)
    assert query.runs_to_its_end() == expected(three, *ranges)


@long
@parity(7)
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("way", [pytest.param(way, marks=parity(ROW_OF[way])) for way in WAYS])
def test_from_latest(make: Make, bootstrap: str, three: str, way, fail_on_data_loss):
    with make(**{way: WAYS[way](three)}, failOnDataLoss=fail_on_data_loss) as query:
        more(bootstrap, three)
        query.until(6)
    assert query.rows == expected(three, *[range(10, 12)] * 3)


@long
@parity(18)
def test_available_now_reads_what_was_there_at_the_start(make: Make, bootstrap: str, three: str):
    """Records that come meanwhile may be read too; the next run reads those that were not."""
    with make(trigger=NOW, subscribe=three, startingOffsets="earliest") as query:
        more(bootstrap, three)
        assert query.driver.await_termination(120)
    first = query.rows
    assert {*expected(three, *[range(10)] * 3)} <= {*first}
    again = make(trigger=NOW, subscribe=three).runs_to_its_end()
    assert sorted(first + again) == expected(three, *[range(12)] * 3)


@long
@parity(2)
def test_some_partitions_of_a_topic(make: Make, bootstrap: str, three: str):
    reads = {"assign": json.dumps({three: [2, 0]}), "startingTimestamp": at(8)}
    first = make(trigger=NOW, **reads).runs_to_its_end()
    assert first == expected(three, range(8, 10), range(0), range(8, 10))
    more(bootstrap, three)
    again = make(trigger=NOW, **reads).runs_to_its_end()
    assert again == expected(three, range(10, 12), range(0), range(10, 12))


@long
@parity(5)
def test_a_timestamp_after_the_last_record(make: Make, bootstrap: str, three: str):
    with pytest.raises(SparkOnceError, match="after the last record"):
        make(subscribe=three, startingTimestamp=at(1000)).driver.start()
    reads = {"startingTimestamp": at(1000), "startingOffsetsByTimestampStrategy": "latest"}
    with make(subscribe=three, **reads) as query:
        more(bootstrap, three)
        query.until(6)
    assert query.rows == expected(three, *[range(10, 12)] * 3)


@long
@parity(10)
@pytest.mark.parametrize("named", [["0", "1"], ["0", "1", "2", "3"]])
def test_json_names_exactly_the_partitions(make: Make, three: str, named):
    start = json.dumps({three: dict.fromkeys(named, 1)})
    with pytest.raises(SparkOnceError, match="must name exactly the partitions"):
        make(subscribe=three, startingOffsets=start).driver.start()


@long
@parity(11)
def test_json_names_a_whole_topic(make: Make, bootstrap: str, three: str, topic: Topic):
    other = topic(2)
    produce(bootstrap, other, *[range(5)] * 2)
    start = json.dumps({three: "earliest", other: {"0": 3, "1": -1}})
    query = make(trigger=NOW, subscribe=f"{three},{other}", startingOffsets=start)
    assert query.runs_to_its_end() == sorted(
        expected(three, *[range(10)] * 3) + expected(other, range(3, 5))
    )


@parity(12)
@pytest.mark.parametrize("later", sampled(["earliest", "latest"], "latest"))
def test_a_start_is_recorded(make: Make, bootstrap: str, three: str, later: str):
    first = make(trigger=NOW, subscribe=three, startingTimestamp=at(8)).runs_to_its_end()
    assert first == expected(three, *[range(8, 10)] * 3)
    more(bootstrap, three)
    again = make(trigger=NOW, subscribe=three, startingOffsets=later).runs_to_its_end()
    assert again == expected(three, *[range(10, 12)] * 3)


@long
@parity(6, 63)
def test_a_partition_that_is_added_is_read_from_its_beginning(make: Make, topics: Topics):
    topics.make("a", range(3))
    with make(subscribe=topics.name("a"), startingOffsets="earliest") as query:
        query.until(3)
        topics.add_partition("a", 2)
        produce(topics.bootstrap, topics.name("a"), range(0), range(5))
        query.until(8)
    assert query.rows == expected(topics.name("a"), range(3), range(5))


@long
@parity(3)
@pytest.mark.parametrize("there", ["one topic", "none"])
def test_no_topic_at_first(make: Make, topics: Topics, there: str):
    """With latest by default; a topic that comes later is read from its beginning."""
    if there == "one topic":
        topics.make("a", range(2))
    with make(subscribePattern=topics.pattern) as query:
        topics.make("b", range(4))
        query.until(4)
    assert query.rows == expected(topics.name("b"), range(4))


@long
@parity(3)
def test_a_backfill_of_no_topic_ends(make: Make, topics: Topics):
    for _ in range(2):
        assert make(trigger=NOW, subscribePattern=topics.pattern).runs_to_its_end() == []
    topics.make("a", range(3))
    again = make(trigger=NOW, subscribePattern=topics.pattern).runs_to_its_end()
    assert again == expected(topics.name("a"), range(3))


@long
@parity(8)
def test_a_topic_that_is_deleted_is_data_loss(make: Make, topics: Topics):
    topics.make("a", range(3))
    topics.make("b", range(3))
    reads = {"subscribePattern": topics.pattern, "startingOffsets": "earliest"}
    query = make(**reads)
    query.driver.start()
    query.until(6)
    topics.delete("b")
    assert topics.name("b") in query.fails()


@long
@parity(8, 9, 41)
def test_the_others_go_on_without_a_deleted_topic(make: Make, topics: Topics):
    topics.make("a", range(3))
    topics.make("b", range(3))
    reads = {"subscribePattern": topics.pattern, "startingOffsets": "earliest"}
    with make(**reads, failOnDataLoss="false") as query:
        query.until(6)
        topics.delete("b")
        produce(topics.bootstrap, topics.name("a"), range(3, 8))
        query.until(11)
        # The task that held the deleted topic's partition gets one of these, and writes again.
        topics.add_partition("a", 2)
        produce(topics.bootstrap, topics.name("a"), (), range(4))
        topics.make("c", range(2))
        query.until(17)
    assert query.rows == sorted(
        expected(topics.name("a"), range(8), range(4))
        + expected(topics.name("b"), range(3))
        + expected(topics.name("c"), range(2))
    )


@long
@parity(8)
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_topic_made_anew_between_runs_is_another_topic(
    make: Make, topics: Topics, fail_on_data_loss: str
):
    topics.make("a", range(3))
    reads = {
        "subscribe": topics.name("a"),
        "startingOffsets": "earliest",
        "failOnDataLoss": fail_on_data_loss,
    }
    make(trigger=NOW, **reads).runs_to_its_end()
    topics.delete("a")
    topics.make("a", range(20))
    again = make(trigger=NOW, **reads)
    if fail_on_data_loss == "false":
        assert again.runs_to_its_end() == expected(topics.name("a"), range(20))
        return
    with pytest.raises(SparkOnceError, match="deleted and created again"):
        again.driver.start()


@long
@parity(26, 27)
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_records(make: Make, bootstrap: str, topic: Topic, isolation: str):
    """Five of them between others, and at the end only markers."""
    name = topic()
    produce(bootstrap, name, range(3))
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"aborts-{name}"})
    writer.init_transactions(30)
    writer.begin_transaction()
    for offset in range(3, 8):
        writer.produce(name, b"%d" % offset)
    assert writer.flush(30) == 0
    writer.abort_transaction(30)
    reads = {"subscribe": name, "startingOffsets": "earliest", "isolationLevel": isolation}
    seen = range(3) if isolation == "read_committed" else range(8)
    assert make(trigger=NOW, **reads).runs_to_its_end() == expected(name, seen)
    assert make(trigger=NOW, **reads).runs_to_its_end() == []


@long
@parity(28, 32, 58)
@pytest.mark.parametrize("included", [True, False])
def test_headers_and_nulls(spark, bootstrap, topic, application_id, checkpoint, included: bool):
    """A plain copy: by default without headers; duplicates keep their order."""
    source, output = topic(1, "in"), topic(1, "out")
    producer = Producer({"bootstrap.servers": bootstrap})
    headers = [("h", b"1"), ("n", None), ("h", b"2")]
    producer.produce(source, b"v", key=b"k", headers=headers, timestamp=at(0))
    producer.produce(source, None, timestamp=at(1))
    assert producer.flush(30) == 0
    reads = {"subscribe": source, "startingOffsets": "earliest"}
    if included:
        reads["includeHeaders"] = "true"
    ContinuousDriver(
        spark,
        app_id=application_id,
        checkpoint=checkpoint,
        source=KafkaSource.from_options({"kafka.bootstrap.servers": bootstrap, **reads}),
        sink=KafkaSink(bootstrap_servers=bootstrap, topic=output),
        trigger=NOW,
    ).run()
    first, second = read_committed(bootstrap, output)
    carried = tuple(headers) if included else ()
    assert (first.key, first.value, first.headers) == (b"k", b"v", carried)
    assert (second.key, second.value, second.headers) == (None, None, ())


@long
@parity(31)
def test_a_malformed_time_is_a_clear_error(make: Make, bootstrap: str, topic: Topic):
    name = topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
    produce(bootstrap, name, range(3))
    produce_at(bootstrap, name, NO_TIME)
    query = make(subscribe=name, startingOffsets="earliest")
    query.driver.start()
    assert "timestamp of a record is out of range" in query.fails()


@long
@parity(34, 37)
def test_groups_and_javas_settings_are_accepted(make: Make, bootstrap: str, topic: Topic):
    name = topic()
    produce(bootstrap, name, range(3))
    query = make(
        trigger=NOW,
        SUBSCRIBE=name,
        startingoffsets="EARLIEST",
        groupIdPrefix="mine",
        **{"kafka.group.id": "mine", "kafka.max.poll.records": 500},
    )
    assert query.runs_to_its_end() == expected(name, range(3))


@parity(35, 36, 39)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"assign": '{"t": [0]}'}, "subscribe is given too"),
        ({"kafka.enable.auto.commit": "true"}, "enable.auto.commit"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is an option of the micro-batch"),
        ({"minPartitions": "5"}, "minPartitions is an option of the micro-batch"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(make: Make, topic: Topic, options, says):
    with pytest.raises(ConfigurationError, match=says):
        make(**({"subscribe": topic()} | options)).driver.start()


@long
@parity(42)
def test_records_that_are_gone_cost_no_other_record(make: Make, bootstrap: str, topic: Topic):
    name = topic()
    produce(bootstrap, name, range(10))
    reads = {"subscribe": name, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    before = make(trigger=NOW, **reads).runs_to_its_end()
    produce(bootstrap, name, range(10, 100))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([TopicPartition(name, 0, 60)])[TopicPartition(name, 0)].result(30)
    produce(bootstrap, name, range(100, 110))
    rows = before + make(trigger=NOW, **reads).runs_to_its_end()
    assert rows == expected(name, range(10)) + [(name, 0, n) for n in range(60, 110)]


@long
@parity(55)
def test_an_unknown_topic_of_the_sink_is_an_error_at_the_start(
    spark, bootstrap, three, application_id, tmp_path: Path
):
    driver = ContinuousDriver(
        spark,
        app_id=application_id,
        checkpoint=tmp_path / "state",
        source=KafkaSource(bootstrap_servers=bootstrap, subscribe=three),
        sink=KafkaSink(bootstrap_servers=bootstrap, topic="nobody-made-me"),
    )
    with pytest.raises(SparkOnceError, match="nobody-made-me"):
        driver.start()


# --- the sink -------------------------------------------------------------------------------------

Write = Callable[..., None]


@pytest.fixture
def write(spark, bootstrap, topic, application_id, checkpoint) -> Write:
    """Write ten records through a function, to their end."""
    source = topic(2, "in")
    produce(bootstrap, source, range(5), range(5))

    def run(transform: Callable[..., Any], output: str | None, **kafka: str) -> None:
        ContinuousDriver(
            spark,
            app_id=application_id,
            checkpoint=checkpoint,
            source=KafkaSource(
                bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest"
            ),
            sink=KafkaSink(bootstrap_servers=bootstrap, topic=output, kafka=kafka),
            transform=transform,
            trigger=NOW,
            restart_strategy="none",
        ).run()

    return run


TEN = sorted([b"%d" % number for number in range(5)] * 2)


@long
@parity(51)
@pytest.mark.parametrize("by_option", [True, False])
def test_the_topic_from_an_option_or_a_column(write: Write, bootstrap, topic, by_option: bool):
    """The option wins."""
    output, other = topic(), topic()
    function = functools.partial(with_topics, topics=[other if by_option else output])
    write(function, output if by_option else None)
    assert sorted(one.value or b"" for one in read_committed(bootstrap, output)) == TEN
    assert read_committed(bootstrap, other) == []


@long
@parity(52)
def test_a_null_topic_is_an_error_at_that_row(write: Write, bootstrap, topic):
    output = topic()
    with pytest.raises(SparkOnceError, match="a row has no topic"):
        write(functools.partial(with_topics, topics=[output, output, None]), None)
    assert read_committed(bootstrap, output) == []


@long
@pytest.mark.parametrize(
    ("function", "says"),
    [
        pytest.param(no_value, "no column 'value'", marks=parity(53)),
        pytest.param(one_column_more, "no column 'colour'", marks=parity(54)),
    ],
)
def test_columns_that_the_sink_does_not_have_are_refused(
    write: Write, bootstrap, topic, function, says
):
    """Spark's sink leaves a column out that it does not know: here a function has made it."""
    output = topic()
    with pytest.raises(SparkOnceError, match=says):
        write(function, output)
    assert read_committed(bootstrap, output) == []


@parity(56)
@pytest.mark.parametrize("option", ["key.serializer", "value.serializer"])
def test_serializers_are_refused(write: Write, topic, option: str):
    with pytest.raises(ConfigurationError, match=f"kafka.{option}"):
        write(place_and_value, topic(), **{option: "x"})


@long
@parity(57)
def test_the_column_partition(write: Write, bootstrap, topic):
    output = topic(3)
    write(with_partitions, output)
    found = read_committed(bootstrap, output)
    assert sorted(one.value or b"" for one in found) == TEN
    assert all(one.partition == 2 for one in found if int(one.value or b"") < 3)
    assert len({one.partition for one in found if int(one.value or b"") >= 3}) == 1


@long
@parity(57)
def test_a_partition_that_is_not_there_is_an_error(write: Write, bootstrap, topic):
    output = topic(2)
    with pytest.raises(SparkOnceError, match=output):
        write(with_partitions, output)
    assert read_committed(bootstrap, output) == []


@long
@parity(60)
def test_more_than_the_buffer_holds(write: Write, bootstrap, topic):
    output = topic()
    write(made_large, output, **{"buffer.memory": "1048576"})
    assert [len(one.value or b"") for one in read_committed(bootstrap, output)] == [300_000] * 10
