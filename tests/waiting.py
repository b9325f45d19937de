"""Wait until something is so, without a fixed pause."""

from __future__ import annotations

from collections.abc import Callable

from transactions.clock import Deadline


def until(
    is_so: Callable[[], object], within_s: float = 30.0, said: Callable[[], object] = str
) -> None:
    """Wait until a condition holds.

    Args:
        is_so: the condition; asked again and again.
        within_s: how long, in seconds.
        said: returns what to say when time is up.
    """
    deadline = Deadline(within_s)
    while not is_so():
        assert not deadline.expired(), said()
        deadline.pause(0.01)
