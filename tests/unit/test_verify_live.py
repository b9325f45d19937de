"""`sparkonce verify` on topics that are written while it looks: which records must be there.

The cluster is a fake whose records can be looked at between two questions of the proof. The reader
of committed records is the product's own, behind the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from connectors.operations import bounded_scan, verify
from connectors.operations.bounded_scan import Range, Scanned
from connectors.operations.identity_search import Rows
from connectors.operations.record_identity import Identify
from connectors.operations.verdict import Verdict
from connectors.operations.verify_options import VerifyOptions
from tests.simulation.virtual_clock import VirtualClock
from transactions.clock import Deadline


@dataclass(frozen=True)
class Stored:
    """A consumed message; the key is its identity."""

    where: tuple[str, int]
    at: int
    number: int

    def topic(self) -> str:
        return self.where[0]

    def partition(self) -> int:
        return self.where[1]

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes:
        return b"%d" % self.number

    def value(self) -> bytes:
        return b"v"


class Cluster:
    """Topics `in` and `out`, as the numbers in each partition; `then` are steps of others.

    A step is done right before the first answer to a question, such as "ends of out 2": the second
    time that somebody asks where readers of `out` stop.
    """

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], list[int]] = {("in", 0): [], ("out", 0): []}
        self.hidden = 0  # records at the end of the input that an open transaction hides
        self.compact: set[str] = set()
        self.then: dict[str, Callable[[], object]] = {}
        self.asked: list[str] = []

    def write(self, topic: str, *numbers: int, partition: int = 0) -> None:
        self.logs.setdefault((topic, partition), []).extend(numbers)

    def both(self, *numbers: int) -> None:
        """A record comes, and the pipeline moves it."""
        self.write("in", *numbers)
        self.write("out", *numbers)

    def committed(self, topics: Sequence[str], _deadline: Deadline) -> list[Range]:
        for topic in topics:
            self._comes(f"ends of {topic}")
        return [
            Range(topic, partition, 0, len(log) - (self.hidden if topic == "in" else 0))
            for (topic, partition), log in sorted(self.logs.items())
            if topic in topics
        ]

    def log_ends(self, topics: Sequence[str], _deadline: Deadline) -> dict[str, int]:
        for topic in topics:
            self._comes(f"log of {topic}")
        return {f"{t}-{p}": len(log) for (t, p), log in self.logs.items() if t in topics}

    def compacted(self, topics: Sequence[str], _deadline: Deadline) -> list[str]:
        return [topic for topic in topics if topic in self.compact]

    def scan(
        self,
        _kafka: Mapping[str, str],
        ranges: Sequence[Range],
        identify: Identify,
        *,
        side: int,
        counted: Scanned,
        **_: Any,
    ) -> Iterator[Rows]:
        messages = [
            Stored((one.topic, one.partition), at, self.logs[one.topic, one.partition][at])
            for one in ranges
            for at in range(one.begin, one.end)
        ]
        yield bounded_scan._rows(messages, ranges, identify, side, counted)

    def _comes(self, question: str) -> None:
        self.asked.append(question)
        self.then.pop(f"{question} {self.asked.count(question)}", lambda: None)()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Ten records that came through."""
    made = Cluster()
    made.both(*range(10))
    monkeypatch.setattr(verify, "TopicEnds", lambda *_, **__: made)
    monkeypatch.setattr(verify, "scan", made.scan)
    return made


def judged(clock: VirtualClock | None = None, **changed: Any) -> Verdict:
    options: dict[str, Any] = {"kafka": {}, "inputs": ("in",), "outputs": ("out",), "key_id": "key"}
    return verify.verify(VerifyOptions(**(options | changed)), clock=clock or VirtualClock())


#: Between the end of what must be there, and the end of the output.
MEANWHILE = "ends of out 1"
#: Between the end of the output, and the end of what may be there.
AFTERWARDS = "ends of in 2"


def test_what_the_pipeline_moves_meanwhile_is_not_foreign(cluster: Cluster) -> None:
    """An input that is being written all the time."""
    cluster.then[MEANWHILE] = lambda: cluster.both(10, 11)
    verdict = judged()
    assert (verdict.anomalies, verdict.ok) == ({}, True)
    assert (verdict.records_in, verdict.records_late, verdict.records_out) == (10, 2, 12)


def test_what_it_has_not_moved_yet_is_not_lost(cluster: Cluster) -> None:
    """It came after the proof had begun."""
    cluster.then[MEANWHILE] = lambda: cluster.write("in", 10)
    cluster.then[AFTERWARDS] = lambda: cluster.write("in", 11)
    verdict = judged()
    assert (verdict.anomalies, verdict.records_late) == ({}, 2)


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ((10, 11, 11), "duplicated"),
        ((10, 11, 5), "duplicated"),
        ((10, 11, 77), "foreign"),
        ((10, 77, 11), "foreign"),
    ],
)
def test_a_fault_among_what_came_meanwhile_is_found(
    cluster: Cluster, output: tuple[int, ...], name: str
) -> None:
    def meanwhile() -> None:
        cluster.write("in", 10, 11)
        cluster.write("out", *output)

    cluster.then[MEANWHILE] = meanwhile
    assert judged().failures == {name: 1}


def test_a_loss_of_what_was_there_before_is_found(cluster: Cluster) -> None:
    """Later records came through: it is lost in the middle."""
    cluster.write("in", 10)
    cluster.then[MEANWHILE] = lambda: cluster.both(11, 12)
    verdict = judged()
    assert verdict.failures == {"lost in the middle": 1}
    (example,) = verdict.examples["lost in the middle"]
    assert str(example) == "in-0@10"


def test_a_record_that_came_after_both_ends_of_the_output_is_not_read(cluster: Cluster) -> None:
    """Between the last end and the reading."""
    cluster.then["ends of out 2"] = lambda: cluster.both(10)
    verdict = judged()
    assert (verdict.records_late, verdict.records_out) == (0, 10)
    assert verdict.still_growing == ("in-0", "out-0")


def test_topics_at_rest_are_proven_by_their_sums(cluster: Cluster) -> None:
    """Whole records need no search, and no space on the disk."""
    verdict = judged(key_id="record")
    assert (verdict.ok, verdict.searched) == (True, False)


def test_of_an_input_that_grows_sums_say_nothing(cluster: Cluster) -> None:
    """The output holds some of what came: the records themselves are compared."""
    cluster.then[MEANWHILE] = lambda: (cluster.both(10), cluster.write("in", 11))
    verdict = judged(key_id="record")
    assert (verdict.ok, verdict.searched) == (True, True)


def test_what_an_open_transaction_hid_at_first_may_come_out_meanwhile(cluster: Cluster) -> None:
    """It is decided, and moved, between the two ends of the input."""
    cluster.write("in", 10, 11)
    cluster.hidden = 2

    def meanwhile() -> None:
        cluster.hidden = 0
        cluster.write("out", 10)

    cluster.then[MEANWHILE] = meanwhile
    verdict = judged()
    assert (verdict.anomalies, verdict.records_in, verdict.records_late) == ({}, 10, 2)
    assert verdict.held_back == ("in-0: readers stop at 10, the log ends at 12",)


def test_a_partition_that_is_added_meanwhile_may_come_out(cluster: Cluster) -> None:
    """None of its records was there at first; the output may have a new one, too."""

    def meanwhile() -> None:
        cluster.write("in", 10, 11, partition=1)
        cluster.write("out", 10, partition=1)

    cluster.then[MEANWHILE] = meanwhile
    verdict = judged(ordered=True)
    assert (verdict.anomalies, verdict.records_late) == ({}, 2)
    assert judged(partitions=frozenset({"in-0"})).failures == {"foreign": 1}


@pytest.mark.parametrize("begin", [4, 10, 11])
def test_a_pipeline_that_began_later_owes_nothing_before(cluster: Cluster, begin: int) -> None:
    """Its first record may even have come after the proof began."""
    cluster.logs["out", 0] = [*range(begin, 10)]
    cluster.then[MEANWHILE] = lambda: cluster.write("in", 10, 11)
    cluster.then["log of out 1"] = lambda: cluster.write("out", 11)
    verdict = judged(begins={"in-0": begin})
    assert verdict.anomalies == {}
    assert verdict.records_in == 10 - min(begin, 10)


def test_what_a_pipeline_owes_since_its_later_begin_is_found(cluster: Cluster) -> None:
    cluster.logs["out", 0] = [*range(5, 10)]
    cluster.then[MEANWHILE] = lambda: cluster.both(10)
    assert judged(begins={"in-0": 4}).failures == {"lost in the middle": 1}


def test_an_identity_that_repeats_may_come_out_as_often_as_it_is_in_the_input_now(
    cluster: Cluster,
) -> None:
    """--allow-repeats: at least as often as at first, at most as often as now."""
    cluster.then[MEANWHILE] = lambda: cluster.both(3)
    assert judged(allow_repeats=True).ok


def test_an_identity_that_repeats_does_not_come_out_more_often(cluster: Cluster) -> None:
    cluster.then[MEANWHILE] = lambda: (cluster.both(3), cluster.write("out", 3))
    assert judged(allow_repeats=True).failures == {"duplicated": 1}


def test_an_identity_that_repeats_is_no_verdict(cluster: Cluster) -> None:
    """Without --allow-repeats each record must have one of its own, a late one too."""
    cluster.then[MEANWHILE] = lambda: cluster.write("in", 3)
    verdict = judged()
    assert (verdict.failures, verdict.uncompared) == ({"identity repeats": 2}, True)


# --- a pipeline that lags -------------------------------------------------------------------------


@pytest.mark.parametrize("visible", [(), (11,)], ids=["at the tail", "in the middle"])
def test_what_is_missing_may_still_come(cluster: Cluster, visible: tuple[int, ...]) -> None:
    """A batch is under way; readers may see one partition of it before the other ones."""
    cluster.write("in", 10)

    def meanwhile() -> None:
        cluster.write("in", 11)
        cluster.write("out", *visible)

    cluster.then[MEANWHILE] = meanwhile
    cluster.then["log of out 3"] = lambda: cluster.write("out", *({10, 11} - {*visible}))
    clock = VirtualClock()
    verdict = judged(clock)
    assert (verdict.anomalies, verdict.records_in, verdict.records_late) == ({}, 11, 1)
    assert 0 < clock.time < 10


def test_an_output_that_grows_without_its_input_is_waited_for(cluster: Cluster) -> None:
    """The writers have stopped; the pipeline has not come to their last records."""
    cluster.write("in", 10, 11)
    cluster.then["ends of out 2"] = lambda: cluster.write("out", 10)
    cluster.then["ends of out 4"] = lambda: cluster.write("out", 11)
    assert judged().ok


def test_what_does_not_come_in_time_is_lost(cluster: Cluster) -> None:
    """Only the writers go on."""
    cluster.write("in", 10)
    cluster.then[MEANWHILE] = lambda: cluster.write("in", 11)
    clock = VirtualClock()
    assert judged(clock, timeout=7.0).failures == {"lost at the tail": 1}
    assert 7.0 <= clock.time < 9.0


def test_topics_at_rest_are_not_waited_for(cluster: Cluster) -> None:
    """Nothing moves: what is missing does not come."""
    cluster.write("in", 10)
    clock = VirtualClock()
    assert judged(clock).failures == {"lost at the tail": 1}
    assert clock.time == 0


@pytest.mark.parametrize("fault", [5, 77], ids=["duplicate", "foreign"])
def test_no_time_heals_another_fault(cluster: Cluster, fault: int) -> None:
    """A loss beside it is not waited for."""
    cluster.write("in", 10)
    cluster.write("out", fault)
    cluster.then[MEANWHILE] = lambda: cluster.write("in", 11)
    clock = VirtualClock()
    assert len(judged(clock).failures) == 2
    assert clock.time == 0


def test_a_loss_that_is_allowed_is_not_waited_for(cluster: Cluster) -> None:
    """--allow-missing: the verdict is there."""
    cluster.write("in", 10)
    cluster.then[MEANWHILE] = lambda: cluster.write("in", 11)
    clock = VirtualClock()
    assert judged(clock, allow_missing=True).ok
    assert clock.time == 0


def test_topics_that_are_compacted_are_named(cluster: Cluster) -> None:
    """Nothing is wrong with them, but records may be gone on either side."""
    cluster.compact = {"out"}
    verdict = judged()
    assert (verdict.ok, verdict.compacted) == (True, ("out",))
