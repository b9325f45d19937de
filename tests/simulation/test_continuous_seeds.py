"""Random stories of the continuous mode, and a proof that they find what is broken.

Each seed draws the faults of the network and who ends where. The tasks are real threads, so a
seed is no exact replay: it says which mixture to run again.

Each mutation takes one safeguard of the product away and must be found by its symptom.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from connectors.continuous import stage_committer, stage_task
from connectors.continuous.partition_shares import Change, PartitionShares
from connectors.continuous.stage_committer import StageCommitter
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.spark.continuous_driver import ContinuousDriver
from connectors.wire import wire_requests
from tests.both_halves import KafkaBothHalves
from tests.simulation.adversary import Profile
from tests.simulation.continuous_task import TASK_STEPS, here
from tests.simulation.continuous_world import (
    DRIVER_STEPS,
    TIMEOUT_MS,
    ContinuousWorld,
    Moment,
    SimulatedDriver,
)
from transactions.clock import Deadline
from transactions.committable import Outcome
from transactions.coordinator import CheckpointCoordinator
from transactions.errors import SparkOnceError

SEEDS = 40
_FIND_S = 120.0
_RATES = (0.0, 0.0, 0.01, 0.03)


def profile_of(rng: random.Random) -> Profile:
    """Draw the network's faults: requests and answers lost, late, repeated, refused."""
    kinds = (
        "not_sent",
        "request_dropped",
        "answer_dropped",
        "request_delayed",
        "held_back",
        "repeated_late",
        "repeated_at_once",
        "refused_for_now",
    )
    return dataclasses.replace(Profile.quiet(), **{kind: rng.choice(_RATES) for kind in kinds})


def drawn(seed: int) -> ContinuousWorld:
    """Draw a story."""
    rng = random.Random(seed)
    moments: list[Moment] = [
        (rng.choice([*TASK_STEPS, *DRIVER_STEPS]), rng.randint(1, 4), "kill")
        if rng.random() < 0.7
        else (rng.choice(TASK_STEPS), rng.randint(1, 4), "fail")
        for _ in range(rng.randint(0, 4))
    ]
    world = ContinuousWorld(
        *moments,
        seed=seed,
        profile=profile_of(rng),
        carries_offsets=rng.random() < 0.7,
        wave=rng.randint(2, 5),  # one row of a wave may be dropped, not all of it
    )
    if rng.random() < 0.2:
        world.on_restart = lambda: past_the_timeout(world)
    return world


def past_the_timeout(world: ContinuousWorld) -> None:
    world.on_restart = lambda: None
    for driver in world.drivers:
        driver.join()
    with world.lock:
        world.clock.sleep(TIMEOUT_MS / 1000 + 1)
        world.cluster.abort_timed_out()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_story(seed):
    world = drawn(seed)
    world.run(most=30)
    try:
        world.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


# --- what the simulation would find -----------------------------------------------------------


def found(symptom: str, *stories: Callable[[], ContinuousWorld]) -> None:
    """Expect that one of the stories fails with the symptom.

    Its threads are real, and which comes first is the machine's choice: the stories are told again
    and again until it shows.
    """
    others = []
    give_up = Deadline(_FIND_S)
    for make in itertools.cycle(stories):
        if give_up.expired():
            break
        world = make()
        try:
            world.run()
            world.check()
        except (AssertionError, SparkOnceError) as error:
            others.append(f"{error} {world.violations}")
            if re.search(symptom, others[-1]):
                return
    pytest.fail(f"not found; other failures: {others[:3]}")


def killed(step: str, nth: int = 2, how: str = "kill", **options: Any):
    return lambda: ContinuousWorld((step, nth, how), **options)


def test_c4_a_checkpoint_that_was_acknowledged_but_not_decided_is_not_skipped(monkeypatch):
    """Rewind is what is chosen. Going on behind the acknowledged positions loses the records."""
    offsets = ContinuousDriver._offsets

    def skipping(self: SimulatedDriver, run: Any, planner: Any) -> Mapping[str, int]:
        decided = offsets(self, run, planner)
        before = [one._loop for one in self.world.drivers if one is not self and one._loop]
        acknowledged = before[-1]._shares.offsets if before else {}
        return {name: max(at, acknowledged.get(name, 0)) for name, at in decided.items()}

    steps = ("committables_collected", "prepared_checked", "batch_started")
    for step in steps:
        world = ContinuousWorld((step, 2, "kill"))
        world.run()
        world.check()
    monkeypatch.setattr(ContinuousDriver, "_offsets", skipping)
    found("lost", *[killed(step) for step in steps])


def test_c3_a_second_ender_is_found(monkeypatch):
    """A driver that "makes sure": its EndTxn comes late, in the middle of the next transaction."""
    commit = StageCommitter.commit
    worlds: list[ContinuousWorld] = []

    def making_sure(self: StageCommitter, committables: Any, deadline: Any) -> Any:
        outcomes = commit(self, committables, deadline)
        network = worlds[-1].network
        with worlds[-1].lock:
            now = worlds[-1].clock.now_ms()
            for one in committables:
                network.late.append((now + 60, "the driver", wire_requests.end_txn(one)))
        return outcomes

    monkeypatch.setattr(StageCommitter, "commit", making_sure)

    def make() -> ContinuousWorld:
        worlds.append(ContinuousWorld(seed=len(worlds), rows=40, wave=3))
        return worlds[-1]

    found("committed without a decision|its offsets are missing", *[make] * 10)


def held_back(seed: int) -> ContinuousWorld:
    """Nobody ends; some requests come late, behind a closed connection, after their repetition."""
    faults = dataclasses.replace(Profile.quiet(), held_back=0.02)
    return ContinuousWorld(seed=seed, profile=faults, carries_offsets=seed % 3 != 0, rows=30)


@pytest.mark.parametrize("seed", range(5))
def test_requests_that_come_late_behind_a_closed_connection(seed):
    world = held_back(seed)
    world.run(most=30)
    world.check()


def test_rule_3_a_request_that_librdkafka_repeats_by_itself_is_found(monkeypatch):
    """A late EndTxn commits what is half written and was never decided."""
    monkeypatch.setattr(TransactionalProducer, "_connections_broke", lambda _: False)
    found(
        "committed without a decision|it was split",
        *[lambda seed=seed: held_back(seed) for seed in range(40)],
    )


def test_a_commit_that_no_task_confirmed_is_found(monkeypatch):
    """Without the look at the partitions, which would wait for it: that sees what is there."""

    def trusting(self: StageCommitter, committables: Any, deadline: Any) -> Any:
        writers = {one.subtask for one in committables}
        self._stage.commit(committables[0].checkpoint_id, writers, deadline)
        return {one.token: Outcome.COMMITTED for one in committables}

    monkeypatch.setattr(StageCommitter, "commit", trusting)
    monkeypatch.setattr(KafkaBothHalves, "hidden", lambda *_: [])
    found("aborted by|lost|pending", *[killed("commit_received", n) for n in (1, 2, 3)])


def test_a_sweep_of_live_producers_is_found(monkeypatch):
    monkeypatch.setattr(stage_committer.RunningStage, "is_writer", lambda *_: False)
    monkeypatch.setattr("connectors.continuous.checkpoint_loop._SWEEP_EVERY_S", 0.0)

    def commit(self: StageCommitter, committables: Any, deadline: Any) -> Any:
        writers = {one.subtask for one in committables}
        confirmed = self._stage.commit(committables[0].checkpoint_id, writers, deadline)
        return {
            one.token: Outcome.COMMITTED if one.subtask in confirmed else Outcome.UNKNOWN
            for one in committables
        }

    monkeypatch.setattr(StageCommitter, "commit", commit)
    found(
        "INVALID_PRODUCER_EPOCH|transaction has changed",
        *[lambda seed=seed: ContinuousWorld(seed=seed, rows=30) for seed in range(5)],
    )


def hidden_then_killed(step: str, nth: int) -> Callable[[], ContinuousWorld]:
    """The marker of a commit is left out, and some steps later a task is killed."""
    moments: list[Moment] = [("commit_received", 2, "hide"), (step, nth, "kill")]
    return lambda: ContinuousWorld(*moments, seed=nth, rows=60, wave=9)


LATER = [
    hidden_then_killed(step, nth)
    for nth in (2, 3, 5, 8)
    for step in ("invoked", "records_queued", "acknowledged")
]


def test_a_running_stage_that_does_not_look_for_hidden_commits_is_found(monkeypatch):
    """As it was: a later transaction of the same producer is swept, and takes them along."""
    monkeypatch.setattr(StageCommitter, "hidden", lambda *_: [])
    found("lost", *LATER)


def test_a_barrier_that_does_not_wait_for_the_look_is_found(monkeypatch):
    """The look comes too late when the tasks have begun on the producers that it is about."""
    monkeypatch.setattr(CheckpointCoordinator, "await_visible", lambda _: None)
    found("lost", *LATER)


def test_a_torn_write_in_a_checkpoint_is_found(monkeypatch):
    """What the simulation found first: see `stage_task`."""
    prepare = stage_task._Loop._prepare

    def preparing(self: Any, barrier: Any) -> None:
        self._torn = False
        prepare(self, barrier)

    monkeypatch.setattr(stage_task._Loop, "_prepare", preparing)
    stories = [killed("invoked", nth, "fail", seed=nth) for nth in range(1, 7)]
    found("twice", *stories)


def test_positions_that_run_ahead_of_the_records_are_found(monkeypatch):
    """A barrier between the position and the write of a batch: the batch would be lost."""

    def write(self: Any, read: Any, batch: Any) -> bool:
        with self._lock:
            self._positions.update(read.positions)
        threading.Event().wait(0.003)
        with self._lock:
            if self._ended.is_set():
                return True
            if batch is not None and batch.num_rows:
                self._writer.invoke(self._begun(read.positions), batch)
            tell, self._told_moved = not self._told_moved, True
        if tell:
            self._channel.send(stage_task.Moved())
        return True

    monkeypatch.setattr(stage_task._Loop, "_write", write)
    stories = [killed("decision_durable", nth, seed=nth) for nth in (1, 2, 3)]
    found("lost", *stories)


def test_a_task_that_leaves_first_is_taken_for_dead(monkeypatch):
    """The drain failed when one task was done before the others: seen, and for good."""

    def one_is_slow() -> ContinuousWorld:
        world = ContinuousWorld()
        point = world.point

        def slowly(step: str, number: int = -1) -> None:
            if step == "acknowledging" and here.process.name.endswith(".1"):
                threading.Event().wait(0.02)
            point(step, number)

        world.point = slowly  # type: ignore[method-assign]
        return world

    world = one_is_slow()
    world.run()
    world.check()
    assert world.errors == []
    monkeypatch.setattr(stage_task._Loop, "_await_close", lambda self: None)
    found("is gone", one_is_slow)


def test_a_partition_that_begins_at_its_end_is_found(monkeypatch):
    """A new partition's first records came before it was discovered."""
    change = PartitionShares.change

    def at_the_end(self: PartitionShares, partitions: Mapping[str, int], active: int) -> Change:
        return change(self, dict.fromkeys(partitions, 6), active)

    monkeypatch.setattr(PartitionShares, "change", at_the_end)
    found("lost", ContinuousWorld)


def slow_function(seed: int) -> Callable[[], ContinuousWorld]:
    """A barrier often comes while a task has a batch in its hands."""

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        threading.Event().wait(0.003)
        return ContinuousWorld.transform(batch)

    def made() -> ContinuousWorld:
        world = ContinuousWorld(seed=seed, rows=40)
        world.transform = transform  # type: ignore[method-assign]
        return world

    return made


SLOW = [slow_function(seed) for seed in range(1, 7)]


@pytest.mark.parametrize("story", SLOW)
def test_partitions_move_between_slow_tasks(story):
    world = story()
    world.run()
    world.check()
    assert world.errors == []


def test_a_task_that_writes_what_it_read_of_a_partition_that_left_is_found(monkeypatch):
    nothing = property(lambda _: set(), lambda *_: None)
    monkeypatch.setattr(stage_task._Loop, "_leaving", nothing, raising=False)
    found("twice", *SLOW)


def test_a_partition_that_moves_in_one_barrier_is_found(monkeypatch):
    """Its new task begins before the old one has said how far it came."""
    change = PartitionShares.change

    def at_once(self: PartitionShares, found: Mapping[str, int], active: int) -> Change:
        first = change(self, found, active)
        if not first.removed:
            return first
        second = change(self, {}, active)
        return dataclasses.replace(
            first, readers=first.readers | second.readers, added=second.added
        )

    monkeypatch.setattr(PartitionShares, "change", at_once)
    found("twice", *SLOW)
