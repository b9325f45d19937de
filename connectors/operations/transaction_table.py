"""Joins the transactions of a log with what the broker says of them: a verdict for each. Pure.

For a decided transaction the verdicts are those of the recovery table; `advice` says what a start
would do. Nothing here settles anything: a row is what could be seen at one moment.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from connectors.clients.transactional_id import TransactionalId, probe_id
from connectors.wire.wire_requests import TransactionDescription
from transactions.committable import Committable
from transactions.errors import ConfigurationError
from transactions.log_state import LogState

_COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED: Final = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


class Standing(enum.Enum):
    """How a transaction stands."""

    PENDING = "pending"
    COMMITTED = "committed"
    HIDDEN = "hidden"
    ABORTED = "aborted"
    RESOLVED = "resolved"
    UNKNOWN = "unknown"
    OPEN = "open"
    LINGERING = "lingering"
    OTHER_LOG = "other log"
    STRANGERS = "stranger's"
    PROBE = "probe"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One transaction.

    Attributes:
        standing: the verdict.
        proof: what the verdict rests on.
        advice: what happens next, or what to do.
        sink: name of its sink; "" if only the broker knows the transaction.
        transactional_id: see `Committable`.
        producer_id: that of the decided transaction, else the broker's.
        producer_epoch: the epoch of that producer.
        state: the broker's word for it; "" when the broker was not asked.
        age_ms: the time since it began, -1 when unknown.
        timeout_ms: the time after which the broker aborts it.
        partitions: what it wrote to.
        decided: the committable; None for a transaction that no checkpoint owns.
        marker: committed (offset, metadata) at the place of its token; None when there is none.
    """

    standing: Standing
    proof: str
    advice: str
    sink: str = ""
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str = ""
    age_ms: int = -1
    timeout_ms: int = -1
    partitions: tuple[str, ...] = ()
    decided: Committable | None = None
    marker: tuple[int, str] | None = None

    def is_called(self, name: str) -> bool:
        """Return whether a person means this transaction by an id or a token."""
        return name in (self.transactional_id, self.decided.token if self.decided else "")

    def is_chosen(self, names: Sequence[str]) -> bool:
        """Return whether it is one of the named transactions; no name stands for all of them."""
        return not names or any(map(self.is_called, names))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was read, at one moment.

    Attributes:
        log: the decision log.
        finished: newest checkpoint that Spark has written down as done, -1 for none.
        run_alive: whether the newest run's process lives; None when that cannot be seen from this
            machine.
        described: transactional id -> the coordinator's words; None when no broker was asked.
        open_ids: sink -> ids of this application that hold readers back.
        markers: token -> committed (offset, metadata) at its place.
        hidden: token -> where a marker is missing, if its transaction is committed.
        now_ms: wall clock.
    """

    log: LogState
    finished: int = -1
    run_alive: bool | None = None
    described: Mapping[str, TransactionDescription] | None = None
    open_ids: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    markers: Mapping[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
    hidden: Mapping[str, str] = dataclasses.field(default_factory=dict)
    now_ms: int = 0


def join(seen: Seen) -> list[Row]:
    """Return the last decision's transactions, then the open ones that it does not own."""
    decision = seen.log.decision
    committables = () if decision is None else decision.committables
    rows = [_decided(one, seen) for one in committables]
    owned = {
        one.transactional_id
        for one in committables
        if (now := (seen.described or {}).get(one.transactional_id)) is not None
        and (now.producer_id, now.start_time_ms) == (one.producer_id, one.start_time_ms)
    }
    # An id is listed once per sink of its cluster.
    others = sorted({name for ids in seen.open_ids.values() for name in ids} - owned)
    return rows + [row for name in others if (row := _open(name, seen)) is not None]


def unsettled(rows: Iterable[Row]) -> list[Row]:
    """Return decided transactions that are not proven to have ended: nobody may touch them."""
    return [row for row in rows if row.standing in (Standing.PENDING, Standing.UNKNOWN)]


def abortable(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return open transactions of this log that no checkpoint owns; all if no name is given."""
    decided = {row.transactional_id for row in unsettled(rows)}
    return [
        row
        for row in rows
        if row.standing in (Standing.LINGERING, Standing.OPEN)
        and row.state == "Ongoing"
        and row.transactional_id not in decided
        and row.is_chosen(names)
    ]


def refuse_to_abort(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Check that each name is of a transaction that may be aborted.

    Raises:
        ConfigurationError: it is decided, is not of this log, or is not there.
    """
    allowed = {row.transactional_id for row in abortable(rows, ())}
    for name in names:
        found = [row for row in rows if row.is_called(name)]
        if not found:
            raise absent(name)
        row = found[0]
        if row.transactional_id in allowed:
            continue
        decided = row.decided is not None
        raise ConfigurationError(
            "A decided transaction is never aborted: its checkpoint must become visible."
            if decided
            else "This transaction is not lingering.",
            where=f"{row.transactional_id}: {row.standing.value}; {row.proof}",
            cause="abort is only for transactions that no checkpoint of this log owns",
            option="sparkonce transactions commit" if decided else row.advice,
        )


def absent(name: str) -> ConfigurationError:
    """Return the error for an id or token that no row has."""
    return ConfigurationError(
        "No such transaction is decided or open in this log.",
        where=name,
        cause="it has ended, belongs to an older checkpoint, or the id is misspelt",
        option="sparkonce transactions list",
    )


def _decided(one: Committable, seen: Seen) -> Row:
    marker = seen.markers.get(one.token)
    now = None if seen.described is None else seen.described.get(one.transactional_id)
    standing, proof = _standing(one, now, marker, seen)
    if standing is Standing.COMMITTED and one.token in seen.hidden:
        standing, proof = Standing.HIDDEN, f"committed, and no marker in {seen.hidden[one.token]}"
    return Row(
        standing=standing,
        proof=proof,
        advice=_ADVICE[standing],
        sink=one.sink,
        transactional_id=one.transactional_id,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        state="" if now is None else now.state or now.error,
        age_ms=seen.now_ms - one.start_time_ms if one.start_time_ms >= 0 else -1,
        timeout_ms=one.timeout_ms,
        partitions=one.partitions,
        decided=one,
        marker=marker,
    )


def _standing(
    one: Committable,
    now: TransactionDescription | None,
    marker: tuple[int, str] | None,
    seen: Seen,
) -> tuple[Standing, str]:
    if verdict := seen.log.ended.get(one.token):
        return Standing.RESOLVED, f"a person decided: {verdict}"
    if one.checkpoint_id <= seen.finished:
        return Standing.COMMITTED, f"Spark has written checkpoint {one.checkpoint_id} down as done"
    if now is None:
        return Standing.UNKNOWN, "no broker was asked"
    return _by_broker(one, now, marker)


def _by_broker(
    one: Committable, now: TransactionDescription, marker: tuple[int, str] | None
) -> tuple[Standing, str]:
    same = (now.producer_id, now.start_time_ms) == (one.producer_id, one.start_time_ms)
    if same and now.state == "Ongoing" and now.producer_epoch == one.producer_epoch:
        return Standing.PENDING, "open, with the producer id, epoch and start of the decision"
    if same and now.state in _COMMITTED:
        return Standing.COMMITTED, f"{now.state}, with the producer id and start of the decision"
    if same and now.state in _ABORTED:
        return Standing.ABORTED, f"{now.state}, with the producer id and start of the decision"
    if marker is not None and marker[1] == one.token:
        return Standing.COMMITTED, f"its token is committed in the group {one.marker_group}"
    went_on = now.error or f"the id went on: {now.state}, epoch {now.producer_epoch}"
    return Standing.UNKNOWN, f"{went_on}; its token is not committed"


_ADVICE: Final[Mapping[Standing, str]] = {
    Standing.PENDING: "the next start commits it, and so does: transactions commit",
    Standing.COMMITTED: "nothing",
    Standing.HIDDEN: "readers wait for ever, until: transactions write-markers",
    Standing.ABORTED: "the next start heals it from its source offsets; when that fails: resolve",
    Standing.RESOLVED: "nothing; the next start acts on it",
    Standing.UNKNOWN: "the next start asks again; when it cannot learn the end: resolve ID",
}


def _open(name: str, seen: Seen) -> Row | None:
    now = (seen.described or {}).get(name)
    if now is None or now.error:
        return None  # it ended between two answers
    standing, proof, advice = _ownerless(name, seen)
    return Row(
        standing=standing,
        proof=proof,
        advice=advice,
        transactional_id=name,
        producer_id=now.producer_id,
        producer_epoch=now.producer_epoch,
        state=now.state,
        age_ms=seen.now_ms - now.start_time_ms if now.start_time_ms >= 0 else -1,
        timeout_ms=now.timeout_ms,
        partitions=tuple(sorted(now.partitions)),
    )


def _ownerless(name: str, seen: Seen) -> tuple[Standing, str, str]:
    if name == probe_id(seen.log.application_id):
        return Standing.PROBE, "of sparkonce doctor", "nothing; it ends within ten seconds"
    ours = TransactionalId.of(seen.log.application_id, name)
    if ours is None:
        return (
            Standing.STRANGERS,
            "its id begins like ours and has another shape",
            "it is of another client: ask its owner; nothing here touches it",
        )
    if ours.log_id != seen.log.log_id:
        return (
            Standing.OTHER_LOG,
            f"log {ours.log_id}, this one is {seen.log.log_id}",
            "another checkpoint of the same application: stop one of the two pipelines",
        )
    run, newest = ours.run_epoch, seen.log.run_epoch
    if run < newest:
        return Standing.LINGERING, f"run {run} is fenced by run {newest}", _SWEPT
    if run == newest and seen.run_alive is False:
        return Standing.LINGERING, f"run {run} is gone: {seen.log.host}", _SWEPT
    return (
        Standing.OPEN,
        f"run {run}: {seen.log.host}",
        "nothing while that driver runs; when it is dead, the next start sweeps it",
    )


_SWEPT: Final = "the next start aborts it, and so does: transactions abort"
