"""Time as an argument: a clock that tests can replace, and one deadline for a whole step.

No other module of the protocol calls `time.sleep` or reads the time, so the simulation can run it
under a virtual clock. (A rule of the trio project: tests never sleep.)
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the protocol needs to know about time."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences have a meaning."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait; a virtual clock jumps instead."""


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


class Deadline:
    """The moment at which a step and everything below it gives up.

    One deadline is passed down through a whole checkpoint, so that timeouts of inner calls never
    add up to more than the outer one.
    """

    def __init__(self, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds left, 0.0 when there are none."""
        return max(0.0, self._end - self._clock.monotonic())

    def expired(self) -> bool:
        """Return whether the moment has come."""
        return self.remaining() == 0.0

    def now_ms(self) -> int:
        """Wall clock of the deadline's own clock; see `Clock.now_ms`."""
        return self._clock.now_ms()

    def pause(self, seconds: float) -> None:
        """Sleep, but never past the deadline: the back-off between two tries."""
        self._clock.sleep(min(seconds, self.remaining()))
