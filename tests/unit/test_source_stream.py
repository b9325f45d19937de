"""What a stream reads, without a broker: one start, and topics that stay the same (A1, A7)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from connectors.kafka.source.offsets import (
    INITIAL_OFFSETS,
    TOPIC_IDS,
    OffsetRange,
    flatten,
    format_offsets,
    parse_offsets,
    topic_ids_in,
)
from connectors.kafka.source.resting import read_now, some_rest, take_resting, was_read
from connectors.kafka.source.source_stream import SourceStream
from connectors.options.kafka_source import KafkaSource
from connectors.pipeline.starting_points import decide_start
from tests.unit.samples import decision
from tests.unit.test_source_planner import FakeCluster
from transactions.clock import SYSTEM_CLOCK
from transactions.decision_log import COMPACT_EVERY, DecisionLog, entry_name, read_log
from transactions.errors import (
    ConfigurationError,
    DataLossError,
    IdentityMismatchError,
    MissingTopicError,
    PhaseOneError,
)
from transactions.log_backend import MemoryBackend
from transactions.log_entries import Start

OLD, NEW, NEWER = {"t": "id-1"}, {"t": "id-2"}, {"t": "id-3"}
STARTED = json.dumps({"t": {"0": 0}, TOPIC_IDS: OLD})


def text(offsets: dict[str, Any]) -> str:
    """Return what PySpark gives Spark."""
    return json.dumps(offsets)


# --- A1: one start -------------------------------------------------------------------------------


def test_a1_a_topic_that_grows_has_one_start() -> None:
    """Spark asks twice: for the end of batch 0, and again when it plans it."""
    cluster = FakeCluster({"t-0": (0, 10)})
    stream = SourceStream(cluster)

    first = stream.initial()
    cluster.holds = {"t-0": (0, 12)}
    end = stream.next_end(first)
    cluster.holds = {"t-0": (0, 15)}

    assert stream.plan(stream.initial(), end) == [OffsetRange("t", 0, 10, 12)]


def test_a1_batch_0_of_a_query_without_a_driver_is_planned_again_from_the_same_place() -> None:
    """Spark stores the end of batch 0, and asks for its start again after a crash."""
    first = SourceStream(cluster := FakeCluster({"t-0": (0, 10)}))
    start = first.initial()
    cluster.holds = {"t-0": (0, 12)}
    end = json.loads(json.dumps(first.next_end(start)))

    again = SourceStream(FakeCluster({"t-0": (0, 15)}))
    assert again.plan(again.initial(), end) == [OffsetRange("t", 0, 10, 12)]
    assert again.next_end(end) == {"t": {"0": 15}}
    assert again.plan(end, {"t": {"0": 15}}) == [OffsetRange("t", 0, 12, 15)]
    lenient = SourceStream(FakeCluster({"t-0": (0, 15)}, fail_on_data_loss=False))
    assert lenient.plan(lenient.initial(), end) == [OffsetRange("t", 0, 10, 12)]


def test_a1_the_place_where_a_query_begins_is_in_no_later_batch() -> None:
    cluster = FakeCluster({"t-0": (0, 10)})
    stream = SourceStream(cluster)
    start = stream.initial()
    begun = {INITIAL_OFFSETS: {"t": {"0": 10}}}

    assert start == {"t": {"0": 10}} | begun
    assert text(stream.next_end(start)) == text(start)  # Spark runs batch 0 even if it is empty
    cluster.holds = {"t-0": (0, 12)}
    first = stream.next_end(start)
    assert first == {"t": {"0": 12}} | begun
    assert text(stream.next_end(first)) == text(first)  # the same text: nothing is new
    cluster.holds = {"t-0": (0, 13)}
    second = stream.next_end(first)
    assert second == {"t": {"0": 13}}
    assert text(stream.next_end(second)) == text(second)


@pytest.mark.parametrize("ends", [10, 12])
def test_a1_a_batch_0_that_another_source_has_planned_is_refused(ends: int) -> None:
    """Even where `latest` is at its end by now: its records would be left out in silence."""
    stream = SourceStream(FakeCluster({"t-0": (0, 12)}, fail_on_data_loss=False))
    with pytest.raises(ConfigurationError, match="does not say where it begins") as caught:
        stream.plan(stream.initial(), {"t": {"0": ends}})
    assert caught.value.where == f"batch 0, planned up to t-0: {ends}"
    assert caught.value.cause
    assert caught.value.option


def test_a1_an_empty_batch_0_is_planned_again_as_an_empty_one() -> None:
    first = SourceStream(FakeCluster({"t-0": (0, 10)}))
    empty = first.next_end(first.initial())

    again = SourceStream(FakeCluster({"t-0": (0, 15)}))
    assert again.plan(again.initial(), empty) == []
    end = again.next_end(empty)
    assert again.plan(empty, end) == [OffsetRange("t", 0, 10, 15)]


def test_a1_a_pattern_that_begins_without_a_topic_takes_the_first_one_from_its_begin() -> None:
    cluster = FakeCluster({}, subscribe_pattern="t.*")
    stream = SourceStream(cluster)
    start = stream.initial()
    empty = stream.next_end(start)
    cluster.holds = {"t-0": (0, 4)}

    again = SourceStream(cluster)
    assert again.plan(again.initial(), empty) == []
    end = again.next_end(empty)
    assert again.plan(empty, end) == [OffsetRange("t", 0, 0, 4)]


def test_a1_the_decided_start_wins() -> None:
    stream = SourceStream(FakeCluster({"t-0": (0, 15)}), '{"t":{"0":7}}')

    assert stream.initial() == {"t": {"0": 7}}


@pytest.mark.parametrize("lenient", [False, True])
def test_a_topic_that_is_left_out_keeps_its_offset_until_it_comes_back(lenient) -> None:
    start = {"t": {"0": 3}, "u": {"0": 5}}
    options = {"fail_on_data_loss": not lenient}
    one = SourceStream(FakeCluster({"t-0": (0, 9)}, **options), STARTED)
    end = one.next_end(start)
    assert flatten(end) == {"t-0": 9, "u-0": 5}
    assert one.plan(start, end) == [OffsetRange("t", 0, 3, 9)]
    assert one.partitions(start) == ["t-0"]

    both = SourceStream(FakeCluster({"t-0": (0, 9), "u-0": (0, 8)}, **options), STARTED)
    assert both.plan(end, both.next_end(end)) == [OffsetRange("u", 0, 5, 8)]


def test_a_batch_that_an_older_run_has_planned_with_a_topic_that_is_left_out() -> None:
    """It was fenced before the batch; with another next start Spark plans it again."""
    start, end = {"t": {"0": 3}, "u": {"0": 5}}, {"t": {"0": 9}, "u": {"0": 8}}
    for lenient in (False, True):
        cluster = FakeCluster({"t-0": (0, 9)}, fail_on_data_loss=not lenient)
        with pytest.raises(PhaseOneError, match="has left out") as raised:
            SourceStream(cluster, STARTED).plan(start, end)
        assert raised.value.where == "u-0"


def test_what_a_pipeline_read_by_its_identity() -> None:
    assert [was_read("a,b[0 2],pattern c.*%2Cx", one) for one in ("a", "b", "cd,x", "c", "d")] == [
        *(True, True, True),
        *(False, False),
    ]


def test_some_partitions_that_are_left_out_keep_their_offsets() -> None:
    start = {"t": {"0": 3, "1": 5}}
    source = KafkaSource(bootstrap_servers="b:1", assign='{"t": [0]}')
    assert read_now(source, ["t-0", "t-1", "u-0"]) == {"t-0"}
    offsets = flatten(start)
    assert take_resting(offsets, source, ["t-0"]) == {"t-1": 5}
    assert offsets == {"t-0": 3}
    assert some_rest([source], decision(3, end_offsets=(json.dumps(start),)))
    assert not some_rest([source], decision(3, end_offsets=('{"t": {"0": 3}}',)))
    assert not some_rest([source], None)


def test_a_topic_that_is_not_there_rests_too() -> None:
    source = KafkaSource(bootstrap_servers="b:1", subscribe="t, u")
    offsets = {"t-0": 3, "u-0": 5, "v-0": 1}
    assert take_resting(offsets, source, ["t-0"]) == {"u-0": 5, "v-0": 1}
    assert offsets == {"t-0": 3}
    assert take_resting(offsets, source, []) == {}, "it may be missing for a moment"


@pytest.mark.parametrize("lenient", [False, True])
def test_a_pattern_that_misses_a_topic_for_a_moment_reads_it_to_the_end_of_now(lenient) -> None:
    """A broker that starts does not list it yet: with Trigger.AvailableNow it was left out."""
    options = {"subscribe_pattern": "t.*", "fail_on_data_loss": not lenient}
    start = {"t": {"0": 3}, "tt": {"0": 5}}
    stream = SourceStream(cluster := FakeCluster({"t-0": (0, 10)}, **options), json.dumps(start))
    stream.stop_at_latest()
    if lenient:  # it is still missing
        assert stream.next_end(start) == {"t": {"0": 10}, "tt": {"0": 5}}
    cluster.holds = {"t-0": (0, 12), "tt-0": (0, 8), "t2-0": (0, 9)}
    end = stream.next_end(start)
    assert end == {"t": {"0": 10}, "tt": {"0": 8}}
    cluster.holds = {"t-0": (0, 14), "tt-0": (0, 9), "t2-0": (0, 9)}
    assert stream.next_end(end) == end, "the run ends"


# --- A7: a topic made anew -----------------------------------------------------------------------


def test_a7_a_topic_made_anew_that_has_grown_past_the_old_offset_is_data_loss() -> None:
    stream = SourceStream(FakeCluster({"t-0": (0, 50)}, ids=NEW), STARTED)

    for ask in (
        lambda: stream.next_end({"t": {"0": 20}}),
        lambda: stream.plan({"t": {"0": 20}}, {"t": {"0": 30}}),
        lambda: stream.partitions({"t": {"0": 20}}),
    ):
        with pytest.raises(DataLossError) as raised:
            ask()
        assert "t has the id id-2, it had id-1" in raised.value.where
        assert "created again" in raised.value.cause
        assert raised.value.option == "failOnDataLoss=true"


def test_a7_the_same_topic_goes_on_as_in_sparks_source() -> None:
    stream = SourceStream(FakeCluster({"t-0": (0, 50)}, ids=OLD), STARTED)

    assert stream.next_end({"t": {"0": 20}}) == {"t": {"0": 50}}
    assert stream.plan({"t": {"0": 20}}, {"t": {"0": 50}}) == [OffsetRange("t", 0, 20, 50)]


@pytest.mark.parametrize("old", [5, 50, 70])
def test_a7_without_fail_on_data_loss_the_new_topic_is_read_from_its_begin(
    old: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster({"t-0": (0, 50)}, ids=NEW, fail_on_data_loss=False)
    start = {"t": {"0": old, "1": 3}}

    end = SourceStream(cluster, STARTED).next_end(start, 30)
    replayed = SourceStream(cluster, STARTED)

    assert end == {"t": {"0": 30}, TOPIC_IDS: NEW}
    assert replayed.plan(start, end) == [OffsetRange("t", 0, 0, 30)]
    assert replayed.next_end(end) == {"t": {"0": 50}, TOPIC_IDS: NEW}
    assert replayed.plan(end, replayed.next_end(end)) == [OffsetRange("t", 0, 30, 50)]
    told = [one.getMessage() for one in caplog.records]
    assert sum("t has the id id-2, it had id-1" in one for one in told) == 1


def test_a7_a_batch_of_the_old_topic_is_not_replayed_on_the_new_one() -> None:
    cluster = FakeCluster({"t-0": (0, 50)}, ids=NEW, fail_on_data_loss=False)
    stream = SourceStream(cluster, STARTED)

    assert stream.plan({"t": {"0": 20}}, {"t": {"0": 30}}) == []
    end = stream.next_end({"t": {"0": 30}})
    assert stream.plan({"t": {"0": 30}}, end) == [OffsetRange("t", 0, 0, 50)]


def test_a7_made_anew_again_and_again() -> None:
    cluster = FakeCluster({"t-0": (0, 50)}, ids=NEWER, fail_on_data_loss=False)
    stream = SourceStream(cluster, STARTED)
    start = {"t": {"0": 30}, TOPIC_IDS: NEW}

    end = stream.next_end(start)

    assert end == {"t": {"0": 50}, TOPIC_IDS: NEWER}
    assert stream.plan(start, end) == [OffsetRange("t", 0, 0, 50)]


def test_a7_while_it_runs_and_during_available_now() -> None:
    cluster = FakeCluster({"t-0": (0, 50)}, ids=OLD)
    bounded = FakeCluster({"t-0": (0, 50)}, ids=OLD, fail_on_data_loss=False)
    stream, until = SourceStream(cluster), SourceStream(bounded)
    stream.initial()
    until.stop_at_latest()
    cluster.ids = bounded.ids = NEW

    with pytest.raises(DataLossError):
        stream.next_end({"t": {"0": 20}})
    with pytest.raises(DataLossError) as raised:
        until.next_end({"t": {"0": 20}})
    assert "trigger=availableNow" in raised.value.option
    with pytest.raises(PhaseOneError, match="created again"):
        until.partitions({"t": {"0": 20}})


def stored(offsets: dict[str, Any]) -> dict[str, Any]:
    """Return offsets as Spark gives them back at the next start."""
    found: dict[str, Any] = json.loads(text(offsets))
    return found


@pytest.mark.parametrize("lenient", [False, True])
def test_a7_without_a_driver_the_offsets_contain_the_ids(lenient: bool) -> None:
    """Each start is another object, which knows only what Spark has stored."""
    options = {"fail_on_data_loss": not lenient}
    first = SourceStream(cluster := FakeCluster({"t-0": (0, 10)}, ids=OLD, **options))
    start = first.initial()
    assert text(first.next_end(start)) == text(start)
    cluster.holds = {"t-0": (0, 12)}
    end = stored(first.next_end(start))
    assert end == {
        "t": {"0": 12},
        TOPIC_IDS: OLD,
        INITIAL_OFFSETS: {"t": {"0": 10}, TOPIC_IDS: OLD},
    }
    assert text(first.next_end(end)) == text(end)

    anew = SourceStream(FakeCluster({"t-0": (0, 50)}, ids=NEW, **options))
    if not lenient:
        for ask in (lambda: anew.next_end(end), lambda: anew.plan(anew.initial(), end)):
            with pytest.raises(DataLossError, match="gone"):
                ask()
        return
    later = stored(anew.next_end(end))
    assert later == {"t": {"0": 50}, TOPIC_IDS: NEW}
    for stream in (anew, SourceStream(FakeCluster({"t-0": (0, 70)}, ids=NEW, **options))):
        assert stream.plan(end, later) == [OffsetRange("t", 0, 0, 50)]
    assert anew.plan(anew.initial(), end) == [], "batch 0 is of the topic that is gone"


def test_a7_with_a_driver_the_offsets_are_those_of_sparks_source() -> None:
    """Its log has the ids."""
    stream = SourceStream(FakeCluster({"t-0": (0, 50)}, ids=OLD), STARTED)
    assert stream.initial() == {"t": {"0": 0}}
    assert stream.next_end({"t": {"0": 7}}) == {"t": {"0": 50}}


def test_a7_offsets_of_an_older_version_without_ids_go_on_and_get_them() -> None:
    """At once, also where a batch would wait: what is not stored is not known after a restart."""
    old = {"t": {"0": 20}}
    waits = {"min_offsets_per_trigger": 100}
    planned = SourceStream(FakeCluster({"t-0": (0, 50)}, ids=OLD))
    assert planned.plan(old, {"t": {"0": 30}}) == [OffsetRange("t", 0, 20, 30)]

    stream = SourceStream(FakeCluster({"t-0": (0, 20)}, ids=OLD, **waits))
    nothing = stored(stream.next_end(old))
    assert nothing == {"t": {"0": 20}, TOPIC_IDS: OLD}
    assert stream.plan(old, nothing) == []
    assert text(stream.next_end(nothing)) == text(nothing)

    first = SourceStream(FakeCluster({"t-0": (0, 50)}, ids=OLD))
    end = stored(first.next_end(old))
    assert end == {"t": {"0": 50}, TOPIC_IDS: OLD}
    for again in (first, SourceStream(FakeCluster({"t-0": (0, 60)}, ids=OLD))):
        assert again.plan(old, end) == [OffsetRange("t", 0, 20, 50)]


def test_a7_offsets_without_ids_while_their_topic_is_made_anew() -> None:
    """A run sees it that has seen the old one. Its next start sees only what is stored: a batch
    that keeps the old id comes before the first one of the new topic.
    """
    old = {"t": {"0": 20}}
    cluster = FakeCluster({"t-0": (0, 50)}, ids=OLD, fail_on_data_loss=False)
    stream = SourceStream(cluster)
    stream.plan({"t": {"0": 10}}, old)
    cluster.ids = NEW

    kept = stored(stream.next_end(old))
    assert kept == {"t": {"0": 20}, TOPIC_IDS: OLD}
    end = stored(stream.next_end(kept))
    assert end == {"t": {"0": 50}, TOPIC_IDS: NEW}
    for again in (stream, SourceStream(cluster)):
        assert again.plan(old, kept) == []
        assert again.plan(kept, end) == [OffsetRange("t", 0, 0, 50)]


def test_a_topic_that_comes_during_available_now_waits_for_the_next_run() -> None:
    """It has no ceiling; that is no other topic of the same name."""
    cluster = FakeCluster({"t-0": (0, 5)}, ids={"t": "1"}, subscribe_pattern="[tu]")
    stream = SourceStream(cluster, '{"t":{"0":3},"topic ids":{"t":"1"}}')
    stream.stop_at_latest()
    cluster.holds["u-0"] = (0, 4)
    cluster.ids["u"] = "2"
    assert stream.next_end(stream.initial())["t"] == {"0": 5}
    assert "u" not in stream.next_end(stream.initial())


def test_available_now_goes_on_without_a_missing_topic_and_says_so(caplog) -> None:
    """As every other trigger, with failOnDataLoss=false. It may be there again in a moment: then
    nothing else tells that this run leaves it out.
    """
    start = {"t": {"0": 4}, "u": {"0": 4}}
    holds = {"u-0": (0, 9)}
    gone = FakeCluster(holds, topics=["t", "u"], fail_on_data_loss=False)
    stream = SourceStream(gone, json.dumps(start))
    stream.stop_at_latest()
    assert "failOnDataLoss=false, reading continues: t (" in caplog.text
    assert stream.next_end(start) == {"t": {"0": 4}, "u": {"0": 9}}
    strict = SourceStream(FakeCluster(holds, topics=["t", "u"]), json.dumps(start))
    with pytest.raises(MissingTopicError):
        strict.stop_at_latest()


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_offsets_of_another_source_are_refused(fail_on_data_loss: bool) -> None:
    """Spark gives the sources of a query their offsets by place: two have changed places."""
    cluster = FakeCluster({"t-0": (0, 50)}, fail_on_data_loss=fail_on_data_loss)
    others = {"u": {"0": 7}}
    for ask in (
        lambda: SourceStream(cluster).next_end(others),
        lambda: SourceStream(cluster).plan(others, {"u": {"0": 9}}),
    ):
        with pytest.raises(ConfigurationError) as raised:
            ask()
        assert raised.value.where == "offsets of u; this source reads t"
    # A topic that is read no more is another matter: it is lost, or left out.
    both = {"t": {"0": 7}, "u": {"0": 7}}
    lenient = SourceStream(FakeCluster({"t-0": (0, 50)}, fail_on_data_loss=False))
    assert lenient.next_end(both) == {"t": {"0": 50}, "u": {"0": 7}}


def test_a7_a_deleted_topic_keeps_its_offset_and_its_id() -> None:
    stream = SourceStream(FakeCluster({}, fail_on_data_loss=False), STARTED)

    assert stream.next_end({"t": {"0": 4}}) == {"t": {"0": 4}}


def test_a7_a_deleted_topic_has_no_end_and_no_partitions_until_there_is_one_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Asked for the progress of a query, and for new partitions by the continuous mode."""
    start = {"t": {"0": 4}}
    strict = SourceStream(FakeCluster({}), STARTED)
    cluster = FakeCluster({}, ids=OLD, fail_on_data_loss=False)
    stream = SourceStream(cluster, STARTED)

    assert strict.latest() is None
    with pytest.raises(MissingTopicError):
        strict.partitions(start)
    for _ in range(2):
        assert stream.latest() is None
        assert stream.partitions(start) == []
    told = [one.getMessage() for one in caplog.records]
    assert sum("reading continues: t" in one for one in told) == 1
    cluster.holds, cluster.ids = {"t-0": (0, 2)}, NEW
    assert stream.latest() == {"t": {"0": 2}}
    with pytest.raises(PhaseOneError, match="created again"):
        stream.partitions(start)


def test_a_deleted_topic_hides_nothing_of_another_one() -> None:
    start = {"t": {"0": 4}, "u": {"0": 5}}
    holds = {"t-0": (0, 9), "u-0": (0, 9), "u-1": (0, 2)}
    cluster = FakeCluster(holds, ids={"u": "id-u"}, fail_on_data_loss=False)
    del holds["t-0"]
    stream = SourceStream(cluster, '{"t":{"0":1},"u":{"0":1},"topic ids":{"t":"id-t","u":"id-u"}}')

    assert stream.partitions(start) == ["u-0", "u-1"]
    cluster.ids = {"u": "another"}
    with pytest.raises(PhaseOneError, match="created again"):
        stream.partitions(start)


def test_brokers_that_know_no_ids_change_nothing() -> None:
    stream = SourceStream(FakeCluster({"t-0": (0, 50)}), '{"t":{"0":7}}')

    assert stream.next_end({"t": {"0": 7}}) == {"t": {"0": 50}}


# --- what the log keeps --------------------------------------------------------------------------


class Pipeline:
    """A pipeline that starts again and again, over a cluster that changes."""

    def __init__(self, *subscribed: str) -> None:
        self.backend = MemoryBackend()
        self.sources = [KafkaSource(bootstrap_servers="b:1", subscribe=one) for one in subscribed]
        self.holds = {"t-0": (0, 10), "u-0": (3, 20)}
        self.ids = {"t": "id-t", "u": "id-u"}
        self.asked = 0

    def cluster(self, source: KafkaSource) -> FakeCluster:
        self.asked += 1
        mine = {key: at for key, at in self.holds.items() if source.reads_topic(key[0])}
        mine = {key: mine[key] for key in source.assigned_names or mine}
        ids = {key[0]: self.ids[key[0]] for key in mine}
        options: dict[str, Any] = {"starting_offsets": source.starting_offsets}
        if source.subscribe_pattern is not None:
            options["subscribe_pattern"] = source.subscribe_pattern
        return FakeCluster(mine, ids=ids, **options)

    def start(self, *, begun: bool = False, **options: Any) -> list[dict[str, int]]:
        log = DecisionLog.open(self.backend, application_id="app", identity={})
        starts = decide_start(log, self.sources, begun=begun, planner_of=self.cluster, **options)
        assert read_log(self.backend).start == starts
        return [parse_offsets(one) for one in starts]


def test_a1_latest_is_looked_up_once_whatever_happens_before_the_first_checkpoint() -> None:
    pipeline = Pipeline("t", "u")

    first = pipeline.start()
    pipeline.holds = {"t-0": (5, 90), "t-1": (0, 4), "u-0": (9, 70)}

    assert first == [{"t-0": 10}, {"u-0": 20}]
    assert pipeline.start() == first
    assert pipeline.start(begun=True) == first
    assert pipeline.asked == 2


def test_a_topic_that_was_left_out_comes_back_with_the_id_it_had() -> None:
    """If it was made anew meanwhile, its offset is of another topic."""
    pipeline = Pipeline("t,u")
    pipeline.start()
    log = DecisionLog.open(pipeline.backend, application_id="app", identity={})
    log.decide(decision(0, end_offsets=('{"t":{"0":10},"u":{"0":20}}',), committables=()))
    pipeline.holds["v-0"], pipeline.ids = (0, 1), {"t": "id-t", "u": "anew", "v": "id-v"}
    for topics in ("t", "t,v", "t", "t,u,v", "t,u"):
        pipeline.sources = [KafkaSource(bootstrap_servers="b:1", subscribe=topics)]
        pipeline.start(begun=True)
        (start,) = read_log(pipeline.backend).start
        assert topic_ids_in(orjson.loads(start)).items() >= {"t": "id-t", "u": "id-u"}.items()
        assert parse_offsets(start) == {"t-0": 10, "u-0": 20}, "where a proof begins"
    stream = SourceStream(FakeCluster({"t-0": (0, 10), "u-0": (0, 90)}, ids=pipeline.ids), start)
    with pytest.raises(DataLossError, match="gone"):
        stream.next_end({"t": {"0": 10}, "u": {"0": 20}})


def test_a1_two_sources_of_one_topic_begin_where_each_says() -> None:
    pipeline = Pipeline("t", "t")
    earliest = KafkaSource(bootstrap_servers="b:1", subscribe="t", starting_offsets="earliest")
    pipeline.sources[1] = earliest

    assert pipeline.start() == [{"t-0": 10}, {"t-0": 0}]
    assert pipeline.start() == [{"t-0": 10}, {"t-0": 0}]


def test_a1_sources_that_change_places_keep_their_starts() -> None:
    pipeline = Pipeline("t", "u")
    pipeline.start()
    pipeline.sources.reverse()

    assert pipeline.start() == [{"u-0": 20}, {"t-0": 10}]


@pytest.mark.parametrize("pattern", [False, True])
def test_a_migrated_start_keeps_its_offsets_and_gets_ids(pattern: bool) -> None:
    """Spark's own source has none; `latest` of the pipeline is not looked up."""
    pipeline = Pipeline("t")
    if pattern:
        pipeline.sources = [KafkaSource(bootstrap_servers="b:1", subscribe_pattern="t")]
    begin_with(pipeline, '{"t":{"0":4}}', checkpoint="/nowhere")

    assert pipeline.start() == [{"t-0": 4}]
    assert topic_ids_in(orjson.loads(read_log(pipeline.backend).start[0])) == {"t": "id-t"}
    pipeline.ids["t"] = "another"
    assert pipeline.start() == [{"t-0": 4}]
    assert topic_ids_in(orjson.loads(read_log(pipeline.backend).start[0])) == {"t": "id-t"}
    assert pipeline.asked == 1


def test_migrated_sources_are_found_by_their_topics() -> None:
    pipeline = Pipeline("u", "t")
    begin_with(pipeline, '{"t":{"0":4}}', '{"u":{"0":5}}', checkpoint="/nowhere")

    assert pipeline.start() == [{"u-0": 5}, {"t-0": 4}]
    pipeline = Pipeline("t,u")
    begin_with(pipeline, '{"t":{"0":4}}', '{"u":{"0":5}}', checkpoint="/nowhere")
    with pytest.raises(IdentityMismatchError, match="sources of the pipeline have changed"):
        pipeline.start()


def test_the_query_of_a_migration_must_not_go_on_before_the_first_checkpoint(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline("t")
    begin_with(pipeline, '{"t":{"0":4}}', checkpoint=str(tmp_path))
    with pytest.raises(ConfigurationError, match="went on after its migration"):
        pipeline.start()

    log = DecisionLog.open(pipeline.backend, application_id="app", identity={})
    log.decide(decision(0))
    assert pipeline.start() == [{"t-0": 4}]


def begin_with(pipeline: Pipeline, *starts: str, checkpoint: str) -> None:
    """Begin the log as `sparkonce migrate` does; no batch of the query is in the folder now."""
    said = f'{{"checkpoint":"{checkpoint}","batch":1,"planned":1}}'
    backend = pipeline.backend
    log = DecisionLog(backend, read_log(backend), application_id="app", clock=SYSTEM_CLOCK)
    log.begin(Start(sources=starts, asked=(said,) * len(starts)))


def test_a_pattern_that_began_with_no_topic_is_not_looked_up_again() -> None:
    """A topic that appears before the first checkpoint is read from 0, not from its end."""
    pipeline = Pipeline()
    pipeline.sources = [KafkaSource(bootstrap_servers="b:1", subscribe_pattern="[tu]")]
    holds, pipeline.holds = pipeline.holds, {}
    assert pipeline.start() == [{}]
    pipeline.holds = holds
    assert pipeline.start() == [{}]
    (start,) = read_log(pipeline.backend).start
    stream = SourceStream(FakeCluster(holds, ids=NEW, subscribe_pattern="[tu]"), start)
    assert stream.initial() == {}
    assert parse_offsets(json.dumps(stream.next_end({}))) == {"t-0": 10, "u-0": 20}


def test_a_pattern_begins_where_the_log_says() -> None:
    pipeline = Pipeline()
    pipeline.sources = [KafkaSource(bootstrap_servers="b:1", subscribe_pattern="[tu]")]
    assert pipeline.start() == [{"t-0": 10, "u-0": 20}]
    pipeline.holds["t-0"] = (0, 90)
    pipeline.holds["w-0"] = (0, 1)
    assert pipeline.start() == [{"t-0": 10, "u-0": 20}]


def test_the_offsets_of_a_pattern_contain_the_ids_of_all_its_topics() -> None:
    """The log knows those of the start only; another topic can come later, and be made anew."""
    cluster = FakeCluster({"t-0": (0, 5)}, ids={"t": "1"}, subscribe_pattern="[tu]")
    stream = SourceStream(cluster, '{"t":{"0":3},"topic ids":{"t":"1"}}')
    assert stream.initial() == {"t": {"0": 3}, TOPIC_IDS: {"t": "1"}}
    cluster.holds["u-0"] = (0, 4)
    cluster.ids["u"] = "2"
    end = stream.next_end(stream.next_end(stream.initial()))
    assert end == {"t": {"0": 5}, "u": {"0": 4}, TOPIC_IDS: {"t": "1", "u": "2"}}
    cluster.ids["u"] = "3"
    cluster.holds["u-0"] = (0, 50)
    later = SourceStream(cluster, '{"t":{"0":3},"topic ids":{"t":"1"}}')
    with pytest.raises(DataLossError, match="gone"):
        later.next_end(end)


def test_a_topic_of_a_pattern_that_is_gone_is_data_loss() -> None:
    start = '{"t":{"0":3},"u":{"0":3}}'
    left = {"t-0": (0, 5)}
    strict = SourceStream(FakeCluster(left, subscribe_pattern="[tu]"), start)
    for ask in (strict.partitions, strict.next_end):
        with pytest.raises(DataLossError) as raised:
            ask(json.loads(start))
        assert "no longer there: u-0" in raised.value.where
    cluster = FakeCluster(left, subscribe_pattern="[tu]", fail_on_data_loss=False)
    lenient = SourceStream(cluster, start)
    assert lenient.partitions(json.loads(start)) == ["t-0"]
    assert lenient.next_end(json.loads(start)) == {"t": {"0": 5}, "u": {"0": 3}}


def test_sources_of_some_partitions_keep_their_starts_when_they_change_places() -> None:
    pipeline = Pipeline()
    pipeline.holds = {"t-0": (0, 10), "t-1": (0, 20)}
    for number in (0, 1):
        source = KafkaSource(bootstrap_servers="b:1", assign={"t": [number]})
        pipeline.sources.append(source)
    assert pipeline.start() == [{"t-0": 10}, {"t-1": 20}]
    pipeline.sources.reverse()
    assert pipeline.start() == [{"t-1": 20}, {"t-0": 10}]


def test_a1_sources_that_share_their_topics_out_anew_are_refused() -> None:
    pipeline = Pipeline("t", "u")
    pipeline.start()
    pipeline.sources = Pipeline("t,u").sources

    with pytest.raises(IdentityMismatchError) as raised:
        pipeline.start()
    assert raised.value.option == "subscribe=t,u"


def test_a1_a_batch_0_that_an_older_version_has_planned_is_never_begun_behind_its_end() -> None:
    assert Pipeline("t,u").start(planned={"t-0": 8, "u-0": 90}) == [{"t-0": 8, "u-0": 20}]


def test_a7_a_checkpoint_of_an_older_version_gets_its_ids_at_the_first_start() -> None:
    pipeline = Pipeline("t")

    assert pipeline.start(begun=True) == [{}]
    pipeline.ids = {"t": "id-2"}
    pipeline.start(begun=True)

    assert json.loads(read_log(pipeline.backend).start[0]) == {TOPIC_IDS: {"t": "id-t"}}


def test_a7_a_savepoint_without_a_topic_keeps_what_is_known_of_the_others() -> None:
    """A proof begins where the reading began (`operations.pipeline_start`)."""
    pipeline = Pipeline("t,u")
    pipeline.start()
    pipeline.sources = Pipeline("u").sources
    pipeline.ids = {"u": "id-2"}

    pipeline.start(begun=True)

    known = {"u": {"0": 20}, TOPIC_IDS: {"u": "id-u"}}
    assert json.loads(read_log(pipeline.backend).start[0]) == known


# --- an option that came too late ----------------------------------------------------------------


def with_start(pipeline: Pipeline, said: str | None) -> Pipeline:
    source = pipeline.sources[0]
    pipeline.sources[0] = dataclasses.replace(source, starting_offsets=said)
    return pipeline


@pytest.mark.parametrize("begun", [False, True])
def test_a_start_that_is_asked_for_too_late_is_said_in_one_line(caplog, begun: bool) -> None:
    """Reading began elsewhere; the option has no effect on a pipeline that the log knows."""
    pipeline = with_start(Pipeline("t", "u"), "latest")
    pipeline.start()
    assert caplog.messages == []

    with_start(pipeline, "earliest").start(begun=begun)

    (line,) = caplog.messages
    assert line == (
        "startingOffsets=earliest is not used for t: the decision log says that the "
        'reading began at latest ({"t":{"0":10}}). To start again, use another checkpoint, with '
        "another app_id or --accept-duplicates"
    )


def test_the_line_comes_until_the_option_is_put_back(caplog) -> None:
    pipeline = with_start(Pipeline("t"), None)
    pipeline.start()  # latest, by default
    for said, lines in (("earliest", 1), ("earliest", 2), ("latest", 2), (None, 2)):
        with_start(pipeline, said).start(begun=True)
        assert len(caplog.messages) == lines


def test_the_same_start_in_other_words_is_no_change(caplog) -> None:
    pipeline = with_start(Pipeline("t"), '{"t": {"0": 5}}')
    pipeline.start()
    with_start(pipeline, ' {"t":{"0":5}}').start(begun=True)
    assert caplog.messages == []
    for lines, said in enumerate(('{"t": {"0": 6}}', '{"t": '), 1):
        with_start(pipeline, said).start(begun=True)
        assert len(caplog.messages) == lines


def test_what_was_asked_for_outlives_a_compaction(caplog) -> None:
    pipeline = with_start(Pipeline("t"), "latest")
    pipeline.start()
    for _ in range(COMPACT_EVERY):
        DecisionLog.open(pipeline.backend, application_id="app", identity={})
    assert pipeline.backend.get(entry_name(2)) is None

    with_start(pipeline, "earliest").start(begun=True)

    assert len(caplog.messages) == 1


def test_a_log_of_an_older_version_does_not_know_what_was_asked_for(caplog) -> None:
    """So nobody can say whether it has changed."""
    pipeline = Pipeline("t")
    log = DecisionLog.open(pipeline.backend, application_id="app", identity={})
    log.begin(Start(sources=(format_offsets({"t-0": 4}, {"t": "id-t"}),)))
    assert "asked" not in json.loads(pipeline.backend.get(entry_name(2)))["body"]

    assert with_start(pipeline, "earliest").start() == [{"t-0": 4}]

    assert caplog.messages == []


def test_sources_that_change_places_keep_what_they_asked_for(caplog) -> None:
    pipeline = with_start(Pipeline("t", "u"), "earliest")
    pipeline.start()
    pipeline.sources.reverse()
    pipeline.start(begun=True)
    assert caplog.messages == []
    with_start(pipeline, "earliest").start(begun=True)
    assert "for u: the decision log says that the reading began at latest" in caplog.text
