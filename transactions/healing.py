"""Healing: a decided transaction that the broker aborted is produced again, proven, committed.

The decision was a promise, and the broker broke it: the transaction's timeout passed while every
driver was down, or an operator aborted the transaction. The records are still in the source, and
Spark's batch can run again. So the lost subtasks write once more, in new transactions. If count and
fingerprint prove that the records are the same, the log durably puts the new transaction in the
place of the old one, and the new one is committed; otherwise it is not. (Flink logs such a loss and
goes on without the records: `KafkaCommitter`, "will be lost".)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import orjson

from transactions.committable import Committable
from transactions.errors import ReplayMismatchError, TransactionLostError
from transactions.events import publish
from transactions.log_entries import REPLAY
from transactions.log_state import LogState

#: Runs the plan of the checkpoint again, and writes only what these committables have lost.
Rerun = Callable[[Sequence[Committable]], Sequence[Committable]]

#: A healed transaction can be lost again; after so many rounds the broker is broken, not slow.
MOST_ROUNDS = 3


def matched(
    lost: Sequence[Committable],
    produced: Sequence[Committable],
    resolved: Mapping[str, str],
) -> list[tuple[Committable, Committable | None]]:
    """Pair each lost transaction with the one that holds its records now. The pair has None where a
    person accepted any replay, and the replay gave nothing.

    Args:
        lost: what the broker aborted.
        produced: what the replay wrote, prepared and not committed.
        resolved: what a person decided, per lost token; REPLAY switches the comparison off.

    Raises:
        TransactionLostError: the replay gave other records; nothing of it may be committed.
    """
    found = {(one.sink, one.subtask): one for one in produced}
    pairs: list[tuple[Committable, Committable | None]] = []
    for old in lost:
        new = found.pop((old.sink, old.subtask), None)
        forced = resolved.get(old.token) == REPLAY
        problem = "it wrote nothing" if new is None else _difference(old, new)
        if problem and not forced:
            raise refusal(lost, f"subtask {old.subtask} of sink {old.sink!r}: {problem}")
        pairs.append((old, new))
    if found:
        raise refusal(lost, f"subtasks {sorted(key[1] for key in found)} wrote unasked")
    return pairs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a subtask produced, but did not write, in a replay that only rebuilds state.

    Attributes:
        sink: name of the sink of its branch.
        subtask: number of the sink task.
        record_count: how many records.
        fingerprint: the one that a committable of this sink would have.
    """

    sink: str
    subtask: int
    record_count: int
    fingerprint: str

    def to_json(self) -> bytes:
        """Return the bytes that travel from a task to the driver."""
        return orjson.dumps({"replayed": dataclasses.asdict(self)})


def check_replayed(state: LogState, replayed: Sequence[Replayed]) -> None:
    """Compare a replay that rebuilds the engine's state with what the last decision wrote.

    It compares per sink and subtask, as healing does. It skips a sink that is not in `replayed`:
    that sink has no fingerprints (none of its records were decided), or cannot take them without
    writing.

    Args:
        state: of the log. If a person has resolved something of this decision, nothing is compared:
            that verdict was about a replay that differs.
        replayed: one for every subtask that was not written again.

    Raises:
        ReplayMismatchError: they differ: state and output would never agree again.
    """
    decision = state.decision
    if decision is None or state.resolved:
        return
    told = {one.sink for one in replayed}
    decided = {(one.sink, one.subtask): one for one in state.decided if one.sink in told}
    for now in replayed:
        then = decided.get((now.sink, now.subtask))
        count = 0 if then is None else then.record_count
        if now.record_count != count:
            why = f"{now.record_count} records, {count} were decided"
        elif then is not None and now.fingerprint != then.fingerprint:
            why = f"as many records ({count}), but not the same"
        else:
            continue
        raise ReplayMismatchError(
            f"The replay of checkpoint {decision.checkpoint_id} gives other records than the "
            "decided ones; its state would not match the output.",
            where=f"checkpoint {decision.checkpoint_id}, subtask {now.subtask} of sink "
            f"{now.sink!r}: {why}; source offsets {decision.start_offsets} to "
            f"{decision.end_offsets}",
            cause="the plan is not deterministic (rand(), uuid(), a table that has changed), its "
            "number of sink tasks has changed, or the source has deleted records",
            option="sparkonce transactions resolve --accept-state, or --from-savepoint",
        )


def refusal(lost: Sequence[Committable], why: str) -> TransactionLostError:
    """Return the error that hands the decision to a person."""
    return TransactionLostError(
        f"{len(lost)} decided transaction(s) were aborted by the broker, and their records could "
        f"not be produced again: {why}.",
        where=names(lost),
        cause="the plan is not deterministic, its number of sink tasks has changed, or the source "
        "has deleted the records; the broker aborted the transactions because the downtime was "
        "longer than their timeout, or an operator aborted them",
        option="sparkonce transactions resolve --accept-loss | --replay; "
        f"transaction_timeout_ms={lost[0].timeout_ms}",
    )


def not_healed(lost: Sequence[Committable]) -> TransactionLostError:
    """Return the error of a run that ended before it could heal anything."""
    return TransactionLostError(
        f"{len(lost)} decided transaction(s) had been aborted by the broker, and the run was "
        "stopped before it wrote their records again.",
        where=names(lost),
        cause="the downtime was longer than their timeout, or somebody aborted them; the stop came "
        "before the end of the replay that heals them",
        option="start the pipeline: it heals them from their source offsets",
    )


def tell_lost(app: str, lost: Sequence[Committable]) -> None:
    """Publish that the broker has aborted decided transactions, if there are any."""
    if lost:
        publish("lost", app=app, transactions=len(lost), where=names(lost))


def names(committables: Sequence[Committable]) -> str:
    """Return checkpoint, ids and offsets, bounded, for an error's `where`."""
    first = committables[0]
    ids = ", ".join(one.transactional_id for one in committables[:5])
    more = f" and {len(committables) - 5} more" if len(committables) > 5 else ""
    offsets = {name: o for one in committables for name, o in one.source_offsets.items()}
    return f"checkpoint {first.checkpoint_id}; {ids}{more}; source offsets up to {offsets}"


def _difference(old: Committable, new: Committable) -> str:
    if old.record_count != new.record_count:
        return f"{new.record_count} records, {old.record_count} were decided"
    if old.fingerprint != new.fingerprint:
        return f"as many records ({new.record_count}), but not the same"
    if dict(old.source_offsets) != dict(new.source_offsets):
        return f"offsets {dict(new.source_offsets)}, {dict(old.source_offsets)} were decided"
    return ""
