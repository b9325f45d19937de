"""The decision log: append-only, dense, fenced. What it says is what happened.

A run begins by appending a Fence; the number of the Fence is the run epoch. Numbers are dense and
each is written with put-if-absent, so an older run finds its next number taken, reads a newer Fence
there and stops: it can never decide again. The newest wins.

Compaction frees numbers, and a zombie that slept meanwhile could take a freed number. So the writer
raises the floor durably *before* it deletes anything below, and looks at the floor after every
append: a floor above its number means that it is fenced. Floors are put-if-absent files of their
own (``floor-<number>``, the highest counts), so a slow older run cannot lower the floor.
"""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import (
    WAY_BACK,
    ConfigurationError,
    DecisionLogError,
    FencedError,
    LogCorruptedError,
)
from transactions.events import publish
from transactions.identity import MayChange, check_identity, check_owner
from transactions.log_backend import LogBackend, PreparesPut, answering
from transactions.log_entries import (
    Body,
    Decision,
    Entry,
    Fence,
    Healed,
    Resolved,
    Settled,
    Snapshot,
    Start,
    this_process,
)
from transactions.log_state import LogState
from transactions.sink import Owner

COMPACT_EVERY = 100
_FLOOR = "floor-"
_UNKNOWN_PUT_SECONDS = 30.0


def read_log(backend: LogBackend, known: LogState | None = None) -> LogState:
    """Read the whole log from its floor; safe beside a running writer.

    Args:
        backend: where the log is.
        known: what an earlier call has returned: only what came after it is read, if the log still
            has all of that.

    Raises:
        LogCorruptedError: an entry is torn, or a number above the floor is missing.
        LogVersionError: an entry is of a newer version.
    """
    for _ in range(10):
        names = backend.list()
        _refuse_foreign(names, backend)
        numbers = [int(name) for name in names if not name.startswith(_FLOOR)]
        floor = _floor_in(names)
        last = max(numbers, default=floor - 1)
        begin, begun = floor, LogState()
        if known is not None and floor <= known.tail + 1 <= last + 1:
            begin, begun = known.tail + 1, known
        state = _fold(backend, begun, range(begin, last + 1))
        if state is not None:
            return state
        # A number vanished between list and get: the writer is compacting. Start again at the
        # new floor; a gap that stays is corruption.
        if _floor_in(backend.list()) == floor:
            break
    raise LogCorruptedError(
        "The decision log has a gap; nothing was committed or aborted.",
        where=f"{backend.describe()}, above entry {floor}",
        cause="an entry file was deleted or lost",
        option=WAY_BACK,
    )


def _fold(backend: LogBackend, state: LogState, numbers: range) -> LogState | None:
    for number in numbers:
        data = backend.get(entry_name(number))
        if data is None:
            return None
        where = f"{backend.describe()}, entry {number}"
        entry = Entry.from_bytes(data, where=where)
        if entry.sequence != number or (state.log_id and entry.log_id != state.log_id):
            raise LogCorruptedError(
                "A decision-log entry has a wrong number, or belongs to another log.",
                where=f"{where}: says number {entry.sequence}, log {entry.log_id}",
                cause="files of two checkpoints were mixed",
                option=WAY_BACK,
            )
        state = state.after(entry)
    return state


def entry_name(number: int) -> str:
    """Return the name under which entry `number` is stored."""
    return f"{number:020d}"


def _refuse_foreign(names: list[str], backend: LogBackend) -> None:
    foreign = [name for name in names if not name.removeprefix(_FLOOR).isdecimal()]
    if foreign:
        raise LogCorruptedError(
            "The decision log has a file that does not belong to it.",
            where=f"{backend.describe()}: {foreign[0]!r}",
            cause="somebody copied or renamed a file there, or another program uses the same place",
            option=f"remove the file if it is not an entry; else {WAY_BACK}",
        )


def _floor_in(names: list[str]) -> int:
    return max((int(n.removeprefix(_FLOOR)) for n in names if n.startswith(_FLOOR)), default=1)


class DecisionLog:
    """The writer's side: one run, from its Fence to the newer Fence that ends it.

    Made on the driver. One thread at a time writes; any thread may call `check_newest`.
    """

    def __init__(
        self, backend: LogBackend, state: LogState, *, application_id: str, clock: Clock
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._application_id = application_id
        self._floor = 1
        self._log_id = state.log_id or secrets.token_hex(4)
        self.state = state
        self.run_epoch, self._told_fenced = 0, False
        #: An entry whose fate is unknown, from its put to the look at the floor behind it. If the
        #: doubt stays, this run appends nothing after it.
        self._in_doubt: Entry | None = None
        #: Held from a put until `tail` counts it: meanwhile our own entry looks like another run's.
        self._appending = threading.RLock()
        #: Runs work that nobody needs to wait for: a hundred deletes take a hundred milliseconds.
        self.later: Callable[[Callable[[], None]], object] = lambda work: work()

    @classmethod
    def open(
        cls,
        backend: LogBackend,
        *,
        application_id: str,
        identity: Mapping[str, str] | None,
        may_change: MayChange = lambda *_: False,
        check: Callable[[LogState], Sequence[str] | None] = lambda _: (),
        keep: Callable[[Self], object] = lambda _: None,
        host: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Read the log, check that it is ours, and fence every older run.

        Args:
            backend: where the log is.
            application_id: the application that the log must belong to.
            identity: the options that must not have changed; None keeps those of the log.
            may_change: see `transactions.identity`; by default nothing may change.
            check: judges what was read, and can raise before any older run is fenced; returns the
                tokens that the Fence accepts, or None to read the log once more.
            keep: called with the log once its Fence may be there, also if this call then fails.
            host: whom the Fence names; by default this process.
            clock: replaced in tests.

        Raises:
            IdentityMismatchError: the log belongs to another application or other options.
            LogCorruptedError, LogVersionError: see `read_log`.
            FencedError: another run was faster, again and again.
        """
        state: LogState | None = None
        for _ in range(100):
            with answering(backend):
                # From the second time on only what is new: else a driver that decides faster than
                # a store gives a hundred entries could not be fenced.
                state = read_log(backend, state)
            kept = state.identity if identity is None else identity
            if state.log_id:
                check_owner(state.application_id, application_id, backend.describe())
                if state.run_epoch or state.identity:  # else no run was here: only its start is
                    check_identity(state.identity, kept, backend.describe(), may_change)
            if (accepted := check(state)) is None:
                continue
            log = cls(backend, state, application_id=application_id, clock=clock)
            fence = Fence(host=host or this_process(), identity={**kept}, accepted=(*accepted,))
            try:
                log.run_epoch = log._append(fence)
            except FencedError:
                continue  # somebody appended between our read and our put: read again
            except BaseException:
                log.run_epoch = state.tail + 1
                keep(log)
                raise
            keep(log)
            log.compact_if_due()
            return log
        raise FencedError(
            "Another run keeps writing to the decision log; this run could not take over.",
            where=backend.describe(),
            cause="two drivers restart on one checkpoint in a loop",
            option="checkpoint: stop one of them",
        )

    @property
    def log_id(self) -> str:
        """The log's random name, part of every transactional id."""
        return self._log_id

    @property
    def owner(self) -> Owner:
        """The owner of this run's transactions."""
        return Owner(
            application_id=self._application_id, log_id=self._log_id, run_epoch=self.run_epoch
        )

    def begin(self, start: Start) -> None:
        """Append where the sources begin, before anything reads them.

        Raises:
            FencedError, DecisionLogError: see `decide`.
        """
        self._append(start)

    def decide(self, decision: Decision) -> None:
        """Append a decision: when this returns, the checkpoint will be committed.

        Raises:
            FencedError: a newer run owns the log; nothing was decided.
            DecisionLogError: the entry could not be written, or its fate is unknown; do not
                abort the transactions, the next run settles them.
        """
        self._append(decision)

    def healed(self, healed: Healed) -> None:
        """Append that a lost transaction was produced again, before its commit."""
        self._append(healed)

    def settle(self, *, left: bool = False) -> None:
        """Append that the last decision needs no proof any more, if the log does not say so yet.

        Precondition: every transaction of it is proven committed and readers see it, or a person
        has given it up. A broker forgets: ids and offsets expire, and an abort on an id removes the
        end of the transaction before. A later run believes `Settled` without asking the broker.
        `left`: this run has ended in order, and has left nothing open.

        Raises:
            FencedError, DecisionLogError: see `decide`.
        """
        with self._appending:
            last = self.state.decision
            if left or (last is not None and last.committables):
                number = -1 if last is None else last.checkpoint_id
                self._append(Settled(checkpoint_id=number, left=left))

    def resolve(self, resolved: Resolved) -> None:
        """Append what a person decided about transactions of the last decision.

        Raises:
            ConfigurationError: a token is not one of the last decision's.
            FencedError, DecisionLogError: see `decide`.
        """
        last = self.state.decision
        known = {one.token for one in self.state.decided}
        number = -1 if last is None else last.checkpoint_id
        if number != resolved.checkpoint_id or not set(resolved.tokens) <= known:
            raise ConfigurationError(
                "Only transactions of the last decision can be resolved.",
                where=f"checkpoint {resolved.checkpoint_id}: {sorted(resolved.tokens)}; "
                f"the last decision is of checkpoint {number}",
                cause="the driver has made a newer decision since the list",
            )
        self._append(resolved)

    def check_newest(self) -> None:
        """Read whether a newer run has fenced this one.

        Raises:
            FencedError: it has.
        """
        with self._appending, answering(self._backend):
            number = self.state.tail + 1
            data = self._backend.get(entry_name(number))
            if self._in_doubt is not None and data == self._in_doubt.to_bytes():
                data = self._backend.get(entry_name(number + 1))  # that entry is our own
            if data is not None:
                raise self._fenced_by(data)
            self._check_floor()

    def _append(self, body: Body) -> int:
        with self._appending, answering(self._backend):
            number = self.state.tail + 1
            if self._in_doubt is not None:
                raise self._unknown(number, "the entry before it is in doubt")
            entry = Entry(
                sequence=number,
                application_id=self._application_id,
                log_id=self._log_id,
                nonce=secrets.token_hex(16),
                written_at_ms=self._clock.now_ms(),
                body=body,
            )
            self._in_doubt = entry
            try:
                self._put(entry)
                self._check_floor()
            except FencedError:
                self._in_doubt = None  # the number is another run's
                raise
            self._in_doubt = None
            self.state = self.state.after(entry)
            return number

    def _put(self, entry: Entry) -> None:
        name, written = entry_name(entry.sequence), entry.to_bytes()
        error: OSError | None = None
        try:
            if self._backend.put_if_absent(name, written):
                return
            data = self._backend.get(name)
        except OSError as failed:
            data, error = self._read_until_known(entry.sequence, failed), failed
        if data is None and error is not None:
            raise DecisionLogError(
                "The decision log could not be written; this checkpoint is not decided.",
                where=f"{self._backend.describe()}, entry {entry.sequence}: {error}",
                cause="the disk is full, read-only or gone",
                option=f"checkpoint={self._backend.describe()}",
            ) from error
        if data is None:
            raise self._freed_number(entry.sequence)
        where = f"{self._backend.describe()}, entry {entry.sequence}"
        if Entry.from_bytes(data, where=where).nonce != entry.nonce:
            raise self._fenced_by(data)
        if error is not None and not self._backend.reads_are_durable:
            raise self._unknown(entry.sequence, str(error)) from error

    def _read_until_known(self, number: int, error: OSError) -> bytes | None:
        """An error of put is *unknown*: ask until the storage answers."""
        deadline = Deadline(_UNKNOWN_PUT_SECONDS, self._clock)
        while True:
            try:
                return self._backend.get(entry_name(number))
            except OSError:
                if deadline.expired():
                    raise self._unknown(number, str(error)) from error
                deadline.pause(0.5)

    def _unknown(self, number: int, why: str) -> DecisionLogError:
        return DecisionLogError(
            "The durability of the decision is not known; nothing was aborted, and the next run "
            "finds out.",
            where=f"{self._backend.describe()}, entry {number}: {why}",
            cause="the storage of the checkpoint failed, or does not answer",
            option=f"checkpoint={self._backend.describe()}",
        )

    def _check_floor(self) -> None:
        """A floor above our last number means that a newer run compacted while we slept."""
        # A floor that is seen here can only stop this run, so it need not be durable yet: syncing
        # the folder twice a checkpoint costs a millisecond of latency (measured).
        floor = _floor_in(self._backend.list(durable=False))
        if floor > self.state.tail + 1:
            self._backend.delete(entry_name(self.state.tail + 1))  # a freed number, taken by us
            raise self._freed_number(self.state.tail + 1)
        self._floor = floor

    def compact_if_due(self) -> None:
        """Bound the part that a restart reads; called between two checkpoints.

        Raises:
            FencedError: a newer run owns the log.
        """
        if self.state.tail - self._floor < COMPACT_EVERY:
            return
        number = self._append(self.state.snapshot())
        with answering(self._backend):
            self._backend.put_if_absent(f"{_FLOOR}{number:020d}", b"")
            self._check_floor()
        self.later(functools.partial(self._delete_below, number))

    def prepare_next(self) -> None:
        """Let the place do now a part of the next append, if it can. From any thread."""
        if isinstance(self._backend, PreparesPut):
            self._backend.prepare_put()

    def _delete_below(self, floor: int) -> None:
        """Delete what nobody reads any more; after a crash in here the next compaction does it."""
        for name in self._backend.list():
            old_floor = name.startswith(_FLOOR) and int(name.removeprefix(_FLOOR)) < floor
            old_entry = not name.startswith(_FLOOR) and int(name) < floor
            if old_floor or old_entry:
                self._backend.delete(name)

    def _tell_fenced(self, by: str, entry: int) -> None:
        """Publish it once per run; an open() that was too slow has no run yet, and tries again."""
        if self.run_epoch and not self._told_fenced:
            self._told_fenced = True
            publish("fenced", app=self._application_id, run=self.run_epoch, by=by, entry=entry)

    def _fenced_by(self, data: bytes) -> FencedError:
        entry = Entry.from_bytes(data, where=f"{self._backend.describe()}, the tail")
        host = entry.body.host if isinstance(entry.body, Fence | Snapshot) else "another run"
        self._tell_fenced(host, entry.sequence)
        return FencedError(
            f"A newer run ({host}) owns this checkpoint; this run has stopped.",
            where=f"{self._backend.describe()}: entry {entry.sequence}, our run {self.run_epoch}",
            cause="a second driver was started on the same checkpoint; the newest wins",
            option=f"checkpoint={self._backend.describe()}",
        )

    def _freed_number(self, number: int) -> FencedError:
        self._tell_fenced("another run", number)
        return FencedError(
            "A newer run owns this checkpoint and has compacted its log; this run has stopped.",
            where=f"{self._backend.describe()}: entry {number}, our run {self.run_epoch}",
            cause="this driver was paused while a second one ran; the newest wins",
            option=f"checkpoint={self._backend.describe()}",
        )
