"""SIGTERM and ctrl-C as a request to stop, while a driver runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals(carry_out: Callable[[], None]) -> Iterator[None]:
    """Call `carry_out` at either signal; on another thread than the main one, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda *_: carry_out())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
