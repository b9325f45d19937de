"""What a decision log says as a whole: a pure fold over its entries, without I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from transactions.committable import Committable
from transactions.log_entries import (
    ACCEPT_STATE,
    Decision,
    Entry,
    Fence,
    Healed,
    Resolved,
    Restore,
    Settled,
    Snapshot,
    Start,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What a reader knows after the last entry: a pure fold over all of them.

    Attributes:
        application_id: owner of the log; empty before the first entry.
        log_id: random name of the log; empty before the first entry.
        tail: number of the last entry, 0 before the first.
        run_epoch: number of the newest Fence.
        host: the host that wrote that Fence.
        identity: the options in that Fence.
        generation: number of restores so far.
        decision: the last decision, with healed committables in place; without committables when a
            `Settled` says that nothing of it is left to prove.
        resolved: what a person decided, per token of the last decision (see `Resolved`).
        start: where each source begins (see `Start`); empty until a `Start` says it.
        accepted: tokens of output that a person knows and this log does not.
        written: committables of the last decision, if it is settled; a replay is compared with
            them.
        decided_in: epoch of the run that made the last decision, 0 when that is not known. Entries
            of older runs stand before that decision in the log.
        asked: for each source, the option that `start` was resolved from, where it is known.
        left: the run of the newest Fence has ended in order, and nothing of it is open.
    """

    application_id: str = ""
    log_id: str = ""
    tail: int = 0
    run_epoch: int = 0
    host: str = ""
    identity: Mapping[str, str] = dataclasses.field(default_factory=dict)
    generation: int = 0
    decision: Decision | None = None
    resolved: Mapping[str, str] = dataclasses.field(default_factory=dict)
    start: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    written: tuple[Committable, ...] = ()
    decided_in: int = 0
    asked: tuple[str, ...] = ()
    left: bool = False

    @property
    def decided(self) -> tuple[Committable, ...]:
        """What the last decision wrote, settled or not."""
        return (
            self.written if self.decision is None else (*self.decision.committables, *self.written)
        )

    @property
    def decided_here(self) -> Decision | None:
        """The last decision, if a run on these files made it: a restored savepoint has another
        generation, and may have other topics or sources.
        """
        decision = self.decision
        is_here = decision is not None and decision.generation == self.generation
        return decision if is_here else None

    @property
    def ended(self) -> Mapping[str, str]:
        """The part of `resolved` that says how a transaction ended, or what takes its place."""
        return {token: one for token, one in self.resolved.items() if one != ACCEPT_STATE}

    def after(self, entry: Entry) -> LogState:
        """Return the state after one more entry."""
        changed: dict[str, Any] = {
            "application_id": entry.application_id,
            "log_id": entry.log_id,
            "tail": entry.sequence,
        }
        match entry.body:
            case Fence(host=host, identity=identity, accepted=accepted):
                changed |= {"run_epoch": entry.sequence, "host": host, "identity": identity}
                changed |= {"accepted": accepted, "left": False}
            case Start(sources=sources, asked=asked):
                changed |= {"start": sources, "asked": asked}
            case Decision() as decision:
                changed |= {"decision": decision, "resolved": {}, "written": ()}
                changed["decided_in"] = self.run_epoch
            case Healed() as healed:
                changed["decision"] = _with_healed(self.decision, healed)
            case Settled(checkpoint_id=number, left=left):
                changed |= _settled(self.decision, number) | {"left": left}
            case Resolved(verdict=verdict, tokens=tokens):
                changed["resolved"] = {**self.resolved, **dict.fromkeys(tokens, verdict)}
            case Restore(generation=generation):
                changed["generation"] = generation
            case Snapshot() as snapshot:
                fields = dataclasses.fields(snapshot)
                changed |= {field.name: getattr(snapshot, field.name) for field in fields}
        return dataclasses.replace(self, **changed)

    def snapshot(self) -> Snapshot:
        """Return the entry from which a later reader can start."""
        return Snapshot(
            run_epoch=self.run_epoch,
            host=self.host,
            identity=self.identity,
            generation=self.generation,
            decision=self.decision,
            resolved=self.resolved,
            start=self.start,
            accepted=self.accepted,
            written=self.written,
            decided_in=self.decided_in,
            asked=self.asked,
            left=self.left,
        )


def _with_healed(decision: Decision | None, healed: Healed) -> Decision | None:
    if decision is None or decision.checkpoint_id != healed.checkpoint_id:
        return decision
    key = (healed.committable.sink, healed.subtask)
    kept: list[Committable] = [
        healed.committable if (one.sink, one.subtask) == key else one
        for one in decision.committables
    ]
    return dataclasses.replace(decision, committables=tuple(kept))


def _settled(decision: Decision | None, checkpoint_id: int) -> dict[str, Any]:
    if decision is None or decision.checkpoint_id != checkpoint_id or not decision.committables:
        return {}
    rest = dataclasses.replace(decision, committables=())
    return {"decision": rest, "written": decision.committables}
