"""What the log says about a checkpoint that the engine wants to run: new, decided before, or
neither.

Pure: it reads only its arguments.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

import orjson

from transactions.errors import WAY_BACK, ReplayMismatchError
from transactions.log_entries import Decision
from transactions.log_state import LogState


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Which checkpoint is to be made, as Spark describes it.

    Attributes:
        checkpoint_id: Spark's batch id.
        query_id: Spark's id of the query.
        start_offsets: JSON per source before the batch ("" when there is none yet).
        end_offsets: JSON per source after the batch.
        partitioning: facts of the plan that a replay must reproduce.
    """

    checkpoint_id: int
    query_id: str
    start_offsets: tuple[str, ...]
    end_offsets: tuple[str, ...]
    partitioning: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Replay(enum.Enum):
    """What the log says about a checkpoint that Spark wants to run."""

    AFRESH = "no decision: run it"
    DECIDED = "decided by an earlier run: finish it, write only what was lost"


def replay_of(log: LogState, checkpoint: Checkpoint) -> Replay:
    """Return whether a checkpoint was decided before.

    Args:
        log: what was decided.
        checkpoint: what the engine wants to run.

    Raises:
        ReplayMismatchError: it was decided with another query or other offsets, or a later one was
            decided; or it is new and does not begin where the last decision ends.
    """
    last = log.decision
    if last is None:
        return Replay.AFRESH
    if last.checkpoint_id < checkpoint.checkpoint_id:
        if last.generation == log.generation:
            _check_follows(last, checkpoint)
        return Replay.AFRESH
    same = (
        last.checkpoint_id == checkpoint.checkpoint_id
        and last.query_id == checkpoint.query_id
        and last.generation == log.generation
        and last.start_offsets == checkpoint.start_offsets
        and last.end_offsets == checkpoint.end_offsets
    )
    if same:
        return Replay.DECIDED
    raise ReplayMismatchError(
        f"Spark wants to run checkpoint {checkpoint.checkpoint_id} with other offsets or "
        "another query than the decision has.",
        where=f"decided: checkpoint {last.checkpoint_id} of query {last.query_id}, "
        f"{last.start_offsets} to {last.end_offsets}; now: query {checkpoint.query_id}, "
        f"{checkpoint.start_offsets} to {checkpoint.end_offsets}",
        cause="Spark's part of the checkpoint was deleted, or restored from a backup",
        option=WAY_BACK,
    )


def _check_follows(last: Decision, checkpoint: Checkpoint) -> None:
    """Check that a new checkpoint begins where the last decision ends.

    Spark plans from its own offsets/N. A slow other driver can have written that file after the
    decision: records would be read twice, or never.

    Raises:
        ReplayMismatchError: it does not.
    """
    number = checkpoint.checkpoint_id
    if (
        number == last.checkpoint_id + 1
        and checkpoint.query_id == last.query_id
        and same_places(checkpoint.start_offsets, last.end_offsets)
    ):
        return
    raise ReplayMismatchError(
        f"Checkpoint {number} does not begin where the last decided checkpoint ends; records "
        "would be lost or written twice.",
        where=f"decided: checkpoint {last.checkpoint_id} of query {last.query_id}, up to "
        f"{last.end_offsets}; now: query {checkpoint.query_id}, from {checkpoint.start_offsets}",
        cause="Spark's part of the checkpoint was changed by another driver, deleted, or restored "
        "from a backup",
        option=WAY_BACK,
    )


def same_places(some: Sequence[str], others: Sequence[str]) -> bool:
    """Compare offsets: Spark may print the same offsets in two ways. It has those of one source as
    often as the plan uses that source, and another set of sinks uses it more or less often.
    """
    if some == others:
        return True
    ours, theirs = [_parsed(one) for one in some], [_parsed(one) for one in others]
    return ours == theirs or (bool(ours) and all(one == ours[0] for one in ours + theirs))


def _parsed(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
