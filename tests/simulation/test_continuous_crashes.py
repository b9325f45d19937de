"""A stage and its driver, ended at each step and at each pair of steps; then a new run goes on.

What a reader sees is the input, once, in the order of each partition, and nothing is left open.
Every story must come true: the step that it names was reached.
"""

from __future__ import annotations

import functools

import pytest

from connectors.continuous.barrier_pace import BarrierPace
from tests.simulation.continuous_task import MOVES, TASK_STEPS, Killed, SimulatedReader
from tests.simulation.continuous_world import (
    DRIVER_STEPS,
    TIMEOUT_MS,
    AllRead,
    ContinuousWorld,
    Moment,
    MovesFirst,
    RecordsInEach,
    SimulatedDriver,
)
from tests.tiers import sampled
from transactions import crash_points
from transactions.errors import (
    BrokerUnavailableError,
    CheckpointTimeoutError,
    FencedError,
    HiddenCommitError,
    PhaseOneError,
)
from transactions.events import Event, subscribe

STEPS = (*TASK_STEPS, *DRIVER_STEPS)
HEALING = ("heal_started", "heal_produced", "heal_durable", "heal_committed")


@pytest.fixture
def told():
    """What was told so far of one kind of event."""
    events: list[Event] = []
    unsubscribe = subscribe(events.append)
    yield lambda kind: [one for one in events if one.kind == kind]
    unsubscribe()


def story(*moments: Moment, kind=ContinuousWorld, **options) -> ContinuousWorld:
    """Run to the end, check everything, and that all of it happened."""
    world = kind(*moments, **options)
    world.run()
    world.check()
    assert world.never_came == [], "the story did not come true"
    return world


# --- nothing happens ------------------------------------------------------------------------


@pytest.mark.parametrize("carries_offsets", [True, False], ids=["one_cluster", "two_clusters"])
@pytest.mark.parametrize("seed", range(5))
def test_without_a_failure_there_is_one_run_and_nothing_is_open_at_its_end(carries_offsets, seed):
    """A drain ends every task in order: nobody is taken for dead because it was done first."""
    world = ContinuousWorld(seed=seed, carries_offsets=carries_offsets)
    with world.installed():
        driver = SimulatedDriver(world)
        assert driver.live(), driver.failure
        assert world.cluster.open_ids() == []
        driver.join()
    world.check()
    assert world.late <= world.inputs.keys(), "a partition came while it ran"


def test_every_step_is_reached():
    world = story()
    assert set(world.reached) - {*MOVES} == set(STEPS)
    wanted = {*crash_points.POINTS, *crash_points.STAGE_POINTS} - {*HEALING, *MOVES}
    assert wanted <= set(world.reached), "a new crash point is in no story"


@pytest.mark.parametrize("step", MOVES)
def test_a_kill_at_each_step_of_a_move(step: str):
    world = ContinuousWorld((step, 1, "kill"))
    world.active = MovesFirst
    world.run()
    world.check()
    assert world.never_came == []


def test_the_pace_is_told_how_far_the_tasks_are_behind(monkeypatch):
    """By how many times what one has read since the last barrier, never all of a partition."""
    told = []
    after = BarrierPace.after

    def noted(pace: BarrierPace, checkpoint_s: float, *, behind: float) -> float:
        told.append(behind)
        return after(pace, checkpoint_s, behind=behind)

    monkeypatch.setattr(BarrierPace, "after", noted)
    world = ContinuousWorld()
    world.active = AllRead  # else one task can read as much as a partition has
    reader = type("Behind", (SimulatedReader,), {"lag": 60})
    world.make_reader = functools.partial(reader, world)
    world.run()
    world.check()
    assert told
    assert min(told) > 60 / len(world.inputs["in-0"])
    assert max(told) <= 60


# --- one or two ends ------------------------------------------------------------------------


@pytest.mark.parametrize("nth", sampled([1, 2, 4], 2))
@pytest.mark.parametrize("step", TASK_STEPS)
@pytest.mark.parametrize("how", ["kill", "fail"])
def test_a_task_ends_at_each_step(step, nth, how, told):
    """What it had open is a failed checkpoint, told once, in either phase."""
    if step == "registered" and nth == 4:
        nth = 1  # a run has two tasks
    world = story((step, nth, how))
    assert len(world.errors) == 1
    assert isinstance(world.errors[0], PhaseOneError)
    # The world's last run, which finds nothing to do, is cut off, and may come to tell that too.
    last = max(one.fields["checkpoint"] for one in told("checkpoint_completed"))
    ended = [one for one in told("checkpoint_failed") if one.fields["checkpoint"] <= last]
    while_it_starts = step in ("registered", "begun", "invoked")
    assert len(ended) in ({0, 1} if while_it_starts else {1})


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_the_driver_dies_at_each_step(step, nth):
    world = story((step, 1 if step.startswith("recovery") else nth, "kill"))
    assert [type(one) for one in world.errors] == [Killed]


@pytest.mark.parametrize("task_step", sampled(TASK_STEPS, "offsets_sent", "commit_received"))
def test_a_task_and_a_driver_end_one_after_the_other(task_step):
    """The task is killed, and a driver at each of its steps: of the same run or of the next."""
    for driver_step in DRIVER_STEPS:
        story((task_step, 2, "kill"), (driver_step, 1, "kill"))


@pytest.mark.parametrize(
    "driver_step",
    sampled(
        ["barrier_sent", "decision_durable", "commit_sent", "all_committed", "recovery_settled"],
        "decision_durable",
    ),
)
def test_a_driver_and_a_task_end_one_after_the_other(driver_step):
    """The other way round: the new run loses a task at each of its steps."""
    for task_step in TASK_STEPS:
        story((driver_step, 1, "kill"), (task_step, 2, "kill"))


@pytest.mark.parametrize(
    "first", sampled(["decision_durable", "commit_sent", "recovery_fenced"], "commit_sent")
)
def test_two_drivers_die_one_after_the_other(first):
    """The second one, too, finds a decision that it has not made."""
    for second in DRIVER_STEPS:
        story((first, 1, "kill"), (second, 1, "kill"))


@pytest.mark.parametrize("step", [*TASK_STEPS, *DRIVER_STEPS])
def test_it_ends_with_source_and_sink_on_two_clusters(step):
    """Positions move without a committable then: what was read and dropped is read again."""
    story((step, 1, "kill"), carries_offsets=False)


# --- stalled, not dead ----------------------------------------------------------------------


@pytest.mark.parametrize("thaw", ["in_the_next_run", "at_the_end"])
@pytest.mark.parametrize("step", [one for one in TASK_STEPS if one != "committed_sent"])
def test_a_task_that_stalls_is_given_up_and_may_wake_at_any_time(step, thaw):
    """SIGSTOP: its late EndTxn finds its transaction ended, its late records are fenced."""
    world = ContinuousWorld((step, 2, "freeze"))
    world.thaw_with_the_next_run = thaw == "in_the_next_run"
    world.run()
    world.check()
    assert world.froze.is_set()
    # On a busy machine the time is over in the middle of another request.
    assert isinstance(world.errors[0], CheckpointTimeoutError | BrokerUnavailableError), (
        world.errors
    )


@pytest.mark.parametrize("thaw", ["in_the_next_run", "at_the_end"])
@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_a_driver_that_stalls_finds_that_the_newer_one_has_won(step, thaw):
    """Its tasks read and write on meanwhile; none of that is ever seen."""
    world = ContinuousWorld((step, 1, "freeze"))
    world.thaw_with_the_next_run = thaw == "in_the_next_run"
    failure = world.overtake_the_frozen_driver()
    world.check()
    assert isinstance(failure, FencedError), failure


def test_the_newest_of_two_live_drivers_wins():
    """Both run: the older one's tasks are swept or its decision is refused, whatever is first."""
    world = ContinuousWorld()
    with world.installed():
        older = SimulatedDriver(world)
        older.start()
        newer = SimulatedDriver(world)
        assert newer.live(), newer.failure
        assert older._loop is not None
        assert older._loop.wait(20)
        assert isinstance(older._cause_of(older._loop.failure), FencedError)
        world.come_to_rest()
    world.check()


# --- the broker hides what was committed ----------------------------------------------------


def hidden_story(*moments: Moment, **options) -> ContinuousWorld:
    """Run to the end: it was hidden, it stopped the pipeline, and nothing else happened."""
    world = story(*moments, **options, kind=RecordsInEach)
    assert len(world.hidden) == 1
    found = [one for one in world.errors if isinstance(one, HiddenCommitError)]
    assert len(found) == 1, world.errors
    return world


@pytest.mark.parametrize("carries_offsets", [True, False], ids=["one_cluster", "two_clusters"])
@pytest.mark.parametrize("nth", [1, 2, 3, 5])
def test_a_hidden_commit_is_found_before_its_producer_is_used_again(nth, carries_offsets):
    """KAFKA-20734 while the stage runs: it ends with the next barrier unsent."""
    world = hidden_story(("commit_received", nth, "hide"), carries_offsets=carries_offsets)
    assert len(world.errors) == 1
    assert world.barriers[0] == world.barriers[1]


@pytest.mark.parametrize(
    "step", sampled(STEPS, "records_flushed", "decision_durable", "commit_sent", "recovery_fenced")
)
def test_a_hidden_commit_and_an_end_at_each_step(step):
    """Whoever finds it, the run, its last sweep or the next run: nothing is aborted before."""
    for nth in (1, 2):
        hidden_story(("commit_received", nth, "hide"), (step, 1, "kill"), rows=21, wave=5)


def test_a_commit_that_recovery_makes_can_be_hidden_too():
    hidden_story(("decision_durable", 2, "kill"), ("recovery_fenced", 1, "hide"))


# --- the broker aborts what was decided ---------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_what_the_broker_aborted_after_the_decision_is_healed(told, nth):
    """Everybody dies after a decision and comes back after the transactions' timeout."""
    world = RecordsInEach(("decision_durable", nth, "kill"))
    world.on_restart = lambda: past_the_timeout(world)
    world.run()
    world.check()
    assert len(told("healed")) == 1


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_what_one_task_has_committed_is_not_healed(nth):
    """One task was told of the decision and has ended its transaction, the others were not."""
    world = RecordsInEach(("commit_sent", nth, "kill"))
    world.on_restart = lambda: past_the_timeout(world)
    world.run()
    world.check()


@pytest.mark.parametrize("step", HEALING)
def test_a_driver_dies_while_it_heals(step):
    world = RecordsInEach(("decision_durable", 2, "kill"), (step, 1, "kill"))
    world.on_restart = lambda: past_the_timeout(world)
    world.run()
    world.check()
    assert world.never_came == []


def past_the_timeout(world: ContinuousWorld) -> None:
    """Let the broker abort what is open, once."""
    world.on_restart = lambda: None
    for driver in world.drivers:
        driver.join()
    world.clock.sleep(TIMEOUT_MS / 1000 + 1)
    world.cluster.abort_timed_out()
