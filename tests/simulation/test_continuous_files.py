"""A stage whose sink the driver commits, ended at each step; and that mistakes are found.

What a reader of the folder sees is the input, once, in the order of each partition; no hidden file
is left; and no file was ever shown whose checkpoint was not decided.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectors.continuous.contract_writer import ContractWriter
from connectors.continuous.running_stage import RunningStage
from tests.power_cut import Syncs
from tests.simulation.continuous_files import DRIVER_STEPS, FilesWorld, PowerCutWorld
from tests.simulation.continuous_task import MOVES, Killed
from tests.simulation.continuous_task import TASK_STEPS_WITHOUT_END as TASK_STEPS
from tests.simulation.continuous_world import Moment, SimulatedDriver
from tests.tiers import sampled
from transactions import log_backend
from transactions.coordinator import CheckpointCoordinator
from transactions.errors import CheckpointTimeoutError, FencedError, PhaseOneError
from transactions.events import Event, subscribe

STEPS = (*TASK_STEPS, *DRIVER_STEPS)
SHORT_S = 0.25
Story = Callable[..., FilesWorld]


@pytest.fixture
def world(tmp_path: Path) -> Story:
    """Make a world with a folder of its own."""
    numbers = itertools.count()

    def made(*moments: Moment, **options: Any) -> FilesWorld:
        return FilesWorld(tmp_path / str(next(numbers)), *moments, **options)

    return made


@pytest.fixture
def story(world: Story) -> Story:
    """Run to the end, check everything, and that all of it happened."""

    def told(*moments: Moment, **options: Any) -> FilesWorld:
        one = world(*moments, **options)
        one.run()
        one.check()
        assert one.never_came == [], "the story did not come true"
        return one

    return told


@pytest.mark.parametrize("seed", range(3))
def test_without_a_failure_there_is_one_run_and_nothing_is_open_at_its_end(world, seed):
    one = world(seed=seed)
    with one.installed():
        driver = SimulatedDriver(one)
        assert driver.live(), driver.failure
        driver.join()
    one.check()
    assert len(one.files()) > 3


def test_every_step_is_reached(story):
    """And no task is told of a decision, nor answers that it has ended something."""
    assert set(story().reached) - {*MOVES} == set(STEPS)


@pytest.mark.parametrize("step", STEPS)
def test_b1_a_power_cut_at_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str):
    """Log and target lie on the disk, which loses what was not synced."""
    syncs = Syncs()
    syncs.watch(monkeypatch)
    one = PowerCutWorld(tmp_path, syncs, ("all_committed", 2, "kill"), (step, 1, "kill"))
    one.run()
    syncs.close()
    one.check()
    assert one.never_came == []
    assert one.cuts


def test_b1_a_log_that_is_not_synced_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_backend, "sync_folder", lambda _folder: None)
    syncs = Syncs()
    syncs.watch(monkeypatch)
    one = PowerCutWorld(tmp_path, syncs, ("all_committed", 2, "kill"))
    one.kept = (0.0,)
    with pytest.raises(AssertionError):
        one.run()
        one.check()


def test_an_idle_source_leaves_nothing_open(world):
    """Rows come and are dropped, and partitions are there without rows: no file is begun."""
    one = world()
    one.inputs = {name: [f"{name}:3" if row else None for row in range(13)] for name in one.inputs}
    one.expected.clear()
    opened: list[list[str]] = []
    tell = one.completed
    one.completed = lambda report: (opened.append(one.left_open()), tell(report))
    one.run()
    one.check()
    assert opened
    assert not any(opened)
    assert one.files() == []


@pytest.mark.parametrize("nth", sampled([1, 2, 4], 2))
@pytest.mark.parametrize("step", TASK_STEPS)
@pytest.mark.parametrize("how", ["kill", "fail"])
def test_a_task_ends_at_each_step(story, step, nth, how):
    if step == "registered" and nth == 4:
        nth = 1  # a run has two tasks
    one = story((step, nth, how))
    assert len(one.errors) == 1
    assert isinstance(one.errors[0], PhaseOneError)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_the_driver_dies_at_each_step(story, step, nth):
    one = story((step, 1 if step.startswith("recovery") else nth, "kill"))
    assert [type(error) for error in one.errors] == [Killed]


@pytest.mark.parametrize("task_step", sampled(TASK_STEPS, "acknowledging"))
def test_a_task_and_a_driver_end_one_after_the_other(story, task_step):
    for driver_step in DRIVER_STEPS:
        story((task_step, 2, "kill"), (driver_step, 1, "kill"))


@pytest.mark.parametrize(
    "first", sampled(["decision_durable", "renamed", "recovery_fenced"], "renamed")
)
def test_two_drivers_die_one_after_the_other(story, first):
    for second in ("decision_durable", "renamed", "recovery_fenced", "recovery_settled"):
        story((first, 1, "kill"), (second, 1, "kill"))


# --- stalled, not dead ----------------------------------------------------------------------


@pytest.mark.parametrize("thaw", ["in_the_next_run", "at_the_end"])
@pytest.mark.parametrize("step", [one for one in TASK_STEPS if one != "acknowledged"])
def test_a_task_that_stalls_is_given_up_and_may_wake_at_any_time(world, step, thaw):
    """What it wrote, or writes when it wakes, is in no decision, and swept."""
    one = world((step, 2, "freeze"))
    one.thaw_with_the_next_run = thaw == "in_the_next_run"
    one.run()
    one.check()
    assert one.froze.is_set()
    assert isinstance(one.errors[0], CheckpointTimeoutError), one.errors


@pytest.mark.parametrize("thaw", sampled(["in_the_next_run", "at_the_end"], "at_the_end"))
@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_a_driver_that_stalls_finds_that_the_newer_one_has_won(world, step, thaw):
    one = world((step, 1, "freeze"))
    one.thaw_with_the_next_run = thaw == "in_the_next_run"
    failure = one.overtake_the_frozen_driver()
    one.check()
    assert isinstance(failure, FencedError), failure


# --- somebody removes what was decided ------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_prepared_file_that_somebody_removed_is_written_again(world, nth):
    """The driver reads the offsets of the decision again; count and fingerprint agree."""
    healed: list[Event] = []
    unsubscribe = subscribe(lambda event: event.kind == "healed" and healed.append(event))
    one = world(("decision_durable", nth, "kill"))
    one.on_restart = one.lose_what_is_prepared
    try:
        one.run()
    finally:
        unsubscribe()
    one.check()
    assert len(healed) == 1


# --- mistakes -------------------------------------------------------------------------------


def found(pattern: str, *worlds: FilesWorld) -> None:
    """Assert that one of the stories goes wrong, and how."""
    said = []
    for one in worlds:
        try:
            one.run(most=4)
            one.check()
        except (AssertionError, OSError) as error:
            said.append(f"{error} {one.errors}")
    assert any(part in text for text in said for part in pattern.split("|")), said


def test_a_sweep_of_what_fills_is_found(world, monkeypatch):
    """Without ids of the tasks, only the run tells what fills from what lingers."""
    monkeypatch.setattr("connectors.continuous.checkpoint_loop._SWEEP_EVERY_S", 0.0)

    def swept_while_it_fills() -> FilesWorld:
        one = world()
        one.before_barrier = lambda: threading.Event().wait(0.03)
        return one

    one = swept_while_it_fills()
    one.run()
    one.check()
    assert one.errors == [], "as often as it can, and it harms nobody"
    monkeypatch.setattr(RunningStage, "has_writers", True)
    found("its file is gone|No such file", *[swept_while_it_fills() for _ in range(3)])


def test_a_task_that_waits_to_be_told_of_the_decision_is_found(world, monkeypatch):
    monkeypatch.setattr(ContractWriter, "ends_transactions", True)
    # Its assertion, in one line or in several, as pytest explains it.
    found("a Commit is due|, Commit)|no Acknowledge", world(checkpoint_timeout_s=SHORT_S))


def test_a_commit_before_the_decision_is_found(world, monkeypatch):
    """A driver that shows a file as soon as it is prepared."""
    check = CheckpointCoordinator._check_prepared

    def eager(self: Any, committables: Any, number: int, deadline: Any) -> Any:
        checked = check(self, committables, number, deadline)
        for name, sink in self._sinks.items():
            mine = [one for one in checked if one.sink == name]
            if mine:
                sink.commit(mine, deadline)
        return checked

    monkeypatch.setattr(CheckpointCoordinator, "_check_prepared", eager)
    found("twice|without a decision|never decided", world(("prepared_checked", 2, "kill")))
