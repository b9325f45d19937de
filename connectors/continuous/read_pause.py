"""The pause between two reads of a task that has caught up.

A read costs some 0.3 ms whether it brings one record or a thousand. A producer that sends a few
each millisecond would make a task read, transform and write them one by one, and keep a third of a
core busy with 1,000 records a second (measured). So a task reads together what comes within some
milliseconds. No record misses its barrier because of the pause: a barrier cuts the pause short, and
takes what has come meanwhile.
"""

from __future__ import annotations

import threading


class ReadPause:
    """Shared by a task's two threads.

    Args:
        seconds: the longest pause.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._pausing = False
        self._hurried = False

    def take(self) -> bool:
        """Pause. On the reading thread, when it has read everything.

        Returns:
            Whether a barrier waits for what has come meanwhile. The caller must read that at once,
            without waiting for more, and then call `over`.
        """
        with self._changed:
            self._pausing = True
            self._changed.wait_for(lambda: self._hurried, self._seconds)
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
            if self._pausing:
                self._hurried = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._hurried, 2 * self._seconds)
