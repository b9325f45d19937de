"""The janitor: when it may sweep, and that an idle stream is swept as well."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from tests.unit.samples import committable, decision
from tests.waiting import until
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.decision_log import DecisionLog
from transactions.errors import (
    BrokerUnavailableError,
    DecisionLogError,
    FencedError,
    HiddenCommitError,
)
from transactions.events import Event, subscribe
from transactions.log_backend import MemoryBackend
from transactions.log_entries import Decision
from transactions.object_store import ObjectStoreError
from transactions.recovery import sweep_overtaken
from transactions.sink import Owner
from transactions.sweeper import Janitor, sweep

OWNER = Owner(application_id="app", log_id="log", run_epoch=1)


def opened() -> DecisionLog:
    return DecisionLog.open(MemoryBackend(), application_id="app", identity={})


class Sink:
    """The part of a sink that a sweep needs; zombies begin transactions whenever they like."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.looked = threading.Semaphore(0)
        self.away = False
        self.hides: list[str] = []

    def hidden(self, _committed: Sequence[Committable], _deadline: Deadline) -> list[str]:
        return self.hides

    def lingering(self, _owner: Owner, _deadline: Deadline) -> list[str]:
        self.looked.release()
        if self.away:
            raise BrokerUnavailableError("no broker")
        return list(self.open)

    def recover_and_abort(self, ids: list[str], _deadline: Deadline) -> None:
        self.open = [one for one in self.open if one not in ids]


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def janitor(sink):
    made = Janitor({"out": sink}, opened(), timeout_s=10, idle_every_s=0.01)
    yield made
    made.close()


@pytest.fixture
def quiet(sink):
    """A janitor whose watch runs when a test says so."""
    made = Janitor({"out": sink}, opened(), timeout_s=10)
    yield made
    made.close()


def looked(sink: Sink, times: int = 1) -> None:
    for _ in range(times):
        assert sink.looked.acquire(timeout=10)


def test_a_transaction_begun_after_the_sweep_is_swept_without_another_batch(sink, janitor):
    janitor.finish()
    janitor.start()
    looked(sink)
    sink.open = ["zombie"]
    looked(sink, 3)
    assert sink.open == []


def test_nothing_is_swept_while_a_batch_runs(sink, janitor):
    janitor.finish()
    while sink.looked.acquire(blocking=False):
        pass
    sink.open = ["of this batch"]
    assert not sink.looked.acquire(timeout=0.3)
    assert sink.open == ["of this batch"]


def test_the_sweep_of_a_batch_fails_loudly(sink, quiet):
    sink.away = True
    quiet.start()
    with pytest.raises(BrokerUnavailableError):
        quiet.finish()


def decided(log: DecisionLog) -> Decision:
    one = decision(4, committables=(committable(sink="out", checkpoint_id=4),))
    log.decide(one)
    return one


def is_settled(log: DecisionLog) -> bool:
    assert log.state.decision is not None
    return not log.state.decision.committables


class Ticks:
    """The watch of an idle stream, as fast as it can: what happens before each of its looks."""

    def __init__(self, *before: Callable[[], object]) -> None:
        self._before = iter(before)

    def wait(self, _every_s: float) -> bool:
        for step in self._before:
            step()
            return False
        return True

    def set(self) -> None:
        return


def nothing() -> None:
    return


def watched(janitor: Janitor, *before: Callable[[], object]) -> None:
    janitor._closed = Ticks(*before)  # type: ignore[assignment]
    janitor._watch(1.0)


def batch(janitor: Janitor) -> None:
    janitor.finish()
    janitor.start(decided(janitor._log))


def test_a_broker_that_is_away_on_an_idle_stream_fails_nothing(sink, quiet):
    """The first idle sweep is behind that of the batch, which must find its broker."""
    batch(quiet)
    watched(quiet, nothing, lambda: setattr(sink, "away", True), nothing)
    sink.away = False
    quiet.finish()


def test_a_stream_that_stays_idle_is_settled(quiet):
    for _ in range(2):
        watched(quiet, lambda: batch(quiet))
        assert not is_settled(quiet._log), "the batch has only just come"
        watched(quiet, nothing, nothing)
        assert is_settled(quiet._log)


def test_a_stream_with_a_batch_between_two_looks_is_not_idle(quiet):
    """An entry of the log per idle time, none per batch."""
    watched(quiet, *[lambda: batch(quiet)] * 3)
    assert not is_settled(quiet._log)


@pytest.mark.parametrize("trouble", ["hidden", "away"])
def test_what_readers_may_not_see_is_not_settled(sink, quiet, trouble):
    sink.hides = ["t-0 from offset 7"] if trouble == "hidden" else []
    sink.away = trouble == "away"
    watched(quiet, lambda: batch(quiet), nothing, nothing)
    assert not is_settled(quiet._log)


@pytest.mark.parametrize("error", [DecisionLogError, ObjectStoreError, FencedError])
def test_an_entry_that_may_or_may_not_be_written_ends_the_run(quiet, monkeypatch, error):
    """No run goes on behind it. An object store has an error of its own for it."""

    def unknown() -> None:
        raise error("whether it was written is not known")

    batch(quiet)
    monkeypatch.setattr(quiet._log, "settle", unknown)
    watched(quiet, nothing, nothing)
    with pytest.raises(error):
        quiet.finish()


def test_an_object_store_that_is_away_for_the_sweep_alone_fails_nothing(sink, quiet, monkeypatch):
    """The log is well; the target of another sink lies in a store as well."""
    batch(quiet)
    looked(sink)

    def away(_owner: Owner, _deadline: Deadline) -> list[str]:
        raise ObjectStoreError("the store did not answer")

    monkeypatch.setattr(sink, "lingering", away)
    watched(quiet, nothing, nothing)
    quiet.finish()


@pytest.mark.parametrize(
    ("error", "of", "is_raised"),
    [
        (FencedError("a newer run"), "log", True),
        (BrokerUnavailableError("no broker"), "sink", False),
        (ValueError("a bug"), "sink", True),
    ],
)
def test_an_idle_sweep_that_fails_is_told_once(sink, quiet, monkeypatch, error, of, is_raised):
    def fails(*_: object) -> list[str]:
        raise error

    heard: list[Event] = []
    batch(quiet)
    looked(sink)
    monkeypatch.setattr(*((quiet._log, "settle") if of == "log" else (sink, "lingering")), fails)
    unsubscribe = subscribe(heard.append)
    watched(quiet, *[nothing] * (2 if of == "log" else 1))
    with pytest.raises(type(error)) if is_raised else contextlib.nullcontext():
        quiet.finish()
    unsubscribe()
    assert [(one.kind, one.fields["step"], one.fields["cause"]) for one in heard] == [
        ("retried", "idle sweep", str(error))
    ]


def test_what_is_spared_stays_open(sink):
    sink.open = ["decided", "lingering"]
    assert sweep({"out": sink}, OWNER, Deadline(1), spare=frozenset({"decided"})) == ["lingering"]
    assert sink.open == ["decided"]


def test_what_readers_cannot_see_is_refused_before_anything_is_aborted(sink, janitor):
    """An abort under the same producer id would take the committed records along."""
    heard: list[Event] = []
    unsubscribe = subscribe(heard.append)
    janitor.finish()
    while sink.looked.acquire(blocking=False):
        pass
    sink.open, sink.hides = ["lingering"], ["t-0 from offset 7"]
    janitor.start(decision(4, committables=(committable(sink="out", checkpoint_id=4),)))
    time.sleep(0.2)  # an idle sweep is due every 10 ms, and must not come
    assert sink.open == ["lingering"]
    with pytest.raises(HiddenCommitError, match="Checkpoint 4") as refused:
        janitor.finish()
    unsubscribe()
    assert "t-0 from offset 7" in str(refused.value)
    assert [one.kind for one in heard] == ["hidden_commit"]


def test_an_idle_sweep_that_waits_behind_the_look_aborts_nothing_that_is_hidden(sink, janitor):
    """It was asked for before anybody could know: the look was still under way."""
    janitor.finish()
    may_look = threading.Event()

    def hidden(*_: object) -> list[str]:
        assert may_look.wait(10)
        return ["t-0 from offset 7"]

    sink.hidden = hidden  # type: ignore[method-assign]
    sink.open = ["lingering"]
    janitor.start(decision(4, committables=(committable(sink="out", checkpoint_id=4),)))
    waits = until(lambda: janitor._again)
    may_look.set()
    assert waits.result(10) == []
    assert sink.open == ["lingering"]
    with pytest.raises(HiddenCommitError, match="Checkpoint 4"):
        janitor.finish()


def test_an_idle_sweep_looks_again_when_the_look_had_no_answer(sink, janitor):
    janitor.finish()
    answers = [BrokerUnavailableError("no broker"), ["t-0 from offset 7"], []]
    asked = threading.Semaphore(0)

    def hidden(*_: object) -> list[str]:
        asked.release()
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, BrokerUnavailableError):
            raise answer
        return answer

    sink.hidden = hidden  # type: ignore[method-assign]
    sink.open = ["lingering"]
    aborts: list[int] = []
    sink.recover_and_abort = lambda *_: aborts.append(len(answers))  # type: ignore[method-assign]
    janitor.start(decision(4, committables=(committable(sink="out", checkpoint_id=4),)))
    for _ in range(4):
        assert asked.acquire(timeout=10)
    assert set(aborts) <= {1}, "aborted only after the look that found nothing hidden"
    janitor.close()
    assert aborts


def test_who_waits_for_readers_does_not_wait_for_the_sweep(sink, quiet):
    quiet.await_visible()  # nothing was decided yet
    may_sweep = threading.Event()
    sink.lingering = lambda *_: [] if may_sweep.wait(10) else ["late"]  # type: ignore[method-assign]
    decided = decision(4, committables=(committable(sink="out", checkpoint_id=4),))
    quiet.start(decided)
    quiet.await_visible()
    may_sweep.set()
    quiet.finish()
    sink.hides = ["t-0 from offset 7"]
    quiet.start(decided)
    with pytest.raises(HiddenCommitError):
        quiet.await_visible()


@pytest.mark.parametrize("wait", [True, False])
def test_a_watch_that_wakes_up_as_the_janitor_closes_sweeps_no_more(sink, quiet, wait):
    """It asked an executor that was shut down, once in eight runs of the tests."""
    quiet.start()
    looked(sink)
    watched(quiet, lambda: quiet.close(wait=wait))
    assert not sink.looked.acquire(blocking=False)


@pytest.mark.parametrize(
    ("settled", "finished", "left"),
    [(False, -1, ["app.log.1.p.0"]), (False, 0, []), (True, -1, [])],
)
def test_of_an_overtaken_application_no_decided_transaction_is_aborted(
    sink, settled, finished, left
):
    """Unless it is committed for sure: then another one has begun on its id."""
    log = opened()
    log.decide(decision(0))
    if settled:
        log.settle()
    sink.open = ["app.log.1.p.0", "undecided"]
    whole = sweep_overtaken(log, {"out": sink}, Deadline(10), finished=finished)
    assert sink.open == left
    assert whole == (not left)
    assert (log.state.decision == decision(0)) == bool(left), "an abort needs Settled before it"


def test_of_an_overtaken_application_nothing_hidden_is_aborted(sink):
    log = opened()
    log.decide(decision(0))
    sink.open, sink.hides = ["app.log.1.p.0"], ["out-0"]
    with pytest.raises(HiddenCommitError):
        sweep_overtaken(log, {"out": sink}, Deadline(10), finished=0)
    assert sink.open == ["app.log.1.p.0"]
