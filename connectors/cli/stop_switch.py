"""ctrl-C, SIGTERM and SIGHUP as one request to stop, from the start of a process to its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from connectors.machine.stop_requests import stop_requests
from transactions.clock import SYSTEM_CLOCK, Clock

_SECOND_AFTER_S = 1.0


class StopSwitch:
    """Remembers a request to stop and passes it to the function that can stop the pipeline.

    A second signal ends the process at once, with exit code 1. Nothing is lost: the next start
    finishes what was decided. A second signal within one second counts as the same request,
    because shells and wrappers forward signals.
    """

    def __init__(self, notice: Callable[[str], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self.asked = False
        self._notice = notice
        self._clock = clock
        self._asked_at = 0.0
        self._carry_out: Callable[[], None] | None = None
        self._before: dict[signal.Signals, object] = {}

    def install(self) -> None:
        """Install the handlers; call it again after Spark has replaced the one for ctrl-C."""
        for number in {*stop_requests(), *self._before}:
            before = signal.signal(number, self._on_signal)
            self._before.setdefault(number, before)

    def attach(self, carry_out: Callable[[], None]) -> None:
        """Set what a request does from now on; an earlier request runs it at once."""
        self._carry_out = carry_out
        if self.asked:
            carry_out()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.asked:
            if self._clock.monotonic() - self._asked_at >= _SECOND_AFTER_S:
                self._notice("stopped at once; the next start finishes what was decided")
                os._exit(1)
            return
        self.asked, self._asked_at = True, self._clock.monotonic()
        name = "ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self._notice(f"{name}: stopping between two checkpoints; again stops at once")
        if self._carry_out is not None:
            self._carry_out()

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # it came from signal()
