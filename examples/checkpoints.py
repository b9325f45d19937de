"""The protocol by hand, without Kafka and Spark: coordinator, operator state, a sink of files.

    python examples/checkpoints.py copied 2         # two subtasks
    python examples/checkpoints.py copied 3         # the next run may have another number of them

Copies 400 numbers from four partitions into Parquet files, 40 in a checkpoint. Kill it at any time
(SPARKONCE_CRASH_AT=decision_durable@2 does) and start it again: the files have every number once.
"""

import functools
import json
import sys
from pathlib import Path

import pyarrow as pa

from connectors.files import FileSink
from transactions import Attempt, DecisionLog, ListState, LocalFileBackend, SinkContext
from transactions.clock import Deadline
from transactions.coordinator import CheckpointCoordinator
from transactions.list_state import offsets_of, offsets_state
from transactions.recovery import recover
from transactions.replay import Checkpoint

FOLDER, PARALLELISM = Path(sys.argv[1]), int(sys.argv[2])
REDISTRIBUTION = sys.argv[3] if len(sys.argv) > 3 else "even-split"
NUMBERS = {f"numbers-{one}": range(100 * one, 100 * one + 100) for one in range(4)}
PER_CHECKPOINT, TIMEOUT_S = 10, 60.0  # of each partition; of each checkpoint


def shares(offsets):
    """Deal the operator state out, as Flink's ListState or as its UnionListState."""
    state = offsets_state(offsets)
    if REDISTRIBUTION == "even-split":
        return state.even_split(PARALLELISM)
    # Each subtask gets everything and picks its own; what two pick would be copied twice.
    everything = enumerate(state.union(PARALLELISM))
    return [ListState(whole.elements[subtask::PARALLELISM]) for subtask, whole in everything]


def write(checkpoint_id, offsets, ends):
    """Phase 1, which an engine does in its tasks: nothing of it can be read yet."""
    written = []
    for subtask, share in enumerate(shares(offsets)):
        attempt = Attempt(
            owner=log.owner,
            checkpoint_id=checkpoint_id,
            subtask=subtask,
            attempt_id=f"{log.run_epoch}.{checkpoint_id}.{subtask}",
        )
        transaction = writer.begin_transaction(attempt)
        for partition, offset in offsets_of(share).items():
            numbers = NUMBERS[partition][offset : ends[partition]]
            writer.invoke(transaction, pa.record_batch({"number": pa.array(numbers, pa.int64())}))
        written.append(writer.pre_commit(transaction))
    return [one for one in written if one is not None]  # a subtask without a share wrote nothing


sink = FileSink(path=str(FOLDER / "numbers")).open(SinkContext(checkpoint_timeout_s=TIMEOUT_S))
writer, committers = sink.writer, {sink.committer.name: sink.committer}

# Opening the log fences every older run; then what it decided is committed, and the rest aborted.
log = DecisionLog.open(LocalFileBackend(FOLDER / "decisions"), application_id="copy", identity={})
settled = recover(log, committers, Deadline(TIMEOUT_S))
coordinator = CheckpointCoordinator(
    log, committers, timeout_s=TIMEOUT_S, stopping=lambda: False, lost=settled.lost
)

# The last decision is the state: no other place could disagree with it.
last = log.state.decision
number = 0 if last is None else last.checkpoint_id + 1
offsets = dict.fromkeys(NUMBERS, 0) if last is None else json.loads(last.end_offsets[0])

while any(offsets[partition] < len(numbers) for partition, numbers in NUMBERS.items()):
    ends = {partition: offset + PER_CHECKPOINT for partition, offset in offsets.items()}
    checkpoint = Checkpoint(
        checkpoint_id=number,
        query_id="copy",
        start_offsets=(json.dumps(offsets),),
        end_offsets=(json.dumps(ends),),
    )
    # Checks what was written, appends the decision, and only then commits: the renames.
    coordinator.commit_batch(checkpoint, functools.partial(write, number, offsets, ends))
    number, offsets = number + 1, ends

coordinator.close()
