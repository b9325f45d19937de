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
    """How long to wait for the next barrier, in seconds.

    Attributes:
        target_s: a record shall be visible this long after it was read, when there is room.
        most_s: the longest wait, however far the tasks are behind.
        fixed_s: the time from barrier to barrier that the user chose; nothing adapts then. As in
            Flink it is counted from start to start, and a checkpoint that takes longer is followed
            by the next one at once.
        wait_s: the present wait, from the end of a checkpoint on.
    """

    target_s: float
    most_s: float
    fixed_s: float | None = None
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        """Begin at the lowest latency."""
        self.wait_s = self.target_s / 4 if self.fixed_s is None else self.fixed_s

    def after(self, checkpoint_s: float, *, behind: bool) -> float:
        """Take note of a checkpoint and return the wait that follows it.

        Args:
            checkpoint_s: from its barrier to its last commit.
            behind: a task had more to read than it could.
        """
        if self.fixed_s is not None:
            self.wait_s = max(self.fixed_s - checkpoint_s, 0.0)
            return self.wait_s
        # Read at the start of a wait, a record waits for all of it and for the checkpoint.
        shortest = max(self.target_s - checkpoint_s, self.target_s / 10)
        if behind:
            longest = max(self.most_s, self.target_s)
            wanted = max(self.wait_s * _GROW, min(checkpoint_s / _BUSY_SHARE, longest))
            self.wait_s = min(wanted, longest)
        else:
            self.wait_s = max(self.wait_s * _SHRINK, shortest / 2)
        return self.wait_s
