"""ctrl-C and SIGTERM as one KeyboardInterrupt, but never in the middle of tidying up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final, Self

#: SIGHUP: the terminal was closed.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """A context manager of the main thread: the signals are its own while it is open.

    The first signal raises KeyboardInterrupt, at once or where `shielded` ends. All further ones
    are only answered with a notice: what the first one began must not be left half done.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.asked = False
        self._notice = notice
        self._raised = False
        self._shields = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
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
        """Let nothing interrupt what stands inside.

        Raises:
            KeyboardInterrupt: at its end, when a signal came meanwhile.
        """
        self.shield()
        try:
            yield
        finally:
            self._shields -= 1
        self._raise_if_asked()

    def shield(self) -> None:
        """Begin to only remember signals, for good; `shielded` ends where it ends.

        To be sure that what follows runs whole, call it in a `try` and go on in its `finally`: a
        signal that comes before this is done is the first one, and no second one is raised.
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
