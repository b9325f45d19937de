"""ctrl-C, SIGTERM and SIGHUP as one KeyboardInterrupt, but never during the clean-up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from connectors.machine.stop_requests import stop_requests


class Interruption:
    """A context manager of the main thread; it handles the signals while it is open.

    The first signal raises KeyboardInterrupt, at once or at the end of `shielded`. Each further
    signal only shows a notice, so that the clean-up of the first signal completes.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.asked = False
        self._notice = notice
        self._raised = False
        self._shields = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in stop_requests():
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """Let no signal interrupt the body.

        Raises:
            KeyboardInterrupt: at the end of the body, if a signal came meanwhile.
        """
        self.shield()
        try:
            yield
        finally:
            self._shields -= 1
        self._raise_if_asked()

    def shield(self) -> None:
        """Only remember signals from now on, for good; `shielded` stops doing so at its end.

        To make sure that a clean-up completes, call `shield` in a `try` and clean up in the
        `finally`. A signal before the end of `shield` raises, and no second signal raises.
        """
        self._shields += 1

    def _raise_if_asked(self) -> None:
        if self.asked and not self._raised and self._shields == 0:
            self._raised = True
            raise KeyboardInterrupt

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        name = "ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        again, self.asked = self.asked, True
        self._notice(f"{name}: {'still ' if again else ''}removing what was made")
        self._raise_if_asked()
