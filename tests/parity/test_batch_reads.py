"""Rows 43 to 50: `spark.read`, which reads once between two places."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from tests.parity.query import at, expected, produce, rows_of
from tests.parity.test_micro_batches import failure
from tests.tiers import sampled

Source = Callable[..., DataFrame]
parity = pytest.mark.parity


@pytest.fixture
def two(bootstrap: str, topic: Callable[..., str]) -> str:
    """A topic with ten records in each of two partitions; offset n has the time `at(n)`."""
    name = topic(2)
    produce(bootstrap, name, *[range(10)] * 2)
    return name


def by_partition(topic: str, first: int, second: int) -> str:
    return json.dumps({topic: {"0": first, "1": second}})


@parity(43)
def test_from_earliest_to_latest_bound_late(source, bootstrap, two):
    frame = source(stream=False, subscribe=two)
    produce(bootstrap, two, range(10, 12))
    assert rows_of(frame) == expected(two, range(12), range(10))


@parity(48)
def test_a_frame_is_planned_at_its_first_use(source, bootstrap, two):
    """It differs: Spark keeps the plan of a data source in Python. Another `load` plans again."""
    frame = source(stream=False, subscribe=two)
    assert rows_of(frame) == expected(two, *[range(10)] * 2)
    produce(bootstrap, two, range(10, 12))
    assert rows_of(frame) == expected(two, *[range(10)] * 2)
    assert rows_of(source(stream=False, subscribe=two)) == expected(two, range(12), range(10))


def test_an_empty_topic_has_no_rows(source, topic):
    assert source(stream=False, subscribe=topic(2)).count() == 0


@parity(44)
def test_between_given_offsets(source, two):
    frame = source(
        stream=False,
        subscribe=two,
        startingOffsets=by_partition(two, 3, -2),
        endingOffsets=by_partition(two, 6, -1),
    )
    assert rows_of(frame) == expected(two, range(3, 6), range(10))


@parity(11)
def test_json_names_a_whole_topic(source, bootstrap, topic, two):
    other = topic(2)
    produce(bootstrap, other, *[range(5)] * 2)
    frame = source(
        stream=False,
        subscribe=f"{two},{other}",
        startingOffsets=json.dumps({two: "earliest", other: {"0": 3, "1": 1}}),
        endingOffsets=json.dumps({two: {"0": 6, "1": 4}, other: "latest"}),
    )
    assert rows_of(frame) == sorted(
        expected(two, range(6), range(4)) + expected(other, range(3, 5), range(1, 5))
    )


@parity(45)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"t": {"0": -1}}'),
        ("startingOffsets", '{"t": "latest"}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"t": {"0": -2}}'),
        ("endingOffsets", '{"t": "earliest"}'),
    ],
)
def test_it_begins_not_at_the_end_and_ends_not_at_the_beginning(source, option, value):
    text = failure(lambda: source(stream=False, subscribe="t", **{option: value}).count())
    assert f"{option} cannot be used" in text
    assert "not allowed" in text or "allowed: latest" in text


@parity(46)
@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": (5, 5), "endingOffsets": (5, 2)},
        {"startingTimestamp": at(5), "endingTimestamp": at(2)},
        {"startingTimestamp": at(5), "endingOffsets": (9, 2)},
    ],
)
def test_it_is_not_read_backwards(source, two, options):
    given = {
        name: by_partition(two, *value) if isinstance(value, tuple) else value
        for name, value in options.items()
    }
    text = failure(source(stream=False, subscribe=two, **given).count)
    assert "A batch cannot be read backwards" in text
    assert all(name in text for name in options)


#: The three ways to say where a read begins at 3, and ends before 7.
STARTS = {
    "startingTimestamp": at(3),
    "startingOffsetsByTimestamp": (at(3), at(3)),
    "startingOffsets": (3, 3),
}
ENDS = {
    "endingTimestamp": at(7),
    "endingOffsetsByTimestamp": (at(7), at(7)),
    "endingOffsets": (7, 7),
}


@parity(47)
@pytest.mark.parametrize(
    ("start", "end"),
    sampled(itertools.product(STARTS, ENDS), *zip(STARTS, ENDS, strict=True)),
)
def test_all_combinations_of_starts_and_ends(source, two, start, end):
    given = {
        name: by_partition(two, *value) if isinstance(value, tuple) else value
        for name, value in ((start, STARTS[start]), (end, ENDS[end]))
    }
    frame = source(stream=False, subscribe=two, **given)
    assert rows_of(frame) == expected(two, *[range(3, 7)] * 2)


@parity(47)
def test_one_timestamp_wins_over_timestamps_and_those_over_offsets(source, two):
    options = {
        "endingTimestamp": at(3),
        "endingOffsetsByTimestamp": by_partition(two, at(4), at(4)),
        "endingOffsets": by_partition(two, 5, 5),
    }
    for end in (3, 4, 5):
        frame = source(stream=False, subscribe=two, **options)
        assert rows_of(frame) == expected(two, *[range(end)] * 2)
        del options[next(iter(options))]


@parity(47)
def test_an_end_after_the_last_record_is_the_end(source, two):
    frame = source(stream=False, subscribe=two, startingTimestamp=at(8), endingTimestamp=at(1000))
    assert rows_of(frame) == expected(two, *[range(8, 10)] * 2)


#: A start that no record of partition 1 has, and none of both.
NO_MATCH = {
    "startingOffsetsByTimestamp": (at(8), at(1000)),
    "startingTimestamp": at(1000),
}


@parity(47)
@pytest.mark.parametrize("option", NO_MATCH)
@pytest.mark.parametrize("strategy", ["", "error", "latest"])
def test_a_start_after_the_last_record(source, two, option, strategy):
    value = NO_MATCH[option]
    given = {option: by_partition(two, *value) if isinstance(value, tuple) else value}
    if strategy:
        given["startingOffsetsByTimestampStrategy"] = strategy
    frame = source(stream=False, subscribe=two, **given)
    if strategy == "latest":
        first = range(8, 10) if isinstance(value, tuple) else range(0)
        assert rows_of(frame) == expected(two, first)
    else:
        text = failure(frame.count)
        assert "after the last record" in text
        assert f"{two}-1: no record since {at(1000)}" in text


@parity(10, 49)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets", "endingOffsetsByTimestamp"])
def test_both_places_name_all_partitions(source, two, option):
    frame = source(stream=False, subscribe=two, **{option: json.dumps({two: {"0": 5}})})
    assert f"{option} must name exactly the partitions" in failure(frame.count)


@parity(26, 27, 50)
@pytest.mark.parametrize("option", ["isolationLevel", "kafka.isolation.level"])
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_both_levels_of_isolation(source, bootstrap, topic, level, option):
    """Committed, aborted, committed, each larger than a fetch; markers lie between them."""
    name = topic()
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"batch-{name}"})
    writer.init_transactions(30)
    for number, end in enumerate(("commit", "abort", "commit")):
        writer.begin_transaction()
        for offset in range(3000):
            writer.produce(name, b"%d" % (3001 * number + offset))
        assert writer.flush(30) == 0  # an abort would drop what was not sent yet
        getattr(writer, f"{end}_transaction")(30)
    frame = source(stream=False, subscribe=name, **{option: level})
    numbers = (0, 2) if level == "read_committed" else (0, 1, 2)
    ranges = [range(3001 * number, 3001 * number + 3000) for number in numbers]
    assert rows_of(frame) == [(name, 0, offset) for one in ranges for offset in one]
