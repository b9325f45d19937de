"""How many tasks of a stage should read: one while it keeps up, more when it does not.

A checkpoint costs some milliseconds in each task that takes part, so fewer tasks make it faster.
The measure is how busy the tasks are, as in Flink's autoscaler (``busyTimeMsPerSecond``). It leaves
out what a task waits for a processor or a lock: more tasks would not help there. Pure: the caller
reports what happened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

#: How long the tasks are watched before each answer.
_WINDOW_S = 1.0
#: Where so much of the active tasks' time is used, more tasks are needed.
_TOO_BUSY = 0.8
#: So much of a task's time is used after a change: there is room for a burst.
_BUSY = 0.5
#: So many windows in a row must need fewer tasks.
_CALM_WINDOWS = 3
_MOST_CALM_WINDOWS = 300


class ActiveTasks:
    """Watches the tasks of one stage. Lives on the driver.

    Attributes:
        wanted: how many tasks should read now.

    Args:
        most: how many there are. All of them begin: a start often has a backlog.
        now_s: the time, of a monotonic clock.
    """

    def __init__(self, most: int, now_s: float) -> None:
        self.wanted = most
        self._most = most
        self._busy_s: dict[int, float] = {}
        self._calm = 0
        self._calm_wanted = _CALM_WINDOWS
        self._begin_window(now_s)

    def after(self, now_s: float, busy_s: Mapping[int, float], *, behind: float) -> None:
        """Note a checkpoint.

        Args:
            now_s: the time, of the same clock.
            busy_s: of each task that took part, see `Acknowledge`.
            behind: see `BarrierPace.after`.
        """
        for subtask, busy in busy_s.items():
            self._worked_s += busy - self._busy_s.get(subtask, busy)
            self._busy_s[subtask] = busy
        if behind > 1.0:
            self._was_behind = True
        else:
            self._kept_up = True
        passed_s = now_s - self._begun_s
        if passed_s >= _WINDOW_S:
            self._decide(self._worked_s / passed_s)
            self._begin_window(now_s)

    def _begin_window(self, now_s: float) -> None:
        self._begun_s = now_s
        self._worked_s = 0.0
        self._was_behind = self._kept_up = False

    def _decide(self, load: float) -> None:
        """Decide after a window.

        Args:
            load: how many tasks would have been busy all the time.
        """
        needed = max(1, min(math.ceil(load / _BUSY), self._most))
        if not self._kept_up:
            if self.wanted < self._most:
                # Fewer were too few, and how many are enough nobody knows: take longer next time.
                self._calm_wanted = min(2 * self._calm_wanted, _MOST_CALM_WINDOWS)
            self.wanted, self._calm = self._most, 0
        elif load > _TOO_BUSY * self.wanted:
            self.wanted, self._calm = max(needed, self.wanted), 0
        elif self._was_behind or needed >= self.wanted:
            self._calm = 0
        else:
            self._calm += 1
            if self._calm >= self._calm_wanted:
                self.wanted, self._calm = needed, 0
