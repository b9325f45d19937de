"""A driver without Spark and Kafka, in a process of its own: a real coordinator and decision log
around a write-ahead sink, in Spark's order of log writes (``offsets/N -> the batch -> commits/N``).

    python -m tests.integration.write_ahead_main FOLDER plain|sqlite|postgres

Input are the numbers below TOTAL, PER_BATCH in a checkpoint; each run has another number of
subtasks, but a checkpoint that was begun keeps its own. WRITE_AHEAD_DATABASE says where PostgreSQL
is. SPARKONCE_CRASH_AT kills the driver at a point of the protocol,
WRITE_AHEAD_CRASH_AT=<moment>@<checkpoint>.<subtask> at a moment of the sink:

    sending     the target has taken half of the records
    sent        it has all of them; the mark is not set
    marked      the mark is set; within a transaction it is not committed
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from connectors.postgres.postgres_committer import PostgresCheckpointCommitter
from connectors.postgres.postgres_write_ahead_sink import PostgresWriteAheadSink
from connectors.wal import (
    CheckpointCommitter,
    FileCheckpointCommitter,
    SQLiteCheckpointCommitter,
    SQLiteWriteAheadSink,
    WriteAheadSink,
)
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog
from transactions.log_backend import LocalFileBackend
from transactions.recovery import recover
from transactions.replay import Checkpoint
from transactions.sink import Attempt, SinkContext

TOTAL, PER_BATCH = 40, 10
TIMEOUT_S = 30.0


def crash(moment: str, checkpoint_id: int, subtask: int) -> None:
    """SIGKILL, once, at the moment that the environment names."""
    if os.environ.get("WRITE_AHEAD_CRASH_AT") != f"{moment}@{checkpoint_id}.{subtask}":
        return
    try:
        os.close(os.open(os.environ["SPARKONCE_CRASH_ONCE"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class CrashingMarks:
    """Mixed into a committer: the moments around the mark."""

    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        crash("sent", checkpoint_id, subtask)
        super().commit_checkpoint(subtask, checkpoint_id)  # type: ignore[misc]
        crash("marked", checkpoint_id, subtask)


class FileMarks(CrashingMarks, FileCheckpointCommitter):
    pass


class SQLiteMarks(CrashingMarks, SQLiteCheckpointCommitter):
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinesSink(WriteAheadSink):
    """The plain target: a file of JSON lines, each durable when it is written."""

    target: Path

    def send_values(
        self,
        records: Iterator[pa.RecordBatch],
        *,
        checkpoint_id: int,
        subtask: int,
        timestamp_ms: int,
    ) -> bool:
        rows = [row["n"] for batch in records for row in batch.to_pylist()]
        with self.target.open("a") as file:
            for number, row in enumerate(rows):
                if number == len(rows) // 2:
                    crash("sending", checkpoint_id, subtask)
                file.write(json.dumps([checkpoint_id, subtask, row]) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return True


class CutInHalf:
    """Mixed into a sink whose target has transactions: cut at the same moment as the plain one."""

    def send_values(self, records: Iterator[pa.RecordBatch], **which: int) -> bool:
        batches = list(records)
        half = len(batches) // 2
        super().send_values(iter(batches[:half]), **which)  # type: ignore[misc]
        crash("sending", which["checkpoint_id"], which["subtask"])
        return super().send_values(iter(batches[half:]), **which)  # type: ignore[misc,no-any-return]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsSink(CutInHalf, SQLiteWriteAheadSink):
    pass


class PostgresMarks(CrashingMarks, PostgresCheckpointCommitter):
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopySink(CutInHalf, PostgresWriteAheadSink):
    pass


def make_sink(folder: Path, kind: str) -> WriteAheadSink:
    """The sink as the user's script makes it at every start."""
    options = {"name": "out", "buffer": folder / "buffer"}
    if kind == "plain":
        marks: CheckpointCommitter = FileMarks(folder / "marks")
        return LinesSink(**options, committer=marks, target=folder / "target.jsonl")
    if kind == "postgres":
        in_postgres = PostgresMarks(os.environ["WRITE_AHEAD_DATABASE"])
        return CopySink(**options, committer=in_postgres, table="numbers")
    with contextlib.closing(sqlite3.connect(folder / "target.db")) as database:
        database.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER)")
    return RowsSink(**options, committer=SQLiteMarks(folder / "target.db"), table="rows")


class Driver:
    """One run: fence, recover, then batches until the input is used up."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        log = DecisionLog.open(
            LocalFileBackend(folder / "decisions"), application_id="app", identity={}
        )
        self.sink = make_sink(folder, kind).open(SinkContext(checkpoint_timeout_s=TIMEOUT_S))
        sinks = {"out": self.sink.committer}
        settled = recover(log, sinks, Deadline(TIMEOUT_S), finished=self.done())
        self.coordinator = CheckpointCoordinator(
            log, sinks, timeout_s=TIMEOUT_S, stopping=lambda: False, lost=settled.lost
        )
        self.tasks = 0

    def done(self) -> int:
        return max((int(p.name) for p in self.folder.glob("commits/*")), default=-1)

    def run(self) -> None:
        for number in range(self.done() + 1, TOTAL // PER_BATCH):
            offsets = self.folder / "offsets" / str(number)
            if not offsets.exists():
                # Another parallelism in each run: a rescale.
                plan = {"subtasks": 2 + self.coordinator.owner.run_epoch % 2}
                write(offsets, json.dumps(plan))
            self.batch(number, json.loads(offsets.read_text())["subtasks"])
            write(self.folder / "commits" / str(number), "")
        self.coordinator.close()
        self.sink.committer.close()

    def batch(self, number: int, subtasks: int) -> None:
        """Do what foreachBatch does."""
        start = PER_BATCH * number
        checkpoint = Checkpoint(
            checkpoint_id=number,
            query_id="q",
            start_offsets=(str(start),),
            end_offsets=(str(start + PER_BATCH),),
        )

        def rerun(lost: Sequence[Committable]) -> list[Committable]:
            return [self.task(number, one.subtask, subtasks) for one in lost]

        def phase_one() -> list[Committable]:
            return [self.task(number, subtask, subtasks) for subtask in range(subtasks)]

        self.coordinator.run(checkpoint, phase_one, rerun)

    def task(self, number: int, subtask: int, subtasks: int) -> Committable:
        """Do what a worker does, with the writer as it arrives there."""
        writer = pickle.loads(pickle.dumps(self.sink.writer))
        self.tasks += 1
        owner = self.coordinator.owner
        attempt = Attempt(
            owner=owner,
            checkpoint_id=number,
            subtask=subtask,
            attempt_id=f"{owner.run_epoch}.{self.tasks}",
        )
        transaction = writer.begin_transaction(attempt)
        for value in numbers_of(number, subtask, subtasks):
            writer.invoke(transaction, pa.record_batch({"n": pa.array([value], pa.int64())}))
        committable = writer.pre_commit(transaction)
        assert committable is not None
        return committable


def numbers_of(number: int, subtask: int, subtasks: int) -> range:
    """Return what one subtask writes in one checkpoint."""
    return range(PER_BATCH * number + subtask, PER_BATCH * (number + 1), subtasks)


def write(path: Path, text: str) -> None:
    """Write a file of the engine's, whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.parent.parent / f"{path.parent.name}.tmp"
    temporary.write_text(text)
    temporary.rename(path)


if __name__ == "__main__":
    Driver(Path(sys.argv[1]), sys.argv[2]).run()
