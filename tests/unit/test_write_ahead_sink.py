"""The write-ahead sink without a coordinator: both phases, the order, and what an order stops at.

The target is a file of JSON lines that the test reads itself; the marks and buffers are real files.
Flink's `WriteAheadSinkTestBase` is F52; what it does not test (a send that is refused, a job that
is submitted again) is here too.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
import logging
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.records.row_fingerprint import RowFingerprint
from connectors.wal import (
    FileCheckpointCommitter,
    SQLiteCheckpointCommitter,
    SQLiteWriteAheadSink,
    StdOutWriteAheadSink,
    WriteAheadSink,
)
from connectors.wal.record_buffer import (
    BufferCorruptedError,
    PreparedBuffer,
    RecordBuffer,
    read_seal,
    whole_batches,
)
from tests.both_halves import both_halves
from tests.simulation.virtual_clock import VirtualClock
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import (
    ConfigurationError,
    DeliveryError,
    PhaseOneError,
    RecordRefusedError,
)
from transactions.sink import Attempt, Owner

COMMITTED, ALREADY = Outcome.COMMITTED, Outcome.ALREADY_COMMITTED
ABORTED, UNKNOWN = Outcome.ABORTED, Outcome.UNKNOWN
OWNER = Owner(application_id="app", log_id="log", run_epoch=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinesSink(WriteAheadSink):
    """Appends each row to a file; `faults` holds the answers that it gives instead of True."""

    target: Path
    faults: list[object] = dataclasses.field(default_factory=list)

    def send_values(
        self,
        records: Iterator[pa.RecordBatch],
        *,
        checkpoint_id: int,
        subtask: int,
        timestamp_ms: int,
    ) -> bool:
        if self.faults and (fault := self.faults.pop(0)) is not True:
            if isinstance(fault, Exception):
                raise fault
            return False
        assert timestamp_ms > 1_600_000_000_000
        with self.target.open("a") as file:
            for batch in records:
                for row in batch.to_pylist():
                    file.write(json.dumps([checkpoint_id, subtask, row["n"]]) + "\n")
        return True


@pytest.fixture
def options(tmp_path: Path) -> LinesSink:
    return described(tmp_path)


@pytest.fixture
def sink(options: LinesSink) -> Iterator[Any]:
    made = both_halves(options)
    yield made
    made.close()


def described(folder: Path) -> LinesSink:
    """The sink as a new submission of the job describes it."""
    marks = FileCheckpointCommitter(folder / "marks")
    return LinesSink(
        name="out", buffer=folder / "buffer", committer=marks, target=folder / "target.jsonl"
    )


def make(folder: Path) -> Any:
    """The sink as a new submission of the job opens it."""
    return both_halves(described(folder))


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def attempt(checkpoint: int, subtask: int = 0, owner: Owner = OWNER) -> Attempt:
    run = owner.run_epoch
    return Attempt(
        owner=owner,
        checkpoint_id=checkpoint,
        subtask=subtask,
        attempt_id=f"{run}.{checkpoint}.{subtask}",
        source_offsets={f"in-{subtask}": 10 * checkpoint},
    )


def prepare(
    sink: Any, checkpoint: int, *numbers: int, subtask: int = 0, owner: Owner = OWNER
) -> Committable:
    """Phase 1 on a worker: the writer comes there pickled."""
    there = pickle.loads(pickle.dumps(sink._writer))
    transaction = there.begin_transaction(attempt(checkpoint, subtask, owner))
    for number in numbers:
        there.invoke(transaction, rows(number))
    committable = there.pre_commit(transaction)
    assert committable is not None
    return Committable.from_json(committable.to_json())


def commit(sink: Any, *ones: Committable, seconds: float = 10) -> list[Outcome]:
    outcomes = sink.commit(ones, Deadline(seconds))
    return [outcomes[one.token] for one in ones]


def sent(sink: Any) -> list[int]:
    """What a reader of the target sees."""
    target = Path(sink.buffer).with_name("target.jsonl")
    if not target.exists():
        return []
    return [json.loads(line)[2] for line in target.read_text().splitlines()]


def buffers(sink: Any) -> list[Path]:
    return sorted(Path(sink.buffer).rglob("*.arrow"))


# --- F52: Flink's own tests -------------------------------------------------------------------


def test_f52_three_checkpoints_of_twenty_are_sixty(sink):
    for number in range(3):
        one = prepare(sink, number, *range(20 * number, 20 * (number + 1)))
        assert sent(sink) == list(range(20 * number)), "visible before its decision"
        assert commit(sink, one) == [COMMITTED]
    assert sent(sink) == list(range(60))
    assert buffers(sink) == []


def test_f52_a_missed_notification_comes_with_the_next_one_in_order(sink):
    ones = [prepare(sink, n, *range(20 * n, 20 * (n + 1))) for n in range(3)]
    assert commit(sink, ones[0]) == [COMMITTED]
    assert commit(sink, ones[2], ones[1]) == [COMMITTED, COMMITTED]
    assert sent(sink) == list(range(60))


def test_f52_a_restore_drops_the_tail(sink, tmp_path):
    decided = prepare(sink, 0, *range(20))
    prepare(sink, 1, *range(20, 40))  # prepared, never decided
    open_one = sink.begin_transaction(attempt(2))
    sink.invoke(open_one, rows(40))  # written, never prepared
    restored, owner = make(tmp_path), dataclasses.replace(OWNER, run_epoch=2)
    tail = [
        one for one in restored.lingering(owner, Deadline(1)) if one != decided.transactional_id
    ]
    assert len(tail) == 2
    restored.recover_and_abort(tail, Deadline(1))
    assert restored.recover_and_commit([decided], Deadline(1)) == {decided.token: COMMITTED}
    assert commit(restored, prepare(restored, 1, *range(20, 40), owner=owner)) == [COMMITTED]
    assert sent(sink) == list(range(40))
    assert buffers(sink) == []


# --- what stops the order ---------------------------------------------------------------------


@pytest.mark.parametrize("fault", [False, None, OSError("connection refused")], ids=repr)
def test_what_the_target_does_not_take_is_overtaken_by_nothing(sink, options, fault):
    """Flink goes on after a False: checkpoint 2 is visible, and 1 is not."""
    ones = [prepare(sink, n, n) for n in range(4)]
    options.faults[:] = [True, fault]
    assert commit(sink, *ones) == [COMMITTED, UNKNOWN, UNKNOWN, UNKNOWN]
    assert sent(sink) == [0]
    assert len(buffers(sink)) == 3
    outcomes = sink.recover_and_commit(ones[1:], Deadline(10))
    assert list(outcomes.values()) == [COMMITTED] * 3
    assert sent(sink) == [0, 1, 2, 3]


def test_subtasks_of_a_checkpoint_come_in_their_order(sink):
    late = [prepare(sink, 1, 10 + s, subtask=s) for s in (2, 0, 1)]
    early = [prepare(sink, 0, s, subtask=s) for s in (1, 2, 0)]
    assert set(commit(sink, *late, *early)) == {COMMITTED}
    assert sent(sink) == [0, 1, 2, 10, 11, 12]


def test_an_exception_is_told_with_its_four_parts(sink, options, caplog):
    options.faults[:] = [ValueError("no such index")]
    with caplog.at_level(logging.WARNING):
        commit(sink, prepare(sink, 7, 1, subtask=3))
    for part in (
        "kept and sent again",
        "checkpoint 7, subtask 3",
        "ValueError: no such",
        "buffer=",
    ):
        assert part in caplog.text


def test_a_permanent_error_of_the_users_code_ends_the_driver(sink, options):
    options.faults[:] = [ConfigurationError("no such table")]
    one = prepare(sink, 0, 1)
    with pytest.raises(ConfigurationError, match="no such table"):
        commit(sink, one)
    assert commit(sink, one) == [COMMITTED]


def test_the_deadline_is_asked_between_two_sends(sink, options):
    clock, ones = VirtualClock(), [prepare(sink, n, n) for n in range(3)]

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class SlowSink(LinesSink):
        def send_values(self, records, **which) -> bool:
            clock.sleep(6)
            return super().send_values(records, **which)

    slow = SlowSink(**{f.name: getattr(options, f.name) for f in dataclasses.fields(options)})
    outcomes = both_halves(slow).commit(ones, Deadline(10, clock))
    assert list(outcomes.values()) == [COMMITTED, COMMITTED, UNKNOWN]
    assert sent(sink) == [0, 1]


def test_a_target_that_is_down_is_not_hammered(sink, options):
    clock, one = VirtualClock(), prepare(sink, 0, 1)
    deadline = Deadline(10, clock)
    options.faults[:] = [False]
    assert sink.recover_and_commit([one], deadline) == {one.token: UNKNOWN}
    assert deadline.remaining() == 9
    assert sink.recover_and_commit([one], deadline) == {one.token: COMMITTED}
    assert deadline.remaining() == 9


def test_a_mark_that_cannot_be_written_leaves_it_unknown(sink, options, tmp_path, monkeypatch):
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    one = prepare(sink, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(options.committer, "commit_checkpoint", full)
        assert commit(sink, one) == [UNKNOWN]
    assert len(buffers(sink)) == 1, "unmarked records are kept"
    assert commit(sink, one) == [COMMITTED]
    assert sent(sink) == [1, 1], "the second window"


# --- restarts, resubmission, rescale ----------------------------------------------------------


def test_what_is_marked_is_not_sent_again_and_its_buffer_goes(sink, tmp_path):
    """The driver died between the mark and the removal: Flink's clean-up of restored handles."""
    one = prepare(sink, 0, 1, 2)
    kept = buffers(sink)[0].read_bytes()
    commit(sink, one)
    sink._buffers.path(one.transactional_id).write_bytes(kept)
    again = make(tmp_path)
    assert again.recover_and_commit([one], Deadline(1)) == {one.token: ALREADY}
    assert sent(sink) == [1, 2]
    assert buffers(sink) == []
    assert again.recover_and_commit([one], Deadline(1)) == {one.token: ALREADY}


def test_a_job_that_is_submitted_anew_is_not_taken_for_the_old_one(sink, tmp_path):
    """A new checkpoint folder is a new log: its checkpoint 0 has other records."""
    assert commit(sink, prepare(sink, 0, 1)) == [COMMITTED]
    other = dataclasses.replace(OWNER, log_id="other")
    again = make(tmp_path)
    assert commit(again, prepare(again, 0, 2, owner=other)) == [COMMITTED]
    assert sent(sink) == [1, 2]


def test_after_an_older_savepoint_ids_come_again_and_nothing_is_lost(sink, tmp_path):
    for number in range(6):
        commit(sink, prepare(sink, number, number))
    restored = dataclasses.replace(OWNER, run_epoch=9)
    assert commit(sink, prepare(sink, 3, 33, owner=restored)) == [COMMITTED]
    assert sent(sink) == [0, 1, 2, 3, 4, 5, 33]


def test_a_copy_of_a_folder_that_counts_its_runs_again_is_not_taken_for_the_first(sink, tmp_path):
    """Both starts are run 1 of one log. The start's random part must reach the task."""
    assert commit(sink, prepare(sink, 3, 1)) == [COMMITTED]
    copy = make(tmp_path)
    assert commit(copy, prepare(copy, 3, 2)) == [COMMITTED]
    assert sent(sink) == [1, 2]


def test_a_rescale_between_decision_and_commit_changes_nothing(sink, options, tmp_path):
    four = [prepare(sink, 0, s, subtask=s) for s in range(4)]
    options.faults[:] = [True, True, False]
    assert commit(sink, *four) == [COMMITTED, COMMITTED, UNKNOWN, UNKNOWN]
    two = make(tmp_path)
    assert commit(two, *four) == [ALREADY, ALREADY, COMMITTED, COMMITTED]
    owner = dataclasses.replace(OWNER, run_epoch=2)
    for number, width in ((1, 2), (2, 3), (3, 4)):
        ones = [prepare(two, number, s, subtask=s, owner=owner) for s in range(width)]
        assert commit(two, *ones) == [COMMITTED] * width
    assert sent(sink) == [0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 2, 3]


def test_a_buffer_that_is_gone_is_lost_and_its_neighbours_go_on(sink):
    """The engine heals a checkpoint when all of it is settled; the next one waits for that."""
    zero, one, two = (prepare(sink, 0, s, subtask=s) for s in range(3))
    later = prepare(sink, 1, 9)
    sink._buffers.path(one.transactional_id).unlink()
    assert commit(sink, zero, one, two, later) == [COMMITTED, ABORTED, COMMITTED, UNKNOWN]
    healed = prepare(sink, 0, 1, subtask=1)
    assert (healed.fingerprint, healed.record_count) == (one.fingerprint, one.record_count)
    assert commit(sink, healed, later) == [COMMITTED, COMMITTED]
    assert sent(sink) == [0, 2, 1, 9]


def test_a_folder_that_is_not_mounted_proves_no_loss(sink, caplog):
    one = prepare(sink, 0, 1)
    folder = Path(sink.buffer) / "out"
    folder.rename(folder.with_name("away"))
    assert commit(sink, one) == [UNKNOWN]
    folder.with_name("away").rename(folder)
    assert commit(sink, one) == [COMMITTED]


def test_a_disk_that_comes_back_between_two_looks_proves_no_loss(sink, monkeypatch):
    one, verified = prepare(sink, 0, 1), PreparedBuffer.verified
    answers = iter([FileNotFoundError("an empty mount point")])

    def looked(*place: Any, **said: Any) -> PreparedBuffer:
        for error in answers:
            raise error
        return verified(*place, **said)

    monkeypatch.setattr(PreparedBuffer, "verified", looked)
    assert commit(sink, one) == [COMMITTED]
    assert sent(sink) == [1]


def test_a_mark_whose_disk_comes_back_between_two_looks_is_found(sink, monkeypatch):
    one, read = prepare(sink, 0, 1), Path.read_bytes
    kept = buffers(sink)[0].read_bytes()
    commit(sink, one)
    sink._buffers.path(one.transactional_id).write_bytes(kept)
    answers = iter([FileNotFoundError("an empty mount point")])

    def looked(path: Path) -> bytes:
        for error in answers:
            raise error
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", looked)
    assert commit(sink, one) == [ALREADY]
    assert sent(sink) == [1]


def test_a_fenced_driver_that_finishes_first_is_no_loss(sink, options, monkeypatch):
    """It sends, marks and removes between our question for the mark and our look at the buffer."""
    one, real = prepare(sink, 0, 1), options.committer.is_checkpoint_committed
    answers = iter([lambda: (real(0, 0), commit(make(options.target.parent), one))[0]])

    def asked(subtask: int, number: int) -> bool:
        return next(answers, lambda: real(subtask, number))()

    monkeypatch.setattr(options.committer, "is_checkpoint_committed", asked)
    assert commit(sink, one) == [ALREADY]
    assert sent(sink) == [1]


# --- buffers ----------------------------------------------------------------------------------


def test_an_independent_reader_opens_a_buffer_as_an_arrow_stream(sink):
    one = prepare(sink, 4, 1, 2, 3, subtask=2)
    with buffers(sink)[0].open("rb") as file:
        table = pa.ipc.open_stream(file).read_all()
    assert table.to_pydict() == {"n": [1, 2, 3]}
    seal = read_seal(buffers(sink)[0])
    assert seal is not None
    assert (seal.token, seal.checkpoint_id, seal.subtask, seal.records) == (one.token, 4, 2, 3)


def test_every_altered_byte_of_a_prepared_buffer_is_seen_before_and_after_the_decision(sink):
    one = prepare(sink, 4, 1, 2, subtask=2)
    path = buffers(sink)[0]
    whole = path.read_bytes()
    assert sink.check_prepared([one], Deadline(5)) == [one]
    for position in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(PhaseOneError, match="checkpoint 4, subtask 2") as refused:
            sink.check_prepared([one], Deadline(5))
        assert str(path) in str(refused.value)
        with pytest.raises(BufferCorruptedError, match="checkpoint 4, subtask 2"):
            commit(sink, one)
    path.write_bytes(whole[:-1])
    with pytest.raises(BufferCorruptedError, match="torn or missing"):
        commit(sink, one)
    assert sent(sink) == []
    path.write_bytes(whole)
    assert commit(sink, one) == [COMMITTED]


def test_the_torn_tail_of_an_open_buffer_is_cut(tmp_path):
    path = tmp_path / "buffers" / "one.arrow"
    buffer = RecordBuffer(path, rows().schema)
    for number in range(5):
        buffer.append(rows(*range(number, number + 100)))
    buffer.end_stream()
    whole = path.read_bytes()
    counts = []
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        assert read_seal(path) is None
        counts.append(len(whole_batches(path)))
    assert counts == sorted(counts)
    assert set(counts) == set(range(6))


def test_a_buffer_and_its_folder_are_synced_before_it_counts_as_prepared(sink, monkeypatch):
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").resolve()
        synced.append("folder" if place.is_dir() else place.suffix)
        real(descriptor)

    prepare(sink, 0, 1)  # the folder is made
    transaction = sink.begin_transaction(attempt(1))
    monkeypatch.setattr(os, "fsync", fsync)
    sink.invoke(transaction, rows(1))
    synced.clear()
    sink.pre_commit(transaction)
    assert synced == [".arrow", "folder"]


def test_a_swept_writer_notices_when_it_prepares(sink):
    transaction = sink.begin_transaction(attempt(0))
    sink.invoke(transaction, rows(1))
    swept = sink.lingering(OWNER, Deadline(1))
    assert swept == [transaction.transactional_id]
    sink.recover_and_abort(swept, Deadline(1))
    with pytest.raises(PhaseOneError, match="was removed"):
        sink.pre_commit(transaction)


def test_what_was_swept_after_it_was_prepared_is_not_decided(sink):
    one = prepare(sink, 0, 1)
    sink.recover_and_abort([one.transactional_id], Deadline(1))
    with pytest.raises(PhaseOneError, match="prepared buffer has changed"):
        sink.check_prepared([one], Deadline(5))


def test_lingering_is_as_exact_as_its_owner(sink):
    mine = dataclasses.replace(OWNER, run_epoch=5)
    runs = {run: prepare(sink, 0, 1, owner=dataclasses.replace(OWNER, run_epoch=run))
            for run in (4, 5, 6, 10)}  # fmt: skip
    prepare(sink, 0, 1, owner=dataclasses.replace(mine, application_id="app2"))
    prepare(sink, 0, 1, owner=dataclasses.replace(mine, log_id="log2"))
    (Path(sink.buffer) / "out" / "a person's.arrow").touch()
    found = sink.lingering(mine, Deadline(1))
    assert found == sorted(runs[run].transactional_id for run in (4, 5))
    other = dataclasses.replace(sink._committer, name="other")
    assert other.lingering(mine, Deadline(1)) == []


def test_abort_removes_the_buffer_and_an_idle_branch_has_none(sink):
    transaction = sink.begin_transaction(attempt(0))
    sink.invoke(transaction, rows())
    assert sink.pre_commit(transaction) is None
    sink.abort(transaction)
    transaction = sink.begin_transaction(attempt(0))
    sink.invoke(transaction, rows(1))
    assert len(buffers(sink)) == 1
    sink.abort(transaction)
    assert buffers(sink) == []


def test_a_buffer_that_cannot_be_written_fails_the_attempt(sink, tmp_path):
    transaction = sink.begin_transaction(attempt(3, 1))
    sink.invoke(transaction, rows(1))
    with pytest.raises(DeliveryError, match="checkpoint 3, subtask 1"):
        sink.invoke(transaction, pa.record_batch({"other": pa.array(["x"])}))
    sink.abort(transaction)
    (tmp_path / "file").touch()
    blocked = dataclasses.replace(sink._writer, buffer=tmp_path / "file" / "buffer")
    with pytest.raises(DeliveryError, match="could not be written"):
        blocked.invoke(blocked.begin_transaction(attempt(3)), rows(1))


# --- rows of any schema -----------------------------------------------------------------------


def fingerprint_of(*batches: pa.RecordBatch) -> str:
    found = RowFingerprint()
    for batch in batches:
        found.add(batch)
    return found.hex()


WIDE = pa.record_batch(
    {
        "number": pa.array([1, None, 3], pa.int32()),
        "text": ["a", "", None],
        "view": pa.array(["a", "", None], pa.string_view()),
        "real": [0.5, None, -1.0],
        "flag": [True, None, False],
        "when": pa.array(
            [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None, None], pa.timestamp("us", tz="UTC")
        ),
        "day": [dt.date(2020, 1, 1), None, None],
        "exact": [decimal.Decimal("1.10"), None, decimal.Decimal("-2.00")],
        "pair": [{"x": 1, "y": "b"}, None, {"x": None, "y": ""}],
        "list": [["a", "bc"], None, []],
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
        "named": pa.array(["a", "b", None]).dictionary_encode(),
        "none": pa.nulls(3),
    }
)


def test_rows_in_any_order_and_any_batches_have_one_fingerprint():
    rows_of = [WIDE.slice(number, 1) for number in range(3)]
    assert fingerprint_of(WIDE) == fingerprint_of(*reversed(rows_of))
    assert len({fingerprint_of(row) for row in rows_of}) == 3


@pytest.mark.parametrize("name", WIDE.schema.names[:-1])
def test_every_column_is_in_the_fingerprint(name):
    values = WIDE.column(name)
    turned = pa.concat_arrays([values.slice(1), values.slice(0, 1)])
    number = WIDE.schema.names.index(name)
    assert fingerprint_of(WIDE) != fingerprint_of(WIDE.set_column(number, name, turned))


def test_neighbouring_columns_cannot_stand_for_each_other():
    def one(*values: str | None) -> str:
        columns = {str(n): pa.array([v], pa.string()) for n, v in enumerate(values)}
        return fingerprint_of(pa.record_batch(columns))

    texts = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc", ""),
        ("", "abc"),
        ("abc", None),
        (None, "abc"),
        ("-",),
    ]
    assert len({one(*each) for each in texts}) == len(texts)

    def lists(*values: list[str] | None) -> str:
        return fingerprint_of(pa.record_batch({"l": pa.array(values, pa.list_(pa.string()))}))

    assert lists(["a", "b"]) != lists(["ab"]) != lists(["ab", ""])
    pair = pa.struct({"x": pa.int8(), "y": pa.int8()})
    nulls = pa.record_batch({"p": pa.array([None, {"x": None, "y": None}], pair)})
    assert fingerprint_of(nulls.slice(0, 1)) != fingerprint_of(nulls.slice(1))


def test_columns_that_cannot_be_compared_are_refused_at_start(options):
    encoded = pa.schema({"n": pa.int64(), "r": pa.run_end_encoded(pa.int32(), pa.int64())})
    with pytest.raises(ConfigurationError, match="column 'r'"):
        options.check_columns(encoded)


# --- options ----------------------------------------------------------------------------------


def test_the_sink_is_its_own_options(sink, options, tmp_path):
    assert sink.name == options.name == "out"
    assert options.identity() == {"kind": "write-ahead", "committer": f"file:{tmp_path / 'marks'}"}
    assert sink.hidden([], Deadline(1)) == []
    assert sink.retired() == frozenset()
    options.check_columns(WIDE.schema)
    there = pickle.loads(pickle.dumps(options))
    assert (there.name, there.buffer) == (sink.name, sink.buffer)
    assert "_bound" not in there.__dict__


def test_neither_the_users_sink_nor_its_marks_travel(sink, options):
    travels = pickle.dumps(sink._writer)
    for name in (type(options).__name__, type(options.committer).__name__, "marks", "target"):
        assert name.encode() in pickle.dumps(options)
        assert name.encode() not in travels


def test_each_run_of_a_driver_closes_the_users_sink_and_the_marks(tmp_path):
    """A restart opens the same object again; the storage was probed."""
    steps: list[str] = []

    class HoldsMore(LinesSink):
        def close(self) -> None:
            steps.append("close")
            super().close()

    class Probed(SQLiteCheckpointCommitter):
        def create_resource(self) -> None:
            steps.append("probe")
            super().create_resource()

    marks = Probed(tmp_path / "marks.db")
    one = HoldsMore(name="out", buffer=tmp_path / "b", committer=marks, target=tmp_path / "t")
    for number in range(2):
        run = both_halves(one)
        assert commit(run, prepare(run, number, 1)) == [COMMITTED]
        run.close()
        with pytest.raises(AssertionError, match="open"):
            marks.connection  # noqa: B018
    assert steps == ["probe", "close", "close"]


def test_a_relative_folder_is_the_drivers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sink = StdOutWriteAheadSink(name="a", buffer="b", committer=FileCheckpointCommitter("m"))
    assert Path(sink.buffer) == tmp_path / "b"


def test_wrong_options_are_refused(tmp_path):
    marks = FileCheckpointCommitter(tmp_path / "marks")
    with pytest.raises(ConfigurationError, match=r"name=a\.b"):
        StdOutWriteAheadSink(name="a.b", buffer=tmp_path, committer=marks)
    for address in ("s3://bucket/buffer", "dbfs:/buffer"):
        with pytest.raises(ConfigurationError, match=f"buffer={address}"):
            StdOutWriteAheadSink(name="a", buffer=address, committer=marks)
    with pytest.raises(ConfigurationError, match="marks of an SQLite sink"):
        SQLiteWriteAheadSink(name="a", buffer=tmp_path, committer=marks, table="t")  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    blocked = FileCheckpointCommitter(tmp_path / "file" / "marks")
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        both_halves(StdOutWriteAheadSink(name="a", buffer=tmp_path, committer=blocked))


def test_stdout_has_each_record_of_a_completed_checkpoint(tmp_path, capsys):
    marks = FileCheckpointCommitter(tmp_path / "marks")
    sink = both_halves(StdOutWriteAheadSink(name="out", buffer=tmp_path / "b", committer=marks))
    transaction = sink.begin_transaction(attempt(0))
    columns = {"key": [b"k", None], "n": [1, 2], "d": [decimal.Decimal("1.5"), None]}
    sink.invoke(transaction, pa.record_batch({k: pa.array(v) for k, v in columns.items()}))
    one = sink.pre_commit(transaction)
    assert capsys.readouterr().out == ""
    assert commit(sink, one) == [COMMITTED]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"key": "k", "n": 1, "d": "1.5"},
        {"key": None, "n": 2, "d": None},
    ]


def test_sqlite_takes_what_it_has_columns_for(tmp_path):
    marks = SQLiteCheckpointCommitter(tmp_path / "t.db")
    sink = SQLiteWriteAheadSink(name="out", buffer=tmp_path, committer=marks, table="rows")
    sink.check_columns(pa.schema({"n": pa.int64(), "t": pa.string(), "b": pa.binary()}))
    with pytest.raises(ConfigurationError, match="column 'l'"):
        sink.check_columns(pa.schema({"l": pa.list_(pa.int8())}))


def test_a_number_that_sqlite_cannot_store_is_refused_for_good(tmp_path):
    marks = SQLiteCheckpointCommitter(tmp_path / "t.db")
    options = SQLiteWriteAheadSink(name="out", buffer=tmp_path / "b", committer=marks, table="rows")
    sink = both_halves(options)
    marks.connection.execute("CREATE TABLE rows (n INTEGER)")
    transaction = sink.begin_transaction(attempt(0))
    sink.invoke(transaction, pa.record_batch({"n": pa.array([1 << 63], pa.uint64())}))
    one = sink.pre_commit(transaction)
    with pytest.raises(RecordRefusedError, match="too large") as refused:
        commit(sink, one)
    assert f"resolve {one.transactional_id} --accept-loss" in refused.value.option
    sink.close()


def test_rows_and_mark_of_sqlite_are_there_both_or_not_at_all(tmp_path):
    marks = SQLiteCheckpointCommitter(tmp_path / "t.db")
    options = SQLiteWriteAheadSink(name="out", buffer=tmp_path / "b", committer=marks, table="rows")
    sink = both_halves(options)
    marks.connection.execute('CREATE TABLE rows (n INTEGER CHECK (n < 9), "odd ""name" TEXT)')

    def write(checkpoint: int, *numbers: int) -> Committable:
        transaction = sink.begin_transaction(attempt(checkpoint))
        columns = {"n": list(numbers), 'odd "name': ["x"] * len(numbers)}
        sink.invoke(transaction, pa.record_batch({k: pa.array(v) for k, v in columns.items()}))
        return sink.pre_commit(transaction)

    good, bad = write(0, 1, 2), write(1, 3, 9)
    assert commit(sink, good) == [COMMITTED]
    with pytest.raises(RecordRefusedError, match="CHECK constraint failed: n < 9"):
        commit(sink, bad)
    found = marks.connection.execute("SELECT n FROM rows ORDER BY n").fetchall()
    assert found == [(1,), (2,)], "half of a refused checkpoint is visible"
    assert commit(sink, good) == [ALREADY]
    sink.close()
