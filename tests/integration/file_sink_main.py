"""One run of a pipeline into files, as a process that a test kills: no Spark, no Kafka.

Spark's order of log writes around the coordinator: offsets/N, the batch, commits/N. The input is
the numbers below `total`; two sinks under one decision, Parquet and JSON lines, and two subtasks.

    python -m tests.integration.file_sink_main <folder> <total> [<url> <options of its store>]

Without a URL the files lie in the folder as well, beside the log.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from connectors.files.file_sink import FileSink
from tests.both_halves import both_halves
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog
from transactions.log_backend import LocalFileBackend
from transactions.recovery import recover
from transactions.replay import Checkpoint
from transactions.sink import Attempt

PER_BATCH = 40
SUBTASKS = 2
FORMATS = ("parquet", "json")
TIMEOUT_S = 20.0


def rows(numbers: Sequence[int]) -> pa.RecordBatch:
    """Return the records of some numbers."""
    start = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    return pa.record_batch(
        {
            "number": pa.array(numbers, pa.int64()),
            "text": pa.array([f"row {number}" for number in numbers], pa.string()),
            "bytes": pa.array([number.to_bytes(8) for number in numbers], pa.binary()),
            "at": pa.array(
                [start + dt.timedelta(seconds=number) for number in numbers],
                pa.timestamp("us", tz="UTC"),
            ),
        }
    )


class Driver:
    """One run: fence, recover, then every batch that is left."""

    def __init__(self, folder: Path, url: str = "", store: Mapping[str, str] | None = None) -> None:
        self.commits = folder / "commits"
        self.commits.mkdir(exist_ok=True)
        backend = LocalFileBackend(folder / "log")
        self.log = DecisionLog.open(backend, application_id="app", identity={})
        self.sinks: dict[str, Any] = {}
        for one in FORMATS:
            path = f"{url or folder}/{one}"
            options = FileSink(path=path, format=one, store=store or {})
            self.sinks[one] = both_halves(options, checkpoint_timeout_s=TIMEOUT_S)
        self.next = len(list(self.commits.iterdir()))
        settled = recover(self.log, self.sinks, Deadline(TIMEOUT_S), finished=self.next - 1)
        self.coordinator = CheckpointCoordinator(
            self.log,
            self.sinks,
            timeout_s=TIMEOUT_S,
            stopping=lambda: False,
            lost=settled.lost,
        )

    def run(self, total: int) -> None:
        """Run to the end of the input."""
        while self.next * PER_BATCH < total:
            self.batch(self.next)
            (self.commits / str(self.next)).touch()
            self.next += 1
        self.coordinator.close()

    def batch(self, number: int) -> None:
        """Do what foreachBatch does."""
        checkpoint = Checkpoint(
            checkpoint_id=number,
            query_id="q",
            start_offsets=(str(number * PER_BATCH),),
            end_offsets=(str((number + 1) * PER_BATCH),),
        )

        def rerun(lost: Sequence[Committable]) -> list[Committable]:
            return self.phase_one(number, {(one.sink, one.subtask) for one in lost})

        self.coordinator.run(checkpoint, lambda: self.phase_one(number), rerun)

    def phase_one(self, number: int, only: set[tuple[str, int]] | None = None) -> list[Committable]:
        """Write a batch to both sinks; `only` names what a healing writes again."""
        committables = []
        numbers = range(number * PER_BATCH, (number + 1) * PER_BATCH)
        for subtask in range(SUBTASKS):
            for name, sink in self.sinks.items():
                if only is not None and (name, subtask) not in only:
                    continue
                attempt = Attempt(
                    owner=self.coordinator.owner,
                    checkpoint_id=number,
                    subtask=subtask,
                    attempt_id=f"{self.log.run_epoch}.{subtask}",
                )
                transaction = sink.begin_transaction(attempt)
                mine = list(numbers[subtask::SUBTASKS])
                for begin in range(0, len(mine), 7):
                    sink.invoke(transaction, rows(mine[begin : begin + 7]))
                committables.append(sink.pre_commit(transaction))
        return [one for one in committables if one is not None]


if __name__ == "__main__":
    where, how_many, *target = sys.argv[1:]
    Driver(Path(where), *target[:1], *map(json.loads, target[1:])).run(int(how_many))
