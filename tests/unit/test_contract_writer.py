"""What a sink of the contract is asked, and when, by a task of a continuous stage."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.continuous.contract_writer import ContractWriter
from connectors.continuous.kafka_task import KafkaTask
from connectors.continuous.stage_committer import StageCommitter
from connectors.files import FileSink, committed_files
from connectors.options.kafka_source import KafkaSource
from connectors.records.message_schema import SINK_SCHEMA
from tests.both_halves import both_halves
from tests.unit.samples import committable
from transactions.clock import Deadline
from transactions.committable import Outcome
from transactions.errors import DeliveryError, PhaseOneError
from transactions.sink import Attempt, Owner

SOON_S = 10.0
OWNER = Owner(application_id="app", log_id="log", run_epoch=3)


def attempt(number: int, owner: Owner = OWNER) -> Attempt:
    return Attempt(owner=owner, checkpoint_id=number, subtask=1, attempt_id="3.17")


def rows(*values: str) -> pa.RecordBatch:
    """What `normalised` gives of a function that returns the value only."""
    return pa.record_batch({"value": pa.array([one.encode() for one in values], pa.binary())})


class NotedSink:
    """Notes what it is asked, in order; fails, or stands still, where a test wants it."""

    name = "noted"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.attempts: list[Attempt] = []
        self.batches: list[pa.RecordBatch] = []
        self.fails_at = ""
        self.stands_in_pre_commit = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def begin_transaction(self, attempt: Attempt) -> int:
        self.attempts.append(attempt)
        self._note("begin", attempt.checkpoint_id)
        return attempt.checkpoint_id

    def invoke(self, transaction: int, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self._note("invoke", transaction)

    def pre_commit(self, transaction: int) -> Any:
        self._note("pre_commit", transaction)
        self.stands_in_pre_commit.set()
        assert self.goes_on.wait(SOON_S)
        return committable(checkpoint_id=transaction)

    def abort(self, transaction: int) -> None:
        self._note("abort", transaction)

    def _note(self, what: str, number: int) -> None:
        self.asked.append(f"{what} {number}")
        if what == self.fails_at:
            raise DeliveryError(f"{what} does not work")


@pytest.fixture
def sink() -> NotedSink:
    return NotedSink()


@pytest.fixture
def writer(sink: NotedSink) -> ContractWriter:
    made = ContractWriter(sink, SINK_SCHEMA)  # type: ignore[arg-type]
    assert made.open(OWNER, Deadline(SOON_S)) == ()
    return made


def prepared(writer: ContractWriter, transaction: Any) -> Any:
    """Do what a task does at a barrier."""
    writer.flush(transaction, {"in-0": 4})
    return writer.pre_commit(transaction)


def test_a_transaction_is_prepared_before_the_next_ones_first_record(sink, writer):
    """As in micro-batches: nothing promises that a sink can have two of one task."""
    first = writer.begin_transaction(attempt(5))
    writer.invoke(first, rows("a"))
    writer.invoke(first, rows("b"))
    second = writer.begin_transaction(attempt(6))  # the barrier: in this order
    writer.flush(first, {})
    writer.invoke(second, rows("c"))  # while the first is neither decided nor committed
    made = writer.pre_commit(first)
    assert made is not None
    assert made.checkpoint_id == 5
    assert prepared(writer, second).checkpoint_id == 6
    assert sink.asked == [
        *("begin 5", "invoke 5", "invoke 5", "pre_commit 5"),
        *("begin 6", "invoke 6", "pre_commit 6"),
    ]
    assert not writer.ends_transactions


def test_an_idle_task_asks_for_nothing(sink, writer):
    for number in range(5, 9):
        assert prepared(writer, writer.begin_transaction(attempt(number))) is None
    writer.serve()
    writer.close()
    assert sink.asked == []


def test_each_checkpoint_is_an_attempt_of_its_own(sink, writer):
    """A sink may name what it writes after it; the id of the task alone would come again."""
    for number in (5, 6):
        transaction = writer.begin_transaction(attempt(number))
        writer.invoke(transaction, rows("a"))
        prepared(writer, transaction)
    assert [one.attempt_id for one in sink.attempts] == ["3.17-5", "3.17-6"]
    assert {(one.owner, one.subtask) for one in sink.attempts} == {(OWNER, 1)}


def test_the_sink_gets_all_columns_whatever_the_function_returns(sink, writer):
    transaction = writer.begin_transaction(attempt(5))
    writer.invoke(transaction, rows("a"))
    (batch,) = sink.batches
    assert batch.schema == SINK_SCHEMA
    assert batch.to_pylist() == [{**dict.fromkeys(SINK_SCHEMA.names), "value": b"a"}]


def test_a_task_that_ends_gives_up_what_fills_and_never_what_is_prepared(sink, writer):
    """What is prepared may be decided at this very moment: it is the driver's."""
    first, second = (writer.begin_transaction(attempt(number)) for number in (5, 6))
    writer.invoke(first, rows("a"))
    assert prepared(writer, first) is not None
    writer.invoke(second, rows("b"))
    writer.close()
    assert sink.asked[-1] == "abort 6"
    assert "abort 5" not in sink.asked
    with pytest.raises(PhaseOneError, match="while the task was ending"):
        writer.flush(second, {})
    assert "pre_commit 6" not in sink.asked


def test_a_task_that_ends_while_it_prepares_gives_nothing_up(sink, writer):
    """The user's function fails on one thread while the other one is at a barrier."""
    transaction = writer.begin_transaction(attempt(5))
    writer.invoke(transaction, rows("a"))
    sink.goes_on.clear()
    with ThreadPoolExecutor(2) as threads:
        barrier = threads.submit(prepared, writer, transaction)
        assert sink.stands_in_pre_commit.wait(SOON_S)
        ending = threads.submit(writer.close)
        sink.goes_on.set()
        assert barrier.result(SOON_S) is not None
        ending.result(SOON_S)
    assert sink.asked == ["begin 5", "invoke 5", "pre_commit 5"]


@pytest.mark.parametrize("fails_at", ["invoke", "pre_commit"])
def test_what_cannot_be_written_is_aborted_once(sink, writer, fails_at):
    transaction = writer.begin_transaction(attempt(5))
    sink.fails_at = fails_at
    with pytest.raises(DeliveryError):
        writer.invoke(transaction, rows("a"))
        prepared(writer, transaction)
    writer.close()
    assert sink.asked.count("abort 5") == 1


def test_an_abort_that_fails_hides_no_error(sink, writer):
    transaction = writer.begin_transaction(attempt(5))
    writer.invoke(transaction, rows("a"))
    sink.fails_at = "abort"
    writer.close()
    assert sink.asked[-1] == "abort 5"


# --- the driver's side, with the sink of files ------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Any:
    options = FileSink(path=str(tmp_path / "out"), name="out")
    return both_halves(options, checkpoint_timeout_s=SOON_S)


def task(sink: Any) -> KafkaTask:
    return KafkaTask(
        address=("here", 1),
        key=b"",
        stage="stage",
        source=KafkaSource(bootstrap_servers="b:1", subscribe="in"),
        transform="connectors.records.arrow_transform:copy_records",
        writer=sink,
        carries_offsets=False,
        schema=SINK_SCHEMA,
        native=True,
        timeout_s=SOON_S,
        parallelism=1,
    )


def test_a_task_writes_to_any_sink_that_it_is_given(files, tmp_path):
    """The copy that came with the closure writes, the driver's own commits."""
    writer = pickle.loads(pickle.dumps(task(files))).stage_writer()
    assert isinstance(writer, ContractWriter)
    transaction = writer.begin_transaction(attempt(5))
    writer.invoke(transaction, rows("a", "b"))
    one = prepared(writer, transaction)
    assert committed_files(tmp_path / "out") == []

    stage: Any = SimpleNamespace(is_writer=lambda _: False)
    staged = StageCommitter(files, stage, sweep_every_s=0.0)
    assert staged.check_prepared([one], Deadline(SOON_S)) == [one]
    assert staged.commit([one], Deadline(SOON_S)) == {one.token: Outcome.COMMITTED}
    (file,) = committed_files(tmp_path / "out")
    assert pq.read_table(file.path)["value"].to_pylist() == [b"a", b"b"]
    assert pq.read_schema(file.path).names == SINK_SCHEMA.names


def filling(files: Any, run_epoch: int) -> str:
    """Write into a transaction, and leave it as a task does that is killed, or goes on."""
    owner = Owner(application_id="app", log_id="log", run_epoch=run_epoch)
    transaction = files.begin_transaction(attempt(5, owner))
    files.invoke(transaction, rows("a"))
    return str(transaction.transaction_id)


def test_while_a_stage_runs_only_what_an_older_run_left_is_swept(files):
    """Without ids of the tasks nothing else tells what fills from what lingers."""
    old, mine = filling(files, 2), filling(files, 3)
    stage: Any = SimpleNamespace(is_ready=True, has_writers=False, is_writer=lambda _: False)
    staged = StageCommitter(files, stage, sweep_every_s=0.0)
    assert files.lingering(OWNER, Deadline(SOON_S)) == sorted([old, mine])
    assert staged.lingering(OWNER, Deadline(SOON_S)) == [old]
    stage.is_ready = False
    assert staged.lingering(OWNER, Deadline(SOON_S)) == []


def test_where_the_tasks_have_ids_only_those_are_spared(files):
    """Kafka's: a producer of this very run that no task owns any more is swept."""
    other, mine = filling(files, 3), filling(files, 3)
    stage: Any = SimpleNamespace(is_ready=True, has_writers=True, is_writer=mine.__eq__)
    staged = StageCommitter(files, stage, sweep_every_s=0.0)
    assert staged.lingering(OWNER, Deadline(SOON_S)) == [other]
