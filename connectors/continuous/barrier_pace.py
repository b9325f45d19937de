"""When the next barrier is due: soon when little is going on, rarely when the tasks are behind.

Each checkpoint costs the same whether it holds one record or a million, so the interval is what
trades latency against throughput. Pure: it is told what happened, and says how long to wait.
"""

from __future__ import annotations

import dataclasses

_GROW = 1.5
_SHRINK = 0.6
#: Part of the time that checkpoints may take while the tasks are behind.
_BUSY_SHARE = 0.1


@dataclasses.dataclass(slots=True)
class BarrierPace:
    """The time from one barrier to the next, in seconds.

    Attributes:
        target_s: a record shall be visible this long after it was read, when there is room.
        most_s: the longest interval, however far the tasks are behind.
        fixed_s: an interval that the user chose; nothing adapts then.
        interval_s: the present one.
    """

    target_s: float
    most_s: float
    fixed_s: float | None = None
    interval_s: float = 0.0

    def __post_init__(self) -> None:
        """Begin at the lowest latency."""
        self.interval_s = self.target_s / 4 if self.fixed_s is None else self.fixed_s

    def after(self, checkpoint_s: float, *, behind: bool) -> float:
        """Take note of a checkpoint and return the interval that follows it.

        Args:
            checkpoint_s: from its barrier to its last commit.
            behind: a task had more to read than it could.
        """
        if self.fixed_s is not None:
            return self.fixed_s
        # Read at the start of an interval, a record waits for all of it and for the checkpoint.
        shortest = max(self.target_s - checkpoint_s, self.target_s / 10)
        if behind:
            longest = max(self.most_s, self.target_s)
            wanted = max(self.interval_s * _GROW, min(checkpoint_s / _BUSY_SHARE, longest))
            self.interval_s = min(wanted, longest)
        else:
            self.interval_s = max(self.interval_s * _SHRINK, shortest / 2)
        return self.interval_s
