"""Planning without a broker: offsets as text, admission control, ranges (P5, P12, P15)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kafka.source import source_planner
from connectors.kafka.source.batch_ranges import limit_offsets, plan_ranges, split_ranges
from connectors.kafka.source.offsets import (
    OffsetRange,
    flatten,
    format_offsets,
    nest,
    parse_offsets,
    split_key,
)
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.kafka_source import KafkaSource
from transactions.errors import (
    ConfigurationError,
    DataLossError,
    MissingTopicError,
    PhaseOneError,
)

topic_names = st.text("abc.-_09", min_size=1, max_size=8)
keys = st.builds("{}-{}".format, topic_names, st.integers(0, 30))
offset_maps = st.dictionaries(keys, st.integers(0, 2**63 - 1), max_size=8)
#: start and waiting records of each partition
loads = st.dictionaries(
    keys, st.tuples(st.integers(0, 2**40), st.integers(0, 10**6)), min_size=1, max_size=8
)
limits = st.one_of(st.integers(1, 10**6), st.just(2**63 - 1))


@given(offset_maps)
def test_offsets_survive_the_round_trip(flat: dict[str, int]) -> None:
    assert parse_offsets(format_offsets(flat)) == flat
    assert flatten(nest(flat)) == flat


@given(offset_maps, st.randoms(use_true_random=False))
def test_offsets_have_one_text_whatever_their_order(flat: dict[str, int], rng: Any) -> None:
    items = list(flat.items())
    rng.shuffle(items)

    assert format_offsets(dict(items)) == format_offsets(flat)
    assert json.dumps(nest(dict(items))) == json.dumps(nest(flat))


def test_partitions_are_ordered_by_number() -> None:
    flat = {"t-10": 1, "t-2": 2, "a.b-c-0": 3}

    assert format_offsets(flat) == '{"a.b-c":{"0":3},"t":{"2":2,"10":1}}'
    assert split_key("a.b-c-0") == ("a.b-c", 0)


def test_special_offsets_only_where_they_are_allowed() -> None:
    text = '{"t": {"0": -2, "1": -1, "2": 7}}'

    assert parse_offsets(text, special=True) == {"t-0": -2, "t-1": -1, "t-2": 7}
    with pytest.raises(ConfigurationError, match="not in the form"):
        parse_offsets(text)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"t": 5}', '{"t": {"x": 5}}', '{"t": {"0": "5"}}', '{"t": {"0": 1.5}}',
     '{"t": {"0": true}}', '{"t": {"-1": 5}}', '{"t": {"0": -3}}'],
)  # fmt: skip
def test_p15_malformed_offsets_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_offsets(text, special=True)

    assert raised.value.cause


def test_p5_uneven_partitions_as_in_sparks_suite() -> None:
    start = {"t-0": 0, "t-1": 0, "t-2": 0}
    latest = {"t-0": 101, "t-1": 11, "t-2": 1}

    first = limit_offsets(start, latest, 10)
    second = limit_offsets(first, latest, 10)

    assert first == {"t-0": 8, "t-1": 1, "t-2": 1}
    assert second == {"t-0": 17, "t-1": 2, "t-2": 1}


@given(loads, limits)
def test_p5_proportional_no_overflow_one_each(load: dict[str, tuple[int, int]], limit: int) -> None:
    start = {key: low for key, (low, _) in load.items()}
    latest = {key: low + size for key, (low, size) in load.items()}
    total = sum(size for _, size in load.values())

    end = limit_offsets(start, latest, limit)

    taken = {key: end[key] - start[key] for key in end}
    assert end.keys() == latest.keys()
    assert all(0 <= taken[key] <= size for key, (_, size) in load.items())
    assert all(taken[key] >= 1 for key, (_, size) in load.items() if size)
    assert sum(taken.values()) <= limit + len(load)  # one each may exceed it, as in Spark
    if total > limit:
        share = limit / total
        assert all(
            abs(taken[key] - size * share) <= 1 + size * share * 1e-9
            for key, (_, size) in load.items()
        )
    else:
        assert end == latest


@given(loads, st.integers(1, 10**4))
def test_p5_every_offset_is_read_once_and_the_loop_ends(
    load: dict[str, tuple[int, int]], limit: int
) -> None:
    start = {key: low for key, (low, _) in load.items()}
    latest = {key: low + size for key, (low, size) in load.items()}

    for _ in range(3):
        end = limit_offsets(start, latest, limit)
        for each in plan_ranges(start, end):
            assert start[f"{each.topic}-{each.partition}"] == each.start
        assert (end == start) == (start == latest)
        start = end


def test_equal_offsets_plan_nothing() -> None:
    assert plan_ranges({"t-0": 5}, {"t-0": 5}) == []


def test_p8_new_partition_starts_at_zero() -> None:
    assert plan_ranges({"t-0": 5}, {"t-0": 6, "t-1": 4}) == [
        OffsetRange("t", 0, 5, 6),
        OffsetRange("t", 1, 0, 4),
    ]


@given(
    loads, st.one_of(st.none(), st.integers(1, 64)), st.one_of(st.none(), st.integers(10**4, 10**7))
)
def test_p12_split_ranges_partition_the_input(
    load: dict[str, tuple[int, int]], wanted: int | None, most: int | None
) -> None:
    ranges = plan_ranges(
        {key: low for key, (low, _) in load.items()},
        {key: low + size for key, (low, size) in load.items()},
    )

    parts = split_ranges(ranges, wanted, most)
    assert most is None or all(part.end - part.start <= most for part in parts)

    merged: dict[tuple[str, int], list[OffsetRange]] = {}
    for part in parts:
        assert part.start < part.end
        merged.setdefault((part.topic, part.partition), []).append(part)
    assert len(merged) == len(ranges)
    for whole in ranges:
        pieces = merged[whole.topic, whole.partition]
        assert pieces[0].start == whole.start
        assert pieces[-1].end == whole.end
        assert all(a.end == b.start for a, b in pairwise(pieces))


class FakeCluster(SourcePlanner):
    """A planner whose broker is a dictionary: what partitions hold, and last stable offsets."""

    def __init__(
        self,
        holds: dict[str, tuple[int, int]],
        stable: dict[str, int] | None = None,
        ids: dict[str, str] | None = None,
        topics: Sequence[str] = (),
        **options: Any,
    ) -> None:
        topics = topics or sorted({split_key(key)[0] for key in holds}) or ["t"]
        named = {} if "subscribe_pattern" in options else {"subscribe": topics}
        super().__init__(KafkaSource(bootstrap_servers="b:1", **named, **options))
        self.holds = holds
        self.stable = stable or {}
        self.ids = ids or {}

    def topic_ids(self) -> dict[str, str]:
        return self.ids

    def partitions(self) -> list[str]:
        self._describe(self.source.topics)
        return list(self.holds)

    def _describe(self, topics: Any, **_: bool) -> dict[str, Any]:
        there = {topic: [] for topic in topics}
        for topic, partition in map(split_key, self.holds):
            if topic in there:
                there[topic].append(SimpleNamespace(id=partition))
        if not all(there.values()):
            raise MissingTopicError("A topic or partition to read does not exist.", where="t")
        return {topic: SimpleNamespace(partitions=found) for topic, found in there.items()}

    def _first_since(self, times: Any, isolation: str) -> dict[str, int]:
        """Offset n has the timestamp 1000 + n."""
        ends = self._list(times, source_planner.OffsetSpec.latest(), isolation)
        since = {key: max(self.holds[key][0], time - 1000) for key, time in times.items()}
        return {key: at if at < ends[key] else -1 for key, at in since.items()}

    def _list(self, keys: Any, spec: Any, isolation: str) -> dict[str, int]:
        if any(key not in self.holds for key in keys):
            raise MissingTopicError("A topic or partition to read does not exist.", where="t")
        if spec._value == source_planner.OffsetSpec.earliest()._value:
            return {key: self.holds[key][0] for key in keys}
        if isolation == "read_committed":
            return {key: self.stable.get(key, self.holds[key][1]) for key in keys}
        return {key: self.holds[key][1] for key in keys}


def test_p3_starting_offsets_are_resolved() -> None:
    holds = {"t-0": (3, 10), "t-1": (0, 4), "t-2": (1, 9)}
    stable = {"t-1": 2}
    json_text = '{"t": {"0": 5, "1": -1, "2": -2}}'

    assert FakeCluster(holds, stable).starting_offsets() == {"t-0": 10, "t-1": 2, "t-2": 9}
    assert FakeCluster(holds).starting_offsets("earliest") == {"t-0": 3, "t-1": 0, "t-2": 1}
    resolved = FakeCluster(holds, stable, starting_offsets=json_text).starting_offsets()
    assert resolved == {"t-0": 5, "t-1": 2, "t-2": 1}


def test_json_can_name_a_whole_topic() -> None:
    holds = {"t-0": (3, 10), "t-1": (0, 4), "u-0": (1, 9)}
    text = '{"t": "earliest", "u": {"0": 5}}'
    assert FakeCluster(holds, starting_offsets=text).starting_offsets() == {
        "t-0": 3,
        "t-1": 0,
        "u-0": 5,
    }
    text = '{"t": "Latest", "u": "earliest"}'
    assert FakeCluster(holds, {"t-1": 2}, starting_offsets=text).starting_offsets() == {
        "t-0": 10,
        "t-1": 2,
        "u-0": 1,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"t": "soon"}', "'soon' is not allowed there"),
        ('{"t": "earliest", "v": "latest"}', "topic 'v': it is not read"),
    ],
)
def test_json_with_a_wrong_word_or_topic_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        FakeCluster({"t-0": (0, 9)}, starting_offsets=text).starting_offsets()
    assert why in raised.value.cause


def test_a_read_begins_at_a_time_in_each_partition() -> None:
    holds = {"t-0": (3, 10), "t-1": (0, 4)}
    cluster = FakeCluster(holds, {"t-0": 5}, starting_timestamp=1003)
    assert cluster.starting_offsets() == {"t-0": 3, "t-1": 3}
    by_partition = '{"t": {"0": 1007, "1": 0}}'
    cluster = FakeCluster(holds, {"t-0": 5}, starting_offsets_by_timestamp=by_partition)
    assert cluster.starting_offsets() == {"t-0": 7, "t-1": 0}  # inside an open transaction too


def test_one_time_wins_over_times_by_partition_and_those_over_offsets() -> None:
    all_three = {
        "starting_timestamp": 1001,
        "starting_offsets_by_timestamp": '{"t": {"0": 1002}}',
        "starting_offsets": '{"t": {"0": 3}}',
    }
    for expected in (1, 2, 3):
        assert FakeCluster({"t-0": (0, 9)}, **all_three).starting_offsets() == {"t-0": expected}
        del all_three[next(iter(all_three))]


def test_a_time_after_the_last_record_is_an_error_unless_latest_is_wanted() -> None:
    holds = {"t-0": (3, 10), "t-1": (0, 4)}
    with pytest.raises(ConfigurationError, match="after the last record") as raised:
        FakeCluster(holds, starting_timestamp=1005).starting_offsets()
    assert raised.value.where == "t-1: no record since 1005"
    assert "startingTimestamp=1005" in raised.value.option
    lenient = FakeCluster(holds, starting_timestamp=1005, unmatched_timestamp="latest")
    assert lenient.starting_offsets() == {"t-0": 5, "t-1": 4}


def test_times_must_name_exactly_the_partitions() -> None:
    text = '{"t": {"0": 1000, "2": 1000}}'
    with pytest.raises(ConfigurationError, match="startingOffsetsByTimestamp must name") as raised:
        FakeCluster({"t-0": (0, 9)}, starting_offsets_by_timestamp=text).starting_offsets()
    assert raised.value.where == "not named: -; not there: t-2"


def test_a_batch_ends_before_a_time_and_at_the_end_where_nothing_is_later() -> None:
    holds = {"t-0": (0, 9), "t-1": (0, 4)}
    planner = FakeCluster(holds, starting_timestamp=1002, ending_timestamp=1005)
    assert planner.plan_batch() == [OffsetRange("t", 0, 2, 5), OffsetRange("t", 1, 2, 4)]


def test_a_batch_that_ends_at_an_earlier_time_is_refused() -> None:
    planner = FakeCluster({"t-0": (0, 9)}, starting_timestamp=1005, ending_timestamp=1002)
    with pytest.raises(ConfigurationError, match="backwards: t-0 begins at 5 and ends at 2") as e:
        planner.plan_batch()
    assert e.value.option == "startingTimestamp=1005, endingTimestamp=1002"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"t": {"0": 5}}', "not named: t-1; not there: -"),
        ('{"t": {"0": 5, "1": 5, "2": 5}}', "not named: -; not there: t-2"),
    ],
)
def test_p3_json_names_exactly_the_partitions(text: str, where: str) -> None:
    planner = FakeCluster({"t-0": (0, 9), "t-1": (0, 9)}, starting_offsets=text)

    with pytest.raises(ConfigurationError) as raised:
        planner.starting_offsets()

    assert raised.value.where == where


@pytest.mark.parametrize("offset", [2, 11])
def test_p3_json_offset_outside_of_the_partition(offset: int) -> None:
    text = f'{{"t": {{"0": {offset}}}}}'

    with pytest.raises(DataLossError, match="gone"):
        FakeCluster({"t-0": (3, 10)}, starting_offsets=text).starting_offsets()
    lenient = FakeCluster({"t-0": (3, 10)}, starting_offsets=text, fail_on_data_loss=False)
    assert lenient.starting_offsets() == {"t-0": min(max(offset, 3), 10)}


def test_start_inside_an_open_transaction_waits() -> None:
    planner = FakeCluster({"t-0": (0, 10)}, stable={"t-0": 4})

    assert planner.next_end({"t-0": 6}) == {"t-0": 6}


def test_p8_a_topic_that_ends_before_the_checkpoint_is_data_loss() -> None:
    with pytest.raises(DataLossError, match="gone") as raised:
        FakeCluster({"t-0": (0, 3)}).next_end({"t-0": 8})

    assert "t-0 ends at 3" in raised.value.where
    assert '{"t":{"0":8}}' in raised.value.where

    # It may have lost its end: reading it from 0 would repeat all of it. Whether it was made anew
    # its id tells, and no offset: see test_source_stream.
    lenient = FakeCluster({"t-0": (0, 3)}, fail_on_data_loss=False)
    assert lenient.next_end({"t-0": 8}) == {"t-0": 3}
    assert lenient.plan({"t-0": 8}, {"t-0": 3}) == []
    with pytest.raises(DataLossError, match="gone"):
        FakeCluster({"t-0": (0, 3)}).plan({"t-0": 8}, {"t-0": 3})


def test_a9_a_batch_is_not_read_backwards() -> None:
    def planner(start: int, end: int, stable: int = 9) -> FakeCluster:
        return FakeCluster(
            {"t-0": (0, 9)},
            {"t-0": stable},
            starting_offsets=f'{{"t": {{"0": {start}}}}}',
            ending_offsets=f'{{"t": {{"0": {end}}}}}',
        )

    with pytest.raises(ConfigurationError, match="backwards: t-0 begins at 5 and ends at 2") as e:
        planner(5, 2).plan_batch()
    assert e.value.where
    assert e.value.cause
    assert 'endingOffsets={"t": {"0": 2}}' in e.value.option
    assert plan_ranges({"t-0": 5}, {"t-0": 2}) == []
    assert planner(2, 5).plan_batch() == [OffsetRange("t", 0, 2, 5)]
    assert planner(5, 5).plan_batch() == []
    assert planner(5, -1, stable=3).plan_batch() == []  # an open transaction: nothing there yet


def test_p8_vanished_partition() -> None:
    start = {"t-0": 1, "t-1": 5}

    with pytest.raises(DataLossError, match="gone"):
        FakeCluster({"t-0": (0, 3)}).next_end(start)
    assert FakeCluster({"t-0": (0, 3)}, fail_on_data_loss=False).next_end(start) == {
        "t-0": 3,
        "t-1": 5,
    }


def test_p8_deleted_topic() -> None:
    with pytest.raises(MissingTopicError):
        FakeCluster({}).next_end({"t-0": 4})
    assert FakeCluster({}, fail_on_data_loss=False).next_end({"t-0": 4}) == {"t-0": 4}


def test_p8_deleted_topic_beside_another_one() -> None:
    """A client that is asked for partitions of a deleted topic waits for their leaders."""
    lenient = FakeCluster({"t-0": (0, 3), "u-0": (0, 5)}, fail_on_data_loss=False)
    del lenient.holds["t-0"]

    assert lenient.next_end({"t-0": 3, "u-0": 2}) == {"t-0": 3, "u-0": 5}


def test_p8_a_topic_that_is_deleted_between_two_steps_of_a_batch_is_looked_for_again() -> None:
    with pytest.raises(MissingTopicError):
        FakeCluster({}).plan({"t-0": 4}, {"t-0": 6})
    with pytest.raises(PhaseOneError, match="looks for it again"):
        FakeCluster({}, fail_on_data_loss=False).plan({"t-0": 4}, {"t-0": 6})


def test_p8_a_batch_of_an_earlier_run_goes_on_without_a_deleted_topic(caplog) -> None:
    """Else it would fail at every start: Spark runs it again, and nobody makes the topic anew."""
    left = FakeCluster({"u-0": (0, 9)}, fail_on_data_loss=False, topics=("t", "u"))
    start, end = {"t-0": 4, "u-0": 4}, {"t-0": 6, "u-0": 6}
    with pytest.raises(PhaseOneError, match="looks for it again") as raised:
        left.plan(start, end)
    assert raised.value.where == "t-0[4, 6)"
    assert left.plan(start, end, again=True) == [OffsetRange("u", 0, 4, 6)]
    assert left.plan({"t-0": 4}, {"t-0": 6}, again=True) == []
    assert "no longer there: t-0[4, 6)" in caplog.text
    with pytest.raises(MissingTopicError):
        FakeCluster({"u-0": (0, 9)}, topics=("t", "u")).plan(start, end, again=True)


def test_p9_retention_before_the_range() -> None:
    start, end = {"t-0": 1, "t-1": 0}, {"t-0": 8, "t-1": 4}
    holds = {"t-0": (5, 9), "t-1": (4, 4)}

    with pytest.raises(DataLossError, match="gone"):
        FakeCluster(holds).plan(start, end)
    lenient = FakeCluster(holds, fail_on_data_loss=False)
    assert lenient.plan(start, end) == [OffsetRange("t", 0, 5, 8)]


def test_p7_available_now_stops_at_its_ceiling() -> None:
    planner = FakeCluster({"t-0": (0, 20), "t-1": (0, 20)})
    ceiling = {"t-0": 15}

    assert planner.next_end({"t-0": 10}, ceiling) == {"t-0": 15}
    assert planner.next_end({"t-0": 15}, ceiling) == {"t-0": 15}


def test_p7_topic_recreated_during_available_now_fails_in_any_case() -> None:
    planner = FakeCluster({"t-0": (0, 3)}, fail_on_data_loss=False)

    with pytest.raises(DataLossError) as raised:
        planner.next_end({"t-0": 5}, {"t-0": 15})

    assert '{"t":{"0":3}}' in raised.value.where
    assert '{"t":{"0":15}}' in raised.value.where
