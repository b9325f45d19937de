"""When the next barrier is due: soon when little is going on, rarely when the tasks are behind.

Each checkpoint costs the same whether it holds one record or a million, so the interval trades
latency against throughput. Pure: the caller reports what happened, and gets how long to wait.
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
        target_s: how long after its read a record should be visible, when there is room.
        most_s: the longest wait, however far the tasks are behind.
        fixed_s: the time from barrier to barrier that the user chose; nothing adapts then. As in
            Flink it counts from start to start, and the next checkpoint follows at once if one
            takes longer.
        wait_s: the present wait, from the end of a checkpoint on.
        took_s: how long the last checkpoint took.
    """

    target_s: float
    most_s: float
    fixed_s: float | None = None
    wait_s: float = 0.0
    took_s: float = 0.0

    def __post_init__(self) -> None:
        """Begin at the lowest latency."""
        self.wait_s = self.target_s / 4 if self.fixed_s is None else self.fixed_s

    def after(self, checkpoint_s: float, *, behind: float = 0.0) -> float:
        """Note a checkpoint and return the wait that follows it.

        Args:
            checkpoint_s: the time from its barrier to its last commit.
            behind: how much the task that is furthest behind has still to read, as a multiple of
                what it read from the barrier before to this one; 0 when every task keeps up.
        """
        if self.fixed_s is not None:
            self.wait_s = max(self.fixed_s - checkpoint_s, 0.0)
            return self.wait_s
        # A record that is read at the start of a wait waits for all of it and for the checkpoint.
        shortest = max(self.target_s - checkpoint_s, self.target_s / 10)
        interval_s, self.took_s = self.took_s + self.wait_s, checkpoint_s
        if behind > 1.0:
            longest = max(self.most_s, self.target_s)
            wanted = self.wait_s * _GROW
            # The backlog of a hiccup is gone soon, and long waits would delay every record
            # meanwhile. If the backlog takes longer than one long wait, throughput counts, at once.
            if behind * interval_s > longest:
                wanted = max(wanted, checkpoint_s / _BUSY_SHARE)
            self.wait_s = min(wanted, longest)
        else:
            self.wait_s = max(self.wait_s * _SHRINK, shortest / 2)
        return self.wait_s
