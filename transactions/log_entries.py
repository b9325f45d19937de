"""What the decision log says: its entries, as bytes with version, checksum and identity.

An entry is one JSON object. The checksum covers everything else in it; a reader checks the format
version before it believes anything else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
from collections.abc import Mapping
from typing import Any, TypeAlias, get_args

import msgspec
import orjson

from transactions.committable import Committable
from transactions.errors import WAY_BACK, LogCorruptedError, LogVersionError

#: The format of the oldest reader. An entry has the lowest format that can express all of it.
FORMAT_VERSION = 1
_NEWEST_FORMAT = 3

#: The verdicts of `Resolved`.
ACCEPT_LOSS = "accept-loss"
REPLAY = "replay"
ACCEPT_STATE = "accept-state"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A new run begins; every older run stops at its next append. Its number is the run epoch.

    Attributes:
        host: where the run lives, as ``host/process``, for the older run's error text.
        identity: options that must match at every restart.
        accepted: tokens of output that the cluster has and this log does not know; a person has
            said that it may be written twice.
    """

    host: str
    identity: Mapping[str, str]
    accepted: tuple[str, ...] = ()


def this_process() -> str:
    """Return the ``host/process`` that the Fences of this process name."""
    return f"{socket.gethostname()}/{os.getpid()}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Checkpoint N is to be committed: the point of no return.

    Attributes:
        checkpoint_id: N; Spark's batch id in micro-batch mode.
        query_id: Spark's id of the query, stable over restarts of one checkpoint folder.
        generation: raised by every restore of a savepoint; older decisions never match again.
        start_offsets: Spark's JSON of the offsets before the batch, one string per source.
        end_offsets: the same after the batch; the ListState of the sources.
        committables: every non-empty transaction of the checkpoint.
        partitioning: facts of the plan that a replay must reproduce.
    """

    checkpoint_id: int
    query_id: str
    generation: int
    start_offsets: tuple[str, ...]
    end_offsets: tuple[str, ...]
    committables: tuple[Committable, ...]
    partitioning: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """A subtask of a decided checkpoint was produced again; from now on prove this committable."""

    checkpoint_id: int
    subtask: int
    committable: Committable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Every transaction of decision N is proven to have ended, and readers see what is committed.

    From here on the broker may forget them. A reader treats the decision as one without
    committables, and keeps these apart, because the engine may still replay the checkpoint. Only
    the last decision is ever settled; for an earlier one, the next decision says the same.

    Attributes:
        checkpoint_id: N; -1 before the first decision.
        left: the run has ended in order, and nothing of it is open. An older reader does not know
            the word, and needs it for nothing.
    """

    checkpoint_id: int
    left: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A person has decided about transactions of checkpoint N that could not be healed.

    Attributes:
        checkpoint_id: N, the last decided checkpoint.
        verdict: ACCEPT_LOSS (they count as ended), REPLAY (what a replay gives is committed, even
            if it is not what was lost), or ACCEPT_STATE (the engine's state may come from another
            replay than the output; it does not say how the transactions ended).
        tokens: those of the committables that the verdict is about.
        note: who said it and why, for the record.
    """

    checkpoint_id: int
    verdict: str
    tokens: tuple[str, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A savepoint was restored; decisions of older generations match nothing any more."""

    generation: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where each source begins, resolved once, because "latest" is a new place at every look.

    Attributes:
        sources: JSON per source, in the driver's order: offsets, and the ids of its topics. A
            source that goes on from its own offsets has none here.
        asked: per source, the option that was resolved, for a later change of it, or the query of
            another system whose end it is; "" where it is not known. Entries of an older version
            have none.
    """

    sources: tuple[str, ...]
    asked: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a reader still needs of the entries below; those may be deleted.

    Attributes:
        run_epoch: number of the newest Fence.
        host: of that Fence.
        identity: of that Fence.
        generation: the current one.
        decision: the last one, with healed committables in place; None before the first.
        resolved: what a person decided, per token of the last decision.
        start: of each source, see `Start`.
        accepted: of that Fence.
        written: committables of a settled decision; a replay of it is compared with them.
        decided_in: epoch of the run that made the last decision; 0 before the first, and in a
            snapshot of a version that did not keep it.
        asked: see `Start`.
        left: see `Settled`; of the newest Fence's run.
    """

    run_epoch: int
    host: str
    identity: Mapping[str, str]
    generation: int
    decision: Decision | None
    resolved: Mapping[str, str] = dataclasses.field(default_factory=dict)
    start: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    written: tuple[Committable, ...] = ()
    decided_in: int = 0
    asked: tuple[str, ...] = ()
    left: bool = False


Body: TypeAlias = Fence | Start | Decision | Healed | Settled | Resolved | Restore | Snapshot
_KINDS: Mapping[str, type[Body]] = {kind.__name__.lower(): kind for kind in get_args(Body)}
#: Fields that came after the first format: they are left out where they say nothing.
_LATER = frozenset({"accepted", "written", "decided_in", "asked", "refused", "left"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One numbered entry of the log.

    Attributes:
        sequence: dense number, from 1.
        application_id: whose log this is.
        log_id: random; made with the first entry.
        nonce: random per append; shows the writer whether a doubtful put was its own.
        written_at_ms: wall clock of the writer.
        body: what it says.
    """

    sequence: int
    application_id: str
    log_id: str
    nonce: str
    written_at_ms: int
    body: Body

    def to_bytes(self) -> bytes:
        """Return the JSON with its checksum."""
        fields = {
            "format": _format_of(self.body),
            "sequence": self.sequence,
            "application_id": self.application_id,
            "log_id": self.log_id,
            "nonce": self.nonce,
            "written_at_ms": self.written_at_ms,
            "kind": type(self.body).__name__.lower(),
            "body": _plain(self.body),
        }
        return orjson.dumps({**fields, "checksum": _checksum(fields)})

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Entry:
        """Read `to_bytes` back and check it.

        Raises:
            LogVersionError: written by a newer version.
            LogCorruptedError: torn, altered, or not an entry at all.
        """
        try:
            fields = orjson.loads(data)
            version = fields["format"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise _corrupted(where, "it is not a complete entry") from error
        if version not in range(FORMAT_VERSION, _NEWEST_FORMAT + 1):
            raise LogVersionError(
                f"A decision-log entry has format {version!r}; this version reads up to "
                f"{_NEWEST_FORMAT}.",
                where=where,
                cause="a newer sparkonce has run on this checkpoint",
                option="upgrade sparkonce, or use another checkpoint",
            )
        if fields.pop("checksum", None) != _checksum(fields):
            raise _corrupted(where, "its checksum does not match its content")
        fields.pop("format")
        kind = fields.pop("kind")
        body = fields.pop("body")
        return cls(**fields, body=_body_of(kind, body, where))


def _format_of(body: Body) -> int:
    """Return the format of the oldest reader that understands the body."""
    if isinstance(body, Snapshot) and (body.decided_in or body.asked):
        return 3
    if isinstance(body, Snapshot) and (body.start or body.written):
        return 2
    if isinstance(body, Fence | Snapshot) and body.accepted:
        return 2
    return 2 if isinstance(body, Start | Settled) else FORMAT_VERSION


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _corrupted(where: str, cause: str) -> LogCorruptedError:
    return LogCorruptedError(
        "A decision-log entry cannot be trusted; nothing was committed or aborted.",
        where=where,
        cause=cause,
        option=WAY_BACK,
    )


def _plain(body: Any) -> Any:
    """Return a body as JSON has it: without the fields that an older reader does not know."""
    return _known(msgspec.to_builtins(body))


def _known(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: _known(one) for name, one in plain.items() if one or name not in _LATER}
    return list(map(_known, plain)) if isinstance(plain, list) else plain


def _body_of(kind: str, plain: Any, where: str) -> Body:
    if kind not in _KINDS:
        raise _corrupted(where, f"its kind {kind!r} is not known")
    try:
        return msgspec.convert(plain, _KINDS[kind])
    except msgspec.ValidationError as error:
        if str(error).endswith(".format`"):
            raise LogVersionError(
                f"A committable in the decision log has a format that is not known: {error}.",
                where=where,
                cause="a newer sparkonce has run on this checkpoint",
                option="upgrade sparkonce, or use another checkpoint",
            ) from error
        raise _corrupted(where, str(error)) from error
