"""Wait until something is so, without a fixed pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from transactions.clock import Deadline

T = TypeVar("T")


def until(
    is_so: Callable[[], T | None],
    within_s: float = 30.0,
    said: Callable[[], object] = str,
    pause_s: float = 0.01,
) -> T:
    """Wait until a condition holds.

    Args:
        is_so: the condition; asked again and again.
        within_s: how long, in seconds.
        said: returns what to say when time is up.
        pause_s: between two questions, in seconds; longer where a question costs much.

    Returns:
        The first true value that the condition gave.
    """
    deadline = Deadline(within_s)
    while not (value := is_so()):
        assert not deadline.expired(), said()
        deadline.pause(pause_s)
    return value
