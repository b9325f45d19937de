"""How many tasks read: what the policy makes of busy, idle and late tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connectors.continuous.active_tasks import ActiveTasks
from connectors.continuous.checkpoint_loop import CheckpointLoop

MOST = 8
INTERVAL_S = 0.0625
CHECKPOINTS = 16  # of a window of one second


class Stage:
    """A stage whose load is dealt evenly to the tasks that read."""

    def __init__(self, most: int = MOST) -> None:
        self.tasks = ActiveTasks(most, 0.0)
        self.now_s = 0.0
        self.busy_s = dict.fromkeys(range(most), 0.0)

    def window(self, load: float, *, behind: float = 0.0, late: int = CHECKPOINTS) -> int:
        """Let a window pass, and return how many tasks are wanted then.

        Args:
            load: how many tasks' time is used.
            behind: how far the tasks are behind, at the first checkpoints.
            late: at how many of them.
        """
        for number in range(CHECKPOINTS):
            self.now_s += INTERVAL_S
            reading = range(self.tasks.wanted)
            for subtask in reading:
                self.busy_s[subtask] += load * INTERVAL_S / len(reading)
            busy_s = {subtask: self.busy_s[subtask] for subtask in reading}
            self.tasks.after(self.now_s, busy_s, behind=behind if number < late else 0.0)
        return self.tasks.wanted


def test_a_start_has_all_of_them_and_a_quiet_stream_needs_one():
    stage = Stage()
    assert [stage.window(0.2) for _ in range(4)] == [MOST, MOST, 1, 1]


@pytest.mark.parametrize(("load", "wanted"), [(0.45, 1), (0.9, 2), (1.4, 3), (3.9, 8), (9.0, 8)])
def test_there_is_room_for_a_burst(load, wanted):
    stage = Stage()
    for _ in range(6):
        stage.window(load)
    assert stage.tasks.wanted == wanted


def test_busy_tasks_get_help_at_once():
    stage = Stage()
    for _ in range(3):
        stage.window(0.2)
    assert stage.window(0.75) == 1
    assert stage.window(0.95) == 2
    assert stage.window(1.7) == 4


def test_a_hiccup_changes_nothing_and_a_backlog_needs_all():
    stage = Stage()
    for _ in range(3):
        stage.window(0.2)
    assert stage.window(0.4, behind=2.0, late=CHECKPOINTS - 1) == 1
    assert stage.window(0.4, behind=2.0) == MOST


def test_who_is_behind_again_keeps_its_tasks_longer_each_time():
    """Otherwise partitions move for ever where one task is idle most of the time and too slow."""
    stage, calm = Stage(), []
    for _ in range(4):
        windows = 1
        while stage.window(0.2) != 1:
            windows += 1
        calm.append(windows)
        assert stage.window(0.2, behind=5.0) == MOST
    assert calm == [3, 6, 12, 24]


def test_a_backlog_that_all_of_them_have_says_nothing_about_fewer():
    stage = Stage()
    for _ in range(5):
        assert stage.window(0.2, behind=5.0) == MOST
    assert [stage.window(0.2) for _ in range(3)] == [MOST, MOST, 1]


def test_one_task_is_never_less():
    stage = Stage(1)
    for load in (0.0, 5.0, 0.0):
        assert stage.window(load, behind=load) == 1


def test_checkpoints_that_come_seldom_are_a_window_each():
    """An idle stream makes none."""
    tasks = ActiveTasks(4, 0.0)
    for number in range(1, 4):
        tasks.after(number * 60.0, {0: number * 0.1}, behind=0.0)
    assert tasks.wanted == 1


@pytest.mark.parametrize(("all_read", "readers"), [(False, 1), (True, 4)])
def test_all_tasks_read_where_the_user_says_so(all_read: bool, readers: int) -> None:
    options = SimpleNamespace(all_read=all_read)
    stage, active = SimpleNamespace(parallelism=4), SimpleNamespace(wanted=1)
    loop: Any = SimpleNamespace(_options=options, _stage=stage, _active=active)
    assert CheckpointLoop._wanted_readers(loop) == readers
