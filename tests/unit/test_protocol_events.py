"""Which events the protocol publishes, in which order: one run of it in memory per story."""

from __future__ import annotations

import pytest

from tests.simulation.fake_broker import FakeSink
from tests.simulation.pipeline import SUBTASKS, Crash, Driver, Durable
from transactions import crash_points
from transactions.committable import Outcome
from transactions.errors import (
    FencedError,
    OutcomeUnknownError,
    PhaseOneError,
    StoppedError,
    TransactionLostError,
)
from transactions.events import Event, subscribe
from transactions.replay import Checkpoint

TRANSACTIONS = 2 * SUBTASKS  # two sinks
PHASES = ["start", "write", "check", "decide", "commit", "finish"]
UNHEALED = ["lost", "heal_refused", "checkpoint_failed"]
EVERY_CHECKPOINT = ["decided", "checkpoint_completed"]


@pytest.fixture
def heard():
    found: list[Event] = []
    unsubscribe = subscribe(found.append)
    yield found
    unsubscribe()
    assert {event.fields.get("app") for event in found} == {"app"}


@pytest.fixture
def crash():
    def at(point: str, number: int = -1, error: BaseException | None = None) -> None:
        def hook(reached: str, checkpoint_id: int) -> None:
            if (reached, checkpoint_id) == (point, number):
                crash_points.install(None)
                raise error or Crash(point)

        crash_points.install(hook)

    yield at
    crash_points.install(None)


def kinds(heard: list[Event]) -> list[str]:
    return [event.kind for event in heard]


def only(heard: list[Event], kind: str) -> dict[str, object]:
    (found,) = [event for event in heard if event.kind == kind]
    return dict(found.fields)


def test_a_quiet_run(heard):
    Driver(Durable()).run(8)
    assert kinds(heard) == ["recovering", "recovered", *EVERY_CHECKPOINT, *EVERY_CHECKPOINT]
    assert heard[0].fields["checkpoint"] == -1
    decided, completed = heard[2].fields, heard[3].fields
    assert (decided["checkpoint"], decided["transactions"], decided["records"]) == (0, 4, 8)
    assert (completed["checkpoint"], completed["transactions"], completed["records"]) == (0, 4, 8)
    assert completed["replayed"] == 0
    phases = [name for name in completed if name.startswith("phase_")]
    assert phases == [f"phase_{name}_ms" for name in PHASES]


def test_killed_between_decision_and_commit(heard, crash):
    durable = Durable()
    crash("decision_durable", 0)
    with pytest.raises(Crash):
        Driver(durable).run(4)
    assert kinds(heard)[-1] == "decided", "told as soon as it is true"
    del heard[:]
    Driver(durable).run(4)
    assert kinds(heard) == ["recovering", "recommitted", "recovered", "checkpoint_completed"]
    assert only(heard, "recovering")["transactions"] == TRANSACTIONS
    assert only(heard, "recommitted")["transactions"] == TRANSACTIONS
    assert only(heard, "recommitted")["checkpoint"] == 0
    recovered = only(heard, "recovered")
    assert (recovered["recommitted"], recovered["swept"], recovered["lost"]) == (TRANSACTIONS, 0, 0)
    assert only(heard, "checkpoint_completed")["replayed"] == 1


def test_killed_before_the_decision(heard, crash):
    durable = Durable()
    crash("prepared_checked", 0)
    with pytest.raises(Crash):
        Driver(durable).run(4)
    del heard[:]
    Driver(durable)
    assert "recommitted" not in kinds(heard)
    swept = [event.fields for event in heard if event.kind == "swept"]
    ids = [name for fields in swept for name in str(fields["ids"]).split()]
    assert sum(int(fields["count"]) for fields in swept) == len(ids) == TRANSACTIONS
    assert {fields["sink"] for fields in swept} <= {"left", "right"}
    assert only(heard, "recovered")["swept"] == TRANSACTIONS


def test_a_failed_checkpoint_names_its_cause_in_one_line(heard, crash):
    driver = Driver(Durable())
    crash("committables_collected", 0, PhaseOneError("A task failed.", where="subtask 1"))
    with pytest.raises(PhaseOneError):
        driver.run(4)
    failed = only(heard, "checkpoint_failed")
    assert failed == {
        "app": "app",
        "checkpoint": 0,
        "error": "PhaseOneError",
        "cause": "A task failed.",
    }


def test_a_transaction_that_the_broker_aborts_is_lost_and_without_a_rerun_refused(heard, crash):
    durable = Durable(offsets={0: (0, 4)})
    driver = Driver(durable)

    def abort(point: str, _checkpoint_id: int) -> None:
        if point == "decision_durable":
            durable.broker.abort(durable.broker.open_ids()[0])

    crash_points.install(abort)
    with pytest.raises(TransactionLostError):
        driver.coordinator.commit_batch(
            Checkpoint(checkpoint_id=0, query_id="q", start_offsets=("0",), end_offsets=("4",)),
            lambda: driver.phase_one(0),
        )
    assert kinds(heard)[2:] == ["decided", "retried", *UNHEALED]
    assert only(heard, "lost")["transactions"] == 1
    assert only(heard, "heal_refused")["checkpoint"] == 0
    # A sweep would take nothing that is not lost already; but a stop is no good end of this run.
    assert driver.coordinator.is_settled()
    assert isinstance(driver.coordinator.unfinished(), TransactionLostError)


def test_a_stop_is_no_failure(heard, crash):
    driver = Driver(Durable())
    crash("committables_collected", 0, StoppedError("The driver is stopping."))
    with pytest.raises(StoppedError):
        driver.run(4)
    assert kinds(heard) == ["recovering", "recovered"]


def test_x6_lost_answers_are_a_retry_that_is_told_once(heard):
    durable = Durable()
    durable.broker.drop_answers = 3
    Driver(durable).run(4)
    told = ["recovering", "recovered", "decided", "retried", "checkpoint_completed"]
    assert [kind for kind in kinds(heard) if kind != "recommitted"] == told
    retried = only(heard, "retried")
    assert (retried["checkpoint"], retried["transactions"]) == (0, 3)


def test_a_coordinator_without_proof_is_told_once_not_per_try(heard, crash, monkeypatch):
    durable = Durable()
    crash("decision_durable", 0)
    with pytest.raises(Crash):
        Driver(durable).run(4)
    del heard[:]
    unknown = lambda _, mine, deadline: {one.token: Outcome.UNKNOWN for one in mine}  # noqa: E731
    monkeypatch.setattr(FakeSink, "recover_and_commit", unknown)
    with pytest.raises(OutcomeUnknownError):
        Driver(durable)
    assert kinds(heard) == ["recovering", "retried"]
    assert "no proof" in str(only(heard, "retried")["cause"])


def test_x15_the_older_of_two_drivers_says_once_who_fenced_it(heard):
    durable = Durable()
    older = Driver(durable)
    newer = Driver(durable)
    del heard[:]
    with pytest.raises(FencedError):
        older.run(4)
    with pytest.raises(FencedError):
        older.log.check_newest()  # as on its way out
    assert kinds(heard) == ["fenced", "checkpoint_failed"]
    assert only(heard, "fenced")["run"] == older.log.run_epoch
    assert only(heard, "fenced")["entry"] == newer.log.run_epoch
    assert "/" in str(only(heard, "fenced")["by"]), "host and process"
