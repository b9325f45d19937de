"""What is published about a checkpoint: how long its phases took, and its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from transactions.clock import Clock
from transactions.committable import Committable, oldest_start_ms
from transactions.errors import TransactionLostError
from transactions.events import publish


class PhaseWatch:
    """Writes down how long each phase took, in milliseconds."""

    def __init__(self, clock: Clock, laps: dict[str, float]) -> None:
        self._clock = clock
        self._laps = laps
        self._last = clock.monotonic()

    def lap(self, name: str) -> None:
        """End the phase that is running."""
        now = self._clock.monotonic()
        self._laps[name] = (now - self._last) * 1000.0
        self._last = now


def tell_decided(
    app: str, checkpoint_id: int, committables: Sequence[Committable], now_ms: int
) -> None:
    """Publish that these transactions will be committed, whatever happens; see `tell_aging`."""
    publish(
        "decided",
        app=app,
        checkpoint=checkpoint_id,
        transactions=len(committables),
        records=sum(one.record_count for one in committables),
        oldest_start_ms=oldest_start_ms(committables),
    )
    tell_aging(committables, now_ms)


def tell_refused(app: str, checkpoint_id: int, written: Iterable[Committable]) -> None:
    """Publish how many records a sink without a guarantee could not deliver, if there was any."""
    for one in written:
        if one.refused:
            name, count = one.sink, one.refused
            publish("refused", app=app, checkpoint=checkpoint_id, sink=name, records=count)


def tell_recommitted(app: str, checkpoint_id: int, transactions: int) -> None:
    """Publish that settling found transactions open and committed them, if there were any."""
    if transactions:
        publish("recommitted", app=app, checkpoint=checkpoint_id, transactions=transactions)


def tell_aging(committables: Iterable[Committable], now_ms: int) -> None:
    """Publish that decided transactions have used up half of their timeout, if any have.

    After the whole timeout the broker aborts them, and only healing brings their records back. The
    checkpoint or the downtime was then longer than the timeout allows: rule 14 (docs/design.md).
    """
    old = [one for one in committables if 0 <= one.start_time_ms < now_ms - one.timeout_ms / 2]
    if old:
        first = min(old, key=lambda one: one.start_time_ms)
        publish(
            "aging",
            app=first.transactional_id.partition(".")[0],
            checkpoint=first.checkpoint_id,
            transactions=len(old),
            oldest_ms=now_ms - first.start_time_ms,
            timeout_ms=first.timeout_ms,
        )


def tell_retried(committables: Sequence[Committable], cause: str) -> None:
    """Publish that this run tries again to end these transactions, if there are any."""
    if not committables:
        return
    first = committables[0]
    publish(
        "retried",
        app=first.transactional_id.partition(".")[0],
        checkpoint=first.checkpoint_id,
        transactions=len(committables),
        cause=cause,
    )


def tell_completed(
    app: str, checkpoint_id: int, phase_ms: Mapping[str, float], **facts: int
) -> None:
    """Publish that a checkpoint is visible; ``phase_<name>_ms`` per phase, none for a replay."""
    phases = {f"phase_{name}_ms": round(ms, 3) for name, ms in phase_ms.items()}
    publish("checkpoint_completed", app=app, checkpoint=checkpoint_id, **facts, **phases)


def tell_failed(app: str, checkpoint_id: int, error: Exception) -> None:
    """Publish the kind and the first line of an error; publish a refused heal as well."""
    kind, cause = type(error).__name__, str(error).partition("\n")[0]
    if isinstance(error, TransactionLostError):
        publish("heal_refused", app=app, checkpoint=checkpoint_id, cause=cause)
    publish("checkpoint_failed", app=app, checkpoint=checkpoint_id, error=kind, cause=cause)
