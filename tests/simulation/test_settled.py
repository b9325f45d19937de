"""What the log says of the end of a checkpoint, when the broker can say it no more.

Ids and offsets expire after a week; an abort on an id takes along how the transaction before ended;
and a late EndTxn makes half of a transaction visible, its token among it.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from kafka.protocol.producer import EndTxnRequest

from connectors.continuous import checkpoint_loop
from connectors.kafka.sink.kafka_stage_writer import KafkaStageWriter
from connectors.kafka.source.offsets import parse_offsets
from tests.simulation.continuous_task import Process, here
from tests.simulation.continuous_world import (
    SOON_S,
    ContinuousWorld,
    SimulatedDriver,
    SimulatedRun,
)
from tests.waiting import until
from transactions.clock import Deadline
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import HiddenCommitError, OutcomeUnknownError
from transactions.log_entries import ACCEPT_LOSS, REPLAY, Decision, Resolved
from transactions.recovery import Settlement, recover
from transactions.sink import Attempt, OpenSink


def forget(world: ContinuousWorld) -> None:
    """Let a week go by: ids and offsets are gone."""
    with world.lock:
        for name in list(world.cluster.transactions):
            world.cluster.expire(name)
        assert not world.cluster.transactions
        world.cluster.groups.clear()


def starts_again(world: ContinuousWorld) -> None:
    again = SimulatedDriver(world)
    again.start()
    again.vanish()
    again.join()


def test_a_pipeline_that_was_stopped_starts_when_the_broker_has_forgotten_it():
    world = ContinuousWorld()
    with world.installed():
        first = SimulatedDriver(world)
        assert first.live(), first.failure
        first.join()
        forget(world)
        starts_again(world)
    world.check()


def idle(world: ContinuousWorld) -> SimulatedDriver:
    """Run until everything is decided, and go on without a record."""
    world.drain_at_the_end = lambda _: None  # type: ignore[method-assign]
    driver = SimulatedDriver(world)
    driver.start()
    ends = {name: len(rows) for name, rows in world.inputs.items()}

    def is_decided() -> bool:
        """Not by the driver's own offsets: they come before the last checkpoint is decided."""
        decision = read_log(world.backend).decision
        return decision is not None and parse_offsets(decision.end_offsets[0]) == ends

    until(is_decided, SOON_S)
    return driver


def test_a_pipeline_that_was_killed_while_idle_starts_when_the_broker_has_forgotten_it(
    monkeypatch,
):
    monkeypatch.setattr(checkpoint_loop, "_SWEEP_EVERY_S", 0.05)
    world = ContinuousWorld()
    with world.installed():
        driver = idle(world)
        entries = []
        until(lambda: (last := read_log(world.backend).decision) and not last.committables, SOON_S)
        entries.append(read_log(world.backend).tail)
        Deadline(SOON_S).pause(0.3)
        entries.append(read_log(world.backend).tail)
        driver.vanish()
        driver.join()
        forget(world)
        starts_again(world)
    world.check()
    assert entries[0] == entries[1], "one entry, however long it is idle"


class Story:
    """One task with two producers, and its driver, as far as a decided checkpoint 882."""

    def __init__(self, world: ContinuousWorld) -> None:
        here.process = Process("driver", is_task=False)
        self.world = world
        self.run = SimulatedRun(world)
        self.run._log = self.log = DecisionLog.open(
            world.backend, application_id="app", identity={}
        )
        both = world.make_sink()
        self.run.sinks = {"out": OpenSink(both, both)}
        self.writer = KafkaStageWriter(world.make_sink(), carries_offsets=True)
        self.writer.open(self.log.owner, Deadline(SOON_S))
        sink = self.run.committers["out"]
        decided = self.write(882)
        self.writer.flush(decided, {"in-0": 882})
        committable = self.writer.pre_commit(decided)
        assert committable is not None
        (checked,) = sink.check_prepared([committable], Deadline(SOON_S))
        self.log.decide(
            Decision(
                checkpoint_id=882,
                query_id="q",
                generation=0,
                start_offsets=("",),
                end_offsets=("",),
                committables=(checked,),
            )
        )
        self.writer.end(decided)

    def write(self, number: int):
        """Begin a transaction, with a record at the broker."""
        owner = self.log.owner
        attempt = Attempt(owner=owner, checkpoint_id=number, subtask=0, attempt_id=f"1.{number}")
        begun = self.writer.begin_transaction(attempt)
        self.writer.invoke(begun, pa.record_batch({"value": pa.array([b"in-0:%d" % number])}))
        begun.slot.producer._producer.flush()
        return begun

    def late_end_txn(self, producer) -> None:
        """A copy of the commit of an earlier transaction arrives."""
        self.world.cluster.handle(
            EndTxnRequest(
                transactional_id=producer.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=True,
                max_version=1,
            )
        )

    def next_run(self) -> Settlement:
        """Begin another run, which recovers."""
        log = DecisionLog.open(self.world.backend, application_id="app", identity={})
        return recover(log, {"out": self.world.make_sink()}, Deadline(2.0))


@pytest.fixture
def story():
    world = ContinuousWorld()
    with world.installed():
        yield Story(world)


def split(story: Story) -> None:
    """883 is split behind its token and offsets, and 884 has begun where 882 was committed."""
    torn = story.write(883)
    story.writer.flush(torn, {"in-0": 883})
    story.late_end_txn(torn.slot.producer)
    story.write(884)


def test_the_token_of_a_split_transaction_replaces_no_proof(story, monkeypatch):
    """It stands in the group of its own id; that of 882 is another one (finding C1)."""
    monkeypatch.setattr(DecisionLog, "settle", lambda self, **_: None)
    split(story)
    story.run.leave(finished=True)
    assert story.world.cluster.open_ids() == []
    assert story.next_run().lost == []


def test_the_sweep_of_a_run_that_fails_takes_no_proof_along(story):
    split(story)
    story.run.leave(finished=True)
    assert story.world.cluster.open_ids() == []
    story.world.cluster.groups.clear()  # somebody deletes the groups
    assert story.next_run().lost == []


def test_a_run_whose_last_checkpoint_is_hidden_says_so_and_aborts_nothing(story, monkeypatch):
    """An abort would remove the hidden records too (KAFKA-20734)."""
    split(story)
    left_open = story.world.cluster.open_ids()
    monkeypatch.setattr(story.run.committers["out"], "hidden", lambda *_: ["out-0"])
    hidden = story.run.leave(finished=True)
    assert isinstance(hidden, HiddenCommitError)
    assert "out-0" in str(hidden)
    assert story.world.cluster.open_ids() == left_open != []
    decision = read_log(story.world.backend).decision
    assert decision is not None
    assert decision.committables, "a settled entry would hide it from the next start"


@pytest.mark.parametrize("verdict", [ACCEPT_LOSS, REPLAY])
def test_what_a_person_gave_up_and_a_start_commits_after_all_must_be_visible(
    story, monkeypatch, verdict: str
):
    """The start asks first; an abort under the same producer id would take the records along."""
    (given_up,) = story.log.state.decided
    story.log.resolve(Resolved(checkpoint_id=882, verdict=verdict, tokens=(given_up.token,)))
    looked_at = []

    def hidden(_sink, committed, _deadline) -> list[str]:
        looked_at.extend(one.token for one in committed)
        return ["out-0"]

    monkeypatch.setattr(type(story.run.committers["out"]), "hidden", hidden)
    with pytest.raises(HiddenCommitError):
        story.next_run()
    assert looked_at == [given_up.token]


def test_what_a_person_gave_up_and_nobody_can_prove_is_not_looked_for(story, monkeypatch):
    (given_up,) = story.log.state.decided
    story.log.resolve(Resolved(checkpoint_id=882, verdict=ACCEPT_LOSS, tokens=(given_up.token,)))
    forget(story.world)
    monkeypatch.setattr(type(story.run.committers["out"]), "hidden", lambda *_: ["out-0"])
    assert story.next_run().lost == []


def test_without_the_entry_that_sweep_makes_a_commit_look_like_an_abort(story, monkeypatch):
    """The test above is able to see it."""
    monkeypatch.setattr(DecisionLog, "settle", lambda self, **_: None)
    split(story)
    story.run.leave(finished=True)
    story.world.cluster.groups.clear()
    assert [one.checkpoint_id for one in story.next_run().lost] == [882]


def test_the_sweep_of_a_recovery_that_dies_takes_no_proof_along(story):
    """884 is open where 882 was committed; the first recovery sweeps it, and is killed."""
    story.write(883)
    story.write(884)
    assert story.next_run().lost == []
    story.world.cluster.groups.clear()  # somebody resets the group
    assert story.next_run().lost == []
    assert story.world.visible() == {"in-0:882": 1}


def test_what_somebody_else_has_committed_in_its_place_proves_nothing(story, monkeypatch):
    """A group that was reset, and an id whose end the broker knows no more."""
    monkeypatch.setattr(DecisionLog, "settle", lambda self, **_: None)
    story.write(883)
    story.write(884)
    assert story.next_run().lost == []
    groups = story.world.cluster.groups
    groups.update(dict.fromkeys(groups, (7, "")))
    with pytest.raises(OutcomeUnknownError):
        story.next_run()
