"""The decision log under any interleaving of its writers, between any two backend operations.

Hypothesis draws runs that open, decide, compact, die, sleep and wake up; at any single operation
of one of them others may act, the process may die, or the storage may fail without saying whether
it has stored. What is durable at or above the floor, in its order, is the truth; every reader must
agree with it at every moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.simulation.scheduler import Crash
from tests.simulation.virtual_clock import VirtualClock
from transactions import decision_log
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import DecisionLogError, FencedError, LogCorruptedError
from transactions.log_backend import MemoryBackend
from transactions.log_entries import Decision, Entry, Fence

#: Operations of one append, and a few of the compaction behind it.
AT = st.integers(min_value=1, max_value=12)
#: What others do meanwhile: True opens a new run, False lets the newest one decide.
OTHERS = st.lists(st.booleans(), min_size=1, max_size=6)
FAULTS = st.sampled_from(["dies", "not stored", "stored, unsaid"])


class Storage(MemoryBackend):
    """Calls a hook before each operation, and keeps what every reader must see."""

    def __init__(self) -> None:
        super().__init__()
        self.hook: Callable[[str], None] = lambda _: None
        self.decided: list[int] = []
        self.fences: list[int] = []

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.hook("put")
        stored = super().put_if_absent(name, data)
        if stored and name.isdigit() and int(name) >= self.floor():
            body = Entry.from_bytes(data, where=name).body
            if isinstance(body, Decision):
                self.decided.append(body.checkpoint_id)
            elif isinstance(body, Fence):
                self.fences.append(int(name))
        self.hook("stored")
        return stored

    def get(self, name: str) -> bytes | None:
        self.hook("get")
        return super().get(name)

    def list(self, *, durable: bool = True) -> list[str]:
        self.hook("list")
        return super().list()

    def delete(self, name: str) -> None:
        self.hook("delete")
        super().delete(name)

    def floor(self) -> int:
        floors = [int(n.removeprefix("floor-")) for n in self._blobs if n.startswith("floor-")]
        return max(floors, default=1)


class LogMachine(RuleBasedStateMachine):
    """Runs of one log; older ones stay and may wake up at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = Storage()
        self.runs: list[DecisionLog] = []
        self.checkpoint = 0
        self._compact = mock.patch.object(decision_log, "COMPACT_EVERY", 3)
        self._compact.start()

    def teardown(self) -> None:
        self._compact.stop()

    def open(self, keep: Callable[[DecisionLog], None] = lambda _: None) -> None:
        log = DecisionLog.open(
            self.storage, application_id="app", identity={}, keep=keep, clock=VirtualClock()
        )
        self.runs.append(log)

    def decide(self, log: DecisionLog) -> None:
        """Decide the next checkpoint; when that returns, it is the truth."""
        self.checkpoint += 1
        number = self.checkpoint
        log.decide(
            Decision(
                checkpoint_id=number,
                query_id="q",
                generation=0,
                start_offsets=(),
                end_offsets=(),
                committables=(),
            )
        )
        assert number in self.storage.decided
        log.compact_if_due()

    def interrupted(self, at: int, act: Callable[[], None], step: Callable[[], None]) -> None:
        """Do a step, and something else before its n-th storage operation."""
        left = at

        def hook(_operation: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.storage.hook = lambda _: None
                act()

        self.storage.hook = hook
        try:
            step()
        except FencedError:
            pass  # it noticed
        finally:
            self.storage.hook = lambda _: None

    def others(self, plan: list[bool]) -> None:
        mine = None  # a run is used by one thread: the interrupted one does nothing meanwhile
        for opens in plan:
            if opens or mine is None:
                self.open()
                mine = self.runs[-1]
            else:
                self.decide_quietly(mine)

    def decide_quietly(self, log: DecisionLog) -> None:
        with contextlib.suppress(FencedError):
            self.decide(log)
        self.look(log)

    def look(self, log: DecisionLog) -> None:
        """Look before a restart: a run is fenced by a newer one, and by nothing of its own."""
        try:
            log.check_newest()
        except FencedError:
            assert self.storage.fences[-1] > log.run_epoch
        else:
            assert self.storage.fences[-1] == log.run_epoch

    @initialize()
    def first_run(self) -> None:
        self.open()

    @rule()
    def a_new_run(self) -> None:
        self.open()

    @rule(which=st.integers(min_value=0))
    def some_run_decides(self, which: int) -> None:
        self.decide_quietly(self.runs[which % len(self.runs)])

    @rule(which=st.integers(min_value=0), at=AT, plan=OTHERS)
    def others_act_in_the_middle_of_a_decision(self, which: int, at: int, plan: list[bool]) -> None:
        log = self.runs[which % len(self.runs)]
        self.interrupted(at, lambda: self.others(plan), lambda: self.decide(log))

    @rule(at=AT, plan=OTHERS)
    def others_act_in_the_middle_of_an_opening(self, at: int, plan: list[bool]) -> None:
        self.interrupted(at, lambda: self.others(plan), self.open)

    @precondition(lambda self: self.runs)
    @rule(which=st.integers(min_value=0), at=AT, fault=FAULTS)
    def a_decision_fails_somewhere(self, which: int, at: int, fault: str) -> None:
        """The process dies, or one operation fails; either way this run is over."""
        log = self.runs[which % len(self.runs)]

        def fail() -> None:
            raise Crash if fault == "dies" else OSError(fault)

        try:
            self.interrupted(at, fail, lambda: self.decide(log))
        except (Crash, OSError, DecisionLogError) as failed:
            if not isinstance(failed, Crash):
                self.look(log)
            self.runs.remove(log)
            if not self.runs:
                self.open()

    @precondition(lambda self: self.runs)
    @rule(at=AT)
    def an_opening_fails_and_is_tried_again(self, at: int) -> None:
        """Its Fence may be there; it fences others, and not the next try of its own driver."""
        kept: list[DecisionLog] = []

        def fail() -> None:
            raise OSError

        try:
            self.interrupted(at, fail, lambda: self.open(kept.append))
        except (OSError, DecisionLogError):
            for log in kept:
                log.check_newest()
            self.open()
            for log in kept:
                with pytest.raises(FencedError):
                    log.check_newest()

    @rule(at=AT)
    def an_opening_dies(self, at: int) -> None:
        def die() -> None:
            raise Crash

        with contextlib.suppress(Crash):
            self.interrupted(at, die, self.open)

    @invariant()
    def every_reader_sees_the_truth(self) -> None:
        state = read_log(self.storage)
        last = state.decision.checkpoint_id if state.decision else None
        assert last == (self.storage.decided[-1] if self.storage.decided else None)
        assert state.run_epoch == (self.storage.fences[-1] if self.storage.fences else 0)

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        """A compaction that died leaves files behind; the next one takes them along."""
        assert len(self.storage._blobs) <= 40


TestDecisionLog = LogMachine.TestCase
TestDecisionLog.settings = settings(
    max_examples=300,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)

_ENOUGH = settings(TestDecisionLog.settings, phases=[Phase.generate], report_multiple_bugs=False)


def _put_without_nonce(self: DecisionLog, entry: Entry) -> None:
    """Take any entry under our number for our own."""
    self._backend.put_if_absent(decision_log.entry_name(entry.sequence), entry.to_bytes())


def _never_look_at_the_floor(self: DecisionLog) -> None:
    self._floor = decision_log._floor_in(self._backend.list())


@pytest.mark.parametrize(
    ("name", "broken"),
    [("_put", _put_without_nonce), ("_check_floor", _never_look_at_the_floor)],
)
def test_the_machine_finds_it(monkeypatch, name, broken):
    """Without a nonce, or without the look at the floor, a zombie believes that it decided."""
    monkeypatch.setattr(DecisionLog, name, broken)
    with pytest.raises((AssertionError, LogCorruptedError)):
        run_state_machine_as_test(LogMachine, settings=_ENOUGH)
