"""The pause between two reads of a task that has caught up.

A read costs some 0.3 ms whether it brings one record or a thousand. A producer that sends a few
each millisecond would make a task read, transform and write them one by one, and keep a third of a
core busy with 1,000 records a second (measured). So a task reads together what comes within some
milliseconds, in a longer pause if fewer come. No record misses its barrier because of the pause: a
barrier cuts the pause short, and takes what has come meanwhile. Behind a barrier one pause is
short: the driver sends no other barrier before the first record is written.
"""

from __future__ import annotations

import threading
import time
from typing import Final

#: A pause ends before more have come: they delay the barrier that waits for them, by a millisecond.
_ROWS: Final = 500
#: The pause behind a barrier: the next transaction begins early, while this one is decided.
_SHORTEST_S: Final = 0.001
#: A barrier waits so long for what has come in a pause; a function of the user's can take longer.
_PATIENCE_S: Final = 0.01


class ReadPause:
    """Shared by a task's two threads.

    Args:
        shortest_s: a pause at any rate, but not the one behind a barrier.
        longest_s: a pause when next to nothing comes.
    """

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s, self._longest_s = shortest_s, longest_s
        self._taken_s = time.monotonic()
        self._behind_barrier = False
        self._changed = threading.Condition()
        self._pausing = False
        self._hurried = False

    def take(self, rows: int) -> bool:
        """Pause. On the reading thread, when it has read everything.

        Args:
            rows: how many records came since the last call, at least one.

        Returns:
            Whether a barrier waits for what has come meanwhile. The caller must read that at once,
            without waiting for more, and then call `over`.
        """
        now_s = time.monotonic()
        until_full_s = _ROWS * (now_s - self._taken_s) / rows
        self._taken_s = now_s
        with self._changed:
            self._pausing = True
            pause_s = min(max(until_full_s, self._shortest_s), self._longest_s)
            if self._behind_barrier:
                self._behind_barrier, pause_s = False, _SHORTEST_S
            self._changed.wait_for(lambda: self._hurried, pause_s)
            self._pausing = False
            return self._hurried

    def over(self) -> None:
        """Note that what came in the pause is written, or never will be. On the reading thread."""
        with self._changed:
            self._hurried = False
            self._changed.notify_all()

    def cut_short(self) -> None:
        """Let the reading thread take what has come, if it pauses; do not wait for a read that is
        under way. On the control thread, at a barrier.

        It does not wait for a slow function of the user either: those records belong to the next
        checkpoint, as without a pause.
        """
        with self._changed:
            self._behind_barrier = True
            if self._pausing:
                self._hurried = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._hurried, _PATIENCE_S)
