"""A sink driven as the engine drives it: one attempt of a task, and whole checkpoints of a driver.

Functions of this module run in this process, or pickled in a process that is killed.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog
from transactions.log_backend import LocalFileBackend
from transactions.recovery import recover
from transactions.replay import Checkpoint
from transactions.sink import AnyWriter, Attempt, Sink, SinkContext
from transactions.testing.killed_process import Answer

#: What one subtask writes in one attempt.
Batches = Sequence[Any]


def travelled(writer: AnyWriter) -> AnyWriter:
    """Return the writer as a task finds it in its closure."""
    copy: AnyWriter = pickle.loads(pickle.dumps(writer))  # noqa: S301 - our own
    return copy


def begun(writer: AnyWriter, attempt: Attempt, batches: Batches) -> Any:
    """Return an open transaction with these batches in it."""
    transaction = writer.begin_transaction(attempt)
    for batch in batches:
        writer.invoke(transaction, batch)
    return transaction


def prepared(writer: AnyWriter, attempt: Attempt, batches: Batches) -> Committable | None:
    """Run phase 1 of a task, and return what arrives at the driver."""
    one = writer.pre_commit(begun(writer, attempt, batches))
    return None if one is None else Committable.from_json(one.to_json())


def prepare_and_answer(
    writer: AnyWriter, attempt: Attempt, batches: Batches, answer: Answer
) -> None:
    """Run phase 1 of a task that dies the moment its committable has left."""
    transaction = begun(writer, attempt, batches)
    one = writer.pre_commit(transaction)
    answer(b"" if one is None else one.to_json())


def begin_and_answer(writer: AnyWriter, attempt: Attempt, batches: Batches, answer: Answer) -> None:
    """Run a task that dies with its transaction open."""
    transaction = begun(writer, attempt, batches)
    answer(repr(transaction).encode())


def run_checkpoint(
    sink: Sink,
    number: int,
    subtasks: Sequence[Batches],
    _answer: Answer | None = None,
    *,
    folder: Path,
    application_id: str,
    seconds: float,
) -> None:
    """Start a driver, let it recover, and make one checkpoint; or finish it if it was decided.

    Args:
        sink: the only one of the driver.
        number: of the checkpoint.
        subtasks: the batches of each subtask.
        folder: of the decision log.
        application_id: of the pipeline.
        seconds: how long the checkpoint may take.
    """
    log = DecisionLog.open(LocalFileBackend(folder), application_id=application_id, identity={})
    opened = sink.open(SinkContext(checkpoint_timeout_s=seconds))
    committers = {sink.name: opened.committer}
    settlement = recover(log, committers, Deadline(seconds))
    coordinator = CheckpointCoordinator(
        log, committers, timeout_s=seconds, stopping=lambda: False, lost=settlement.lost
    )
    checkpoint = Checkpoint(
        checkpoint_id=number,
        query_id="contract",
        start_offsets=(str(number - 1),),
        end_offsets=(str(number),),
    )

    def phase_one() -> list[Committable]:
        tasks = [
            prepared(
                travelled(opened.writer),
                Attempt(
                    owner=log.owner,
                    checkpoint_id=number,
                    subtask=subtask,
                    attempt_id=f"{log.run_epoch}.{number * len(subtasks) + subtask}",
                    last_decided=coordinator.last_decided(),
                    retired=coordinator.retired(),
                ),
                batches,
            )
            for subtask, batches in enumerate(subtasks)
        ]
        return [one for one in tasks if one is not None]

    try:
        coordinator.run(checkpoint, phase_one)
        coordinator.await_visible()
    finally:
        coordinator.close()
        opened.committer.close()
