"""Turns ctrl-C, SIGTERM and SIGHUP into a request to stop, while a driver runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from connectors.machine.stop_requests import stop_requests
from connectors.spark.submitted import exit_code_of_stop, stop_requests_forwarded
from transactions.clock import Deadline

_LOOK_S: Final = 0.02


class StopFlag:
    """Whether a stop was asked for; a signal handler may set it.

    It may not set a `threading.Event`: `Event.set` takes a lock that the main thread, which the
    handler has interrupted, may hold at that moment, and then waits for it for ever.
    """

    def __init__(self) -> None:
        self._asked = False

    def set(self) -> None:
        """Ask for a stop."""
        self._asked = True

    def is_set(self) -> bool:
        """Tell whether a stop was asked for."""
        return self._asked

    def wait(self, timeout_s: float) -> None:
        """Wait until a stop was asked for, not longer than the timeout."""
        deadline = Deadline(timeout_s)
        while not self._asked and not deadline.expired():
            deadline.pause(_LOOK_S)


@contextmanager
def stop_signals(carry_out: Callable[[], None]) -> Iterator[None]:
    """Call `carry_out` at each such signal; on any thread but the main thread, do nothing.

    Raises:
        SystemExit: the block has ended after a signal, and a cluster runs this program, which must
            start it again: see `exit_code_of_stop`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = StopFlag()

    def hear(*_: object) -> None:
        asked.set()
        carry_out()

    before = {number: signal.signal(number, hear) for number in stop_requests()}
    try:
        with stop_requests_forwarded():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked.is_set() and (code := exit_code_of_stop()):
        raise SystemExit(code)
