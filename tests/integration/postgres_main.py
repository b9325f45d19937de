"""A pipeline that a test can kill: our coordinator and decision log, Spark's order of log writes.

    python -m tests.integration.postgres_main <folder> <conninfo> <rows>

`offsets/N -> the batch -> commits/N`; a batch without commits/N is run again with the same
offsets. Input is a row of numbers; two subtasks write them into the table `said`. It ends when
all are written; `SPARKONCE_CRASH_AT` kills it before.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa

from connectors.postgres import PostgresSink
from tests.both_halves import both_halves
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog
from transactions.log_backend import LocalFileBackend
from transactions.recovery import recover
from transactions.replay import Checkpoint
from transactions.sink import Attempt

APPLICATION = "said-once"
PER_BATCH = 6
SUBTASKS = 2
TIMEOUT_S = 60.0
SCHEMA = pa.schema({"id": pa.int64(), "said": pa.string()})


class Pipeline:
    """One run: fence, recover, then batches until the input is used up."""

    def __init__(self, folder: Path, conninfo: str) -> None:
        self.offsets, self.commits, log_folder = (
            LocalFileBackend(folder / name) for name in ("offsets", "commits", "log")
        )
        options = PostgresSink(conninfo=conninfo, table="said")
        self.log = DecisionLog.open(
            log_folder, application_id=APPLICATION, identity=options.identity()
        )
        self.sink = both_halves(options, checkpoint_timeout_s=TIMEOUT_S, schema=SCHEMA)
        self.sinks = {self.sink.name: self.sink}
        settled = recover(self.log, self.sinks, Deadline(TIMEOUT_S))
        self.coordinator = CheckpointCoordinator(
            self.log,
            self.sinks,
            timeout_s=TIMEOUT_S,
            stopping=lambda: False,
            lost=settled.lost,
        )

    def run(self, rows: int) -> None:
        """Run every batch that is left."""
        number = len(self.commits.list())
        while number * PER_BATCH < rows:
            self.offsets.put_if_absent(f"{number:06d}", str((number + 1) * PER_BATCH).encode())
            self.batch(number)
            self.commits.put_if_absent(f"{number:06d}", b"")
            number += 1
        self.coordinator.close()

    def batch(self, number: int) -> None:
        """Do what foreachBatch does."""
        end = self.offsets.get(f"{number:06d}")
        assert end is not None
        checkpoint = Checkpoint(
            checkpoint_id=number,
            query_id="q",
            start_offsets=(str(number * PER_BATCH),),
            end_offsets=(end.decode(),),
        )

        def rerun(lost: Collection[Committable]) -> list[Committable]:
            return self.phase_one(number, {one.subtask for one in lost})

        everyone = range(SUBTASKS)
        self.coordinator.run(checkpoint, lambda: self.phase_one(number, everyone), rerun)

    def phase_one(self, number: int, subtasks: Collection[int]) -> list[Committable]:
        """Write the numbers of a batch, those of the subtasks that are named."""
        committables = []
        for subtask in subtasks:
            attempt = Attempt(
                owner=self.coordinator.owner,
                checkpoint_id=number,
                subtask=subtask,
                attempt_id=f"{self.log.run_epoch}.{subtask}",
            )
            transaction = self.sink.begin_transaction(attempt)
            for value in range(number * PER_BATCH, (number + 1) * PER_BATCH)[subtask::SUBTASKS]:
                row = {"id": value, "said": f"n{value}"}
                self.sink.invoke(transaction, pa.RecordBatch.from_pylist([row], SCHEMA))
            committables.append(self.sink.pre_commit(transaction))
        return [one for one in committables if one is not None]


if __name__ == "__main__":
    Pipeline(Path(sys.argv[1]), sys.argv[2]).run(int(sys.argv[3]))
