"""A replay that makes the engine's state is compared with what was written (finding A5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from connectors.files import FileSink
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.postgres.copy_lines import LinesFingerprint, copy_lines
from connectors.records.fingerprint import Fingerprint
from connectors.spark import sink_stage
from connectors.spark.sink_stage import BatchOrder, SinkStage, has_fingerprint
from connectors.wal.write_ahead_writer import WriteAheadWriter
from tests.both_halves import KafkaBothHalves, both_halves, plain_writer
from transactions.committable import Committable
from transactions.errors import ReplayMismatchError
from transactions.healing import Replayed, check_replayed
from transactions.log_entries import (
    ACCEPT_LOSS,
    ACCEPT_STATE,
    REPLAY,
    Decision,
    Entry,
    Healed,
    Resolved,
    Settled,
)
from transactions.log_state import LogState
from transactions.sink import Owner

OWNER = Owner(application_id="app", log_id="log", run_epoch=1)
ROWS = pa.record_batch({"key": [b"a", b"b", b"a"], "value": [b"1", b"2", None]})
OTHERS = pa.record_batch({"key": [b"a", b"b", b"a"], "value": [b"1", b"2", b"3"]})


def wrote(subtask: int, count: int, fingerprint: str, sink: str = "out") -> Committable:
    return Committable(
        sink=sink,
        transactional_id=f"app.log.1.p.{subtask}",
        producer_id=1,
        producer_epoch=0,
        timeout_ms=60_000,
        checkpoint_id=7,
        subtask=subtask,
        attempt="1.1",
        token=f"7.{subtask}.{sink}",
        record_count=count,
        fingerprint=fingerprint,
    )


def decided(*committables: Committable, resolved: dict[str, str] | None = None) -> LogState:
    decision = Decision(
        checkpoint_id=7,
        query_id="q",
        generation=0,
        start_offsets=("a",),
        end_offsets=("b",),
        committables=committables,
    )
    return LogState(decision=decision, resolved=resolved or {})


def gave(subtask: int, count: int, fingerprint: str, sink: str = "out") -> Replayed:
    return Replayed(sink=sink, subtask=subtask, record_count=count, fingerprint=fingerprint)


SAME = [gave(0, 3, "aa"), gave(1, 0, "00"), gave(2, 0, "00")]
#: Subtask 1 carried offsets and no record, subtask 2 had nothing at all.
DECIDED = (wrote(0, 3, "aa"), wrote(1, 0, "00"))


def test_a_replay_that_gives_what_was_decided_passes():
    check_replayed(decided(*DECIDED), SAME)
    check_replayed(decided(*DECIDED), list(reversed(SAME)))
    check_replayed(LogState(), SAME)


@pytest.mark.parametrize(
    ("replayed", "why"),
    [
        ([gave(0, 4, "aa")], "4 records, 3 were decided"),
        ([gave(0, 3, "ab")], "as many records (3), but not the same"),
        ([gave(0, 0, "00")], "0 records, 3 were decided"),
        ([*SAME[:2], gave(2, 1, "cc")], "1 records, 0 were decided"),
        # Equal rows in other subtasks: as in healing, no proof.
        ([gave(0, 0, "00"), gave(1, 3, "aa")], "0 records, 3 were decided"),
    ],
)
def test_a5_a_replay_that_differs_stops_with_four_parts(replayed, why):
    with pytest.raises(ReplayMismatchError) as caught:
        check_replayed(decided(*DECIDED), replayed)
    assert why in caught.value.where
    assert "checkpoint 7" in caught.value.where
    assert "not deterministic" in caught.value.cause
    assert "--accept-state" in caught.value.option
    assert caught.value.permanent


@pytest.mark.parametrize("verdict", [ACCEPT_STATE, REPLAY, ACCEPT_LOSS])
def test_a_person_who_has_decided_is_believed(verdict):
    check_replayed(decided(*DECIDED, resolved={"7.0.out": verdict}), [gave(0, 9, "zz")])


def test_a_sink_that_cannot_be_compared_is_not():
    """At-least-once has nothing in the log; a sink of one's own may take no fingerprints."""
    check_replayed(decided(*DECIDED, wrote(0, 5, "ff", "own")), SAME)


def test_accepting_a_state_says_nothing_of_how_transactions_ended():
    """An unknown one may have been committed: taken for aborted, it would be written twice."""
    entry = Resolved(checkpoint_id=7, verdict=ACCEPT_STATE, tokens=("7.0.out",))
    state = after(decided(*DECIDED), entry)
    assert state.resolved == {"7.0.out": ACCEPT_STATE}
    assert state.ended == {}
    lost = after(state, dataclasses.replace(entry, verdict=ACCEPT_LOSS))
    assert lost.ended == {"7.0.out": ACCEPT_LOSS}


def test_what_was_healed_is_compared_with_what_heals_it():
    healed = wrote(0, 3, "aa")
    state = after(decided(*DECIDED), Healed(checkpoint_id=7, subtask=0, committable=healed))
    check_replayed(state, SAME)


@pytest.mark.parametrize("compacted", [False, True])
def test_what_is_settled_is_compared_too(compacted):
    """An operator, or the next start, ended the transactions before the engine replays."""
    state = after(decided(*DECIDED), Settled(checkpoint_id=7))
    if compacted:
        entry = Entry(
            sequence=3,
            application_id="app",
            log_id="log",
            nonce="n",
            written_at_ms=0,
            body=state.snapshot(),
        )
        state = LogState().after(Entry.from_bytes(entry.to_bytes(), where="here"))
    check_replayed(state, SAME)
    with pytest.raises(ReplayMismatchError, match="subtask 0"):
        check_replayed(state, [gave(0, 4, "aa"), *SAME[1:]])


def after(state: LogState, body: Any) -> LogState:
    return state.after(
        Entry(sequence=2, application_id="app", log_id="log", nonce="n", written_at_ms=0, body=body)
    )


# -- in the task -----------------------------------------------------------------------------------


class Context:
    """Spark's TaskContext of one subtask."""

    order: BatchOrder

    def __init__(self, subtask: int) -> None:
        self._subtask = subtask

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._subtask

    def taskAttemptId(self) -> int:  # noqa: N802
        return 1

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return self.order.to_json() if name == sink_stage.ORDER_PROPERTY else "7"


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the stage of one branch, into files, as Spark would; return its rows."""
    files = FileSink(path=str(tmp_path / "out"), name="out")
    sink = both_halves(files, checkpoint_timeout_s=10.0, schema=ROWS.schema)
    monkeypatch.setattr(sink_stage, "settle_worker_heap", lambda: None)

    def run(order: BatchOrder, batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for subtask, batch in enumerate(batches):
            context = Context(subtask)
            context.order = order
            monkeypatch.setattr(sink_stage.TaskContext, "get", lambda context=context: context)
            for rows in SinkStage(writers=(sink,), owner=OWNER)(iter([batch])):
                found += map(orjson.loads, rows.column(0).to_pylist())
        return found

    yield run
    sink.close()


def told(rows: Iterable[dict[str, Any]]) -> tuple[list[Committable], list[Replayed]]:
    written = [Committable.from_dict(one) for one in rows if "replayed" not in one]
    return written, [Replayed(**one["replayed"]) for one in rows if "replayed" in one]


ORDER = BatchOrder(checkpoint_id=7, write=True, source_offsets=({}, {}))
NOTHING = ROWS.slice(0, 0)


def test_a5_a_run_for_the_state_tells_what_it_gives_and_writes_nothing(stage, tmp_path):
    written, _ = told(stage(ORDER, [ROWS, NOTHING]))
    assert [one.subtask for one in written] == [0]
    files = sorted((tmp_path / "out").rglob("*"))
    again = dataclasses.replace(ORDER, write=False, compares=True)
    nothing, replayed = told(stage(again, [ROWS, NOTHING]))
    assert nothing == []
    assert [(one.subtask, one.record_count) for one in replayed] == [(0, 3), (1, 0)]
    check_replayed(decided(*written), replayed)
    with pytest.raises(ReplayMismatchError, match="as many records"):
        check_replayed(decided(*written), told(stage(again, [OTHERS, NOTHING]))[1])
    assert sorted((tmp_path / "out").rglob("*")) == files


def test_a5_a_heal_compares_the_subtasks_that_it_does_not_write(stage):
    written, _ = told(stage(ORDER, [ROWS, OTHERS]))
    heal = dataclasses.replace(ORDER, only=((0, 1),), compares=True)
    again, replayed = told(stage(heal, [ROWS, OTHERS]))
    assert [one.subtask for one in again] == [1]
    assert [one.subtask for one in replayed] == [0]
    check_replayed(decided(*written), replayed)
    with pytest.raises(ReplayMismatchError):
        check_replayed(decided(*written), told(stage(heal, [OTHERS, OTHERS]))[1])


def test_what_was_lost_is_written_again_with_the_offsets_that_were_decided():
    """This run would put offsets into the first sink; the run that decided put them elsewhere."""
    offsets = [{"in-0": 5}, {"in-1": 6}]
    order = dataclasses.replace(ORDER, source_offsets=tuple(offsets), offsets_sink=0)
    first = wrote(0, 3, "aa", "first")
    second = dataclasses.replace(wrote(1, 3, "bb", "second"), source_offsets={"in-1": 6})
    both = order.for_lost([first, second], ["first", "second"])
    assert (both.only, both.offsets_sink) == (((0, 0), (1, 1)), 1)
    assert both.source_offsets == ({}, {"in-1": 6})
    none = order.for_lost([first], ["first", "second"])
    assert (none.only, none.offsets_sink) == (((0, 0),), -1)
    without = dataclasses.replace(ORDER, offsets_sink=-1)
    assert without.for_lost([second], ["first", "second"]) == dataclasses.replace(
        both, only=((1, 1),)
    )


def test_a_plan_without_state_is_not_compared(stage):
    assert stage(dataclasses.replace(ORDER, write=False), [ROWS, NOTHING]) == []


def test_each_exactly_once_sink_can_be_compared():
    """As it counts what it writes; the others have nothing to compare with."""
    for topic in (None, "out"):
        options = KafkaSink(bootstrap_servers="b:1", topic=topic, name="out")
        kafka = KafkaBothHalves(options, timeout_ms=1, checkpoint_timeout_s=1.0)
        written, compared = Fingerprint(), kafka.new_fingerprint()
        written.add(ROWS, topic)
        compared.add(ROWS)
        assert (compared.count, compared.hex()) == (written.count, written.hex())
    lines, compared = LinesFingerprint(), LinesFingerprint()
    for one in copy_lines(ROWS):
        lines.add_texts(one)
    compared.add(ROWS)
    assert (compared.count, compared.hex()) == (lines.count, lines.hex()) != (0, "")
    assert has_fingerprint(WriteAheadWriter(name="out", buffer=Path("b"), start="0" * 8))
    plain = KafkaSink(bootstrap_servers="b:1", topic="out", guarantee="at-least-once")
    assert not has_fingerprint(plain_writer(plain, checkpoint_timeout_s=1.0))
