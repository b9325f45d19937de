"""Rows 1 to 12: how topics are named, and where a new query begins."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from tests.parity.query import Query, at, expected, produce, run_to_its_end
from tests.tiers import long, sampled

Source = Callable[..., DataFrame]
Topic = Callable[..., str]
parity = pytest.mark.parity

#: The ways of naming a topic with three partitions, by option, each with its row.
WAYS: dict[str, Callable[[str], str]] = {
    "subscribe": lambda topic: topic,
    "assign": lambda topic: json.dumps({topic: [0, 1, 2]}),
    "subscribePattern": lambda topic: f"{topic[:-1]}.",
}
MARKS = {
    "subscribe": [parity(1)],
    "assign": [parity(2), long],
    "subscribePattern": [parity(3), long],
}
way = pytest.mark.parametrize("way", [pytest.param(name, marks=MARKS[name]) for name in WAYS])
fail_on_data_loss = pytest.mark.parametrize("fail_on_data_loss", sampled(["true", "false"], "true"))


@pytest.fixture
def three(bootstrap: str, topic: Topic) -> str:
    """A topic with ten records in each of three partitions; offset n has the time `at(n)`."""
    name = topic(3)
    produce(bootstrap, name, *[range(10)] * 3)
    return name


def more(bootstrap: str, name: str) -> None:
    produce(bootstrap, name, *[range(10, 12)] * 3)


@parity(7)
@way
@fail_on_data_loss
def test_from_earliest(source: Source, three: str, checkpoint: str, way, fail_on_data_loss):
    frame = source(
        stream=True,
        **{way: WAYS[way](three)},
        startingOffsets="earliest",
        failOnDataLoss=fail_on_data_loss,
    )
    assert run_to_its_end(frame, checkpoint).rows == expected(three, *[range(10)] * 3)


@parity(7)
@way
@fail_on_data_loss
def test_from_latest(source, bootstrap, three, checkpoint, way, fail_on_data_loss):
    frame = source(stream=True, **{way: WAYS[way](three)}, failOnDataLoss=fail_on_data_loss)
    with Query(frame, checkpoint) as query:
        query.until_it_has_begun()
        more(bootstrap, three)
        assert query.until(6) == expected(three, *[range(10, 12)] * 3)


@parity(7)
@way
@fail_on_data_loss
def test_from_given_offsets(source, three, checkpoint, way, fail_on_data_loss):
    frame = source(
        stream=True,
        **{way: WAYS[way](three)},
        startingOffsets=json.dumps({three: {"0": 7, "1": -2, "2": -1}}),
        failOnDataLoss=fail_on_data_loss,
    )
    assert run_to_its_end(frame, checkpoint).rows == expected(three, range(7, 10), range(10))


@long
@parity(2)
@pytest.mark.parametrize("start", ["earliest", "json", "time"])
def test_some_partitions_of_a_topic(source, bootstrap, three, checkpoint, start):
    """Only they are named in JSON, and nothing of the others is read, at no time."""
    where = {
        "earliest": {"startingOffsets": "earliest"},
        "json": {"startingOffsets": json.dumps({three: {"0": 8, "2": -2}})},
        "time": {"startingTimestamp": at(8)},
    }[start]
    frame = source(stream=True, assign=json.dumps({three: [2, 0]}), **where)
    begins = {"earliest": (0, 0), "json": (8, 0), "time": (8, 8)}[start]
    ranges = (range(begins[0], 10), range(0), range(begins[1], 10))
    assert run_to_its_end(frame, checkpoint).rows == expected(three, *ranges)
    more(bootstrap, three)
    again = run_to_its_end(frame, checkpoint).rows
    assert again == expected(three, range(10, 12), range(0), range(10, 12))


@parity(2)
def test_a_partition_that_is_not_there_is_an_error(source, three, checkpoint):
    """Spark reads the others without a word."""
    frame = source(stream=True, assign=json.dumps({three: [0, 3]}))
    with pytest.raises(StreamingQueryException, match="A partition to read does not exist") as e:
        run_to_its_end(frame, checkpoint)
    assert f"where:  {three}-3" in str(e.value)


@parity(4, 7)
@way
@fail_on_data_loss
def test_from_a_timestamp_for_each_partition(source, three, checkpoint, way, fail_on_data_loss):
    """It wins over startingOffsets."""
    frame = source(
        stream=True,
        **{way: WAYS[way](three)},
        startingOffsetsByTimestamp=json.dumps({three: {"0": at(7), "1": 0, "2": at(9)}}),
        startingOffsets="latest",
        failOnDataLoss=fail_on_data_loss,
    )
    ranges = (range(7, 10), range(10), range(9, 10))
    assert run_to_its_end(frame, checkpoint).rows == expected(three, *ranges)


@parity(4)
@way
def test_from_one_timestamp_for_all(source, three, checkpoint, way):
    """It wins over both other options."""
    frame = source(
        stream=True,
        **{way: WAYS[way](three)},
        startingTimestamp=at(8),
        startingOffsetsByTimestamp=json.dumps({three: {"0": 1, "1": 1, "2": 1}}),
        startingOffsets="latest",
    )
    assert run_to_its_end(frame, checkpoint).rows == expected(three, *[range(8, 10)] * 3)


@parity(4)
def test_a_record_of_an_open_transaction_has_its_time_too(source, bootstrap, topic, checkpoint):
    """Spark's source with read_committed finds no record of that time, and fails."""
    name = topic()
    produce(bootstrap, name, range(3))
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"open-{name}"})
    writer.init_transactions(30)
    writer.begin_transaction()
    for offset in (3, 4):
        writer.produce(name, b"%d" % offset, timestamp=at(1000))
    assert writer.flush(30) == 0
    with Query(source(stream=True, subscribe=name, startingTimestamp=at(500)), checkpoint) as query:
        query.until_it_has_begun()
        assert query.rows == []
        writer.commit_transaction(30)
        assert query.until(2) == expected(name, range(3, 5))


@long
@parity(5)
@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_a_timestamp_after_the_last_record_is_an_error(source, three, checkpoint, option):
    time = (
        at(1000)
        if option == "startingTimestamp"
        else json.dumps({three: {str(p): at(1000) for p in range(3)}})
    )
    frame = source(stream=True, subscribe=three, **{option: time})
    with pytest.raises(StreamingQueryException, match="after the last record") as raised:
        run_to_its_end(frame, checkpoint)
    text = str(raised.value)
    assert f"{three}-0: no record since {at(1000)}" in text
    assert "startingOffsetsByTimestampStrategy=error" in text


@parity(5)
@pytest.mark.parametrize(
    "option",
    sampled(["startingTimestamp", "startingOffsetsByTimestamp"], "startingOffsetsByTimestamp"),
)
def test_a_timestamp_after_the_last_record_can_be_latest(
    source, bootstrap, three, checkpoint, option
):
    times = {"0": at(9), "1": at(1000), "2": at(1000)}
    by_partition = option == "startingOffsetsByTimestamp"
    frame = source(
        stream=True,
        subscribe=three,
        **{option: json.dumps({three: times}) if by_partition else at(1000)},
        startingOffsetsByTimestampStrategy="latest",
    )
    with Query(frame, checkpoint) as query:
        query.until_it_has_begun()
        more(bootstrap, three)
        first = range(9 if by_partition else 10, 12)
        ranges = (first, range(10, 12), range(10, 12))
        assert query.until(sum(map(len, ranges))) == expected(three, *ranges)


@parity(10)
@pytest.mark.parametrize("named", [["0", "1"], ["0", "1", "2", "3"]])
def test_json_names_exactly_the_partitions(source, three, checkpoint, named):
    frame = source(
        stream=True, subscribe=three, startingOffsets=json.dumps({three: dict.fromkeys(named, 1)})
    )
    with pytest.raises(StreamingQueryException, match="must name exactly the partitions"):
        run_to_its_end(frame, checkpoint)


@long
@parity(11)
def test_json_names_a_whole_topic(source, bootstrap, three, topic, checkpoint):
    other = topic(2)
    produce(bootstrap, other, *[range(5)] * 2)
    frame = source(
        stream=True,
        subscribe=f"{three},{other}",
        startingOffsets=json.dumps({three: "earliest", other: {"0": 3, "1": -1}}),
    )
    assert run_to_its_end(frame, checkpoint).rows == sorted(
        expected(three, *[range(10)] * 3) + expected(other, range(3, 5))
    )


@parity(12)
@pytest.mark.parametrize(
    "later",
    sampled(
        [
            {"startingOffsets": "earliest"},
            {"startingOffsets": "latest"},
            {"startingTimestamp": at(0)},
        ],
        {"startingOffsets": "earliest"},
    ),
)
def test_a_start_is_recorded(source, bootstrap, three, checkpoint, later):
    first = source(stream=True, subscribe=three, startingTimestamp=at(8))
    assert run_to_its_end(first, checkpoint).rows == expected(three, *[range(8, 10)] * 3)
    more(bootstrap, three)
    again = source(stream=True, subscribe=three, **later)
    assert run_to_its_end(again, checkpoint).rows == expected(three, *[range(10, 12)] * 3)


@parity(39)
@pytest.mark.parametrize("option", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(source, three, checkpoint, option):
    value = {
        "endingOffsets": "latest",
        "endingOffsetsByTimestamp": json.dumps({three: {"0": 1, "1": 1, "2": 1}}),
        "endingTimestamp": 1,
    }[option]
    frame = source(stream=True, subscribe=three, **{option: value})
    with pytest.raises(
        StreamingQueryException, match=f"{option} cannot be used: a stream has no end"
    ):
        run_to_its_end(frame, checkpoint)
