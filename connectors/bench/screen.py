"""The progress of a benchmark on stderr: a live bar, or plain lines without a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from transactions.clock import SYSTEM_CLOCK, Clock

_PLAIN_EVERY_S: Final = 3.0


class Screen:
    """A context manager; give `watch` to the workbench."""

    def __init__(self, console: Console, clock: Clock = SYSTEM_CLOCK) -> None:
        self._console = console
        self._clock = clock
        self._step = ""
        self._plain_at = 0.0
        self._bars: Progress | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn()
            self._bars = Progress(
                *columns, TimeElapsedColumn(), console=self._console, transient=True
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def watch(self, step: str, done: int, total: int) -> None:
        """Show a step; `total` is 0 if its length is unknown."""
        new, self._step = step != self._step, step
        if self._bars is None:
            self._plain(step, done, total, new=new)
        elif total == 0:
            if new:
                self.say(step)
        else:
            self._bar(step, done, total, new=new)

    def say(self, text: str) -> None:
        """Write one separate line."""
        self._console.print(f"bench: {text}", markup=False, highlight=False, soft_wrap=True)

    def _bar(self, step: str, done: int, total: int, *, new: bool) -> None:
        assert self._bars is not None
        if new:
            for task in self._bars.task_ids:
                self._bars.remove_task(task)
            self._bars.add_task(step, total=total)
        (task,) = self._bars.task_ids
        self._bars.update(task, completed=done, total=total)

    def _plain(self, step: str, done: int, total: int, *, new: bool) -> None:
        now = self._clock.monotonic()
        if not new and now - self._plain_at < _PLAIN_EVERY_S:
            return
        self._plain_at = now
        self.say(f"{step}: {done:,} of {total:,}" if total else step)
