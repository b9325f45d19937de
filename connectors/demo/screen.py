"""The demo in a terminal: live bars and marks, or plain lines without a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from connectors.demo.history import History, Kind
from connectors.demo.proof import Check

_PLAIN_EVERY_S: Final = 3.0
_STYLES: Final = {
    Kind.START: ("cyan", ">"),
    Kind.KILL: ("bold red", "x"),
    Kind.RESTART: ("yellow", ">"),
    Kind.READY: ("dim", "-"),
    Kind.RECOVERED: ("bold green", "+"),
    Kind.LOADED: ("blue", "-"),
    Kind.STOP: ("cyan", "="),
}
_LAST_CHECKPOINTS: Final = 5


class Screen:
    """A context manager; give `update` to the supervisor."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._marks = 0
        self._doing = ""
        self._plain_at = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, history: History, doing: str) -> None:
        """Show the history and the present step."""
        if self._live is not None:
            self._live.update(_picture(history, doing))
        else:
            self._plain(history, doing)

    def _plain(self, history: History, doing: str) -> None:
        new = history.marks[self._marks :]
        lines = [f"{mark.at:6.1f} s  {mark.text}" for mark in new]
        self._marks = len(history.marks)
        now = history.samples[-1].at if history.samples else 0.0
        # There are many checkpoints; each other step gets a line at once.
        said = doing == self._doing or doing in {mark.text for mark in new}
        if not said and not doing.startswith("checkpoint"):
            lines.append(f"{now:6.1f} s  {doing}")
        elif not lines and now - self._plain_at >= _PLAIN_EVERY_S:
            lines.append(
                f"{now:6.1f} s  loaded {history.loaded:,}, visible {history.visible:,}, "
                f"{len(history.checkpoints)} checkpoints"
            )
        if lines:
            self._plain_at = now
        self._doing = doing
        for line in lines:
            self._console.print(line, markup=False, highlight=False)

    def result(self, history: History, checks: Sequence[Check], picture: Path) -> None:
        """Print the proof and the final table."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._console.print(_proof(checks))
        self._console.print(_numbers(history))
        self._console.print(f"Timeline: {picture}", markup=False, highlight=False, soft_wrap=True)


def _picture(history: History, doing: str) -> RenderableType:
    bars = Table.grid(padding=(0, 2))
    for name, done, style in (
        ("loaded", history.loaded, "blue"),
        ("visible", history.visible, "green"),
    ):
        bar = ProgressBar(total=history.total, completed=done, width=46, complete_style=style)
        bars.add_row(name, bar, f"{done:>9,} of {history.total:,}")
    lag = history.loaded - history.visible
    bars.add_row("", "", Text(f"{max(0, lag):>9,} behind", style="dim"))
    marks = [
        Text(f"{mark.at:6.1f} s  {_STYLES[mark.kind][1]} {mark.text}", _STYLES[mark.kind][0])
        for mark in history.marks
        if mark.kind is not Kind.READY
    ]
    title = "336,776 flights, exactly once" if history.total == 336_776 else "exactly once"
    body = Group(bars, Text(), *marks, Text(), _checkpoints(history), Text(doing, "bold"))
    return Panel(body, title=title, border_style="cyan", width=92)


def _checkpoints(history: History) -> RenderableType:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("checkpoint", "records", "transactions", "commit ms", ""):
        table.add_column(name, justify="right")
    for line in history.checkpoints[-_LAST_CHECKPOINTS:]:
        note = "decided before the kill" if line.replayed else ""
        numbers = (f"{line.records:,}", str(line.transactions), f"{line.commit_ms:.1f}")
        cells = ("-", "-", "-") if line.replayed else numbers
        table.add_row(str(line.checkpoint_id), *cells, note)
    return table


def _proof(checks: Sequence[Check]) -> RenderableType:
    table = Table(title="The proof of an independent read_committed reader", title_justify="left")
    for name in ("", "what", "found"):
        table.add_column(name)
    for check in checks:
        sign, style = ("ok", "green") if check.holds else ("FAILED", "bold red")
        table.add_row(Text(sign, style), check.name, Text(check.detail))
    return table


def _numbers(history: History) -> RenderableType:
    table = Table(title="The run", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in numbers(history).items():
        table.add_row(name, value)
    return table


def numbers(history: History) -> dict[str, str]:
    """Return the rows of the final table."""
    outages = [end - begin for begin, end in history.outages]
    return {
        "checkpoints": f"{len(history.checkpoints):,}",
        "SIGKILLs of the driver": f"{len(history.of(Kind.KILL))}",
        "transactions re-committed after the kills": f"{history.recommitted}",
        "from a kill to the next checkpoint": ", ".join(f"{one:.1f} s" for one in outages) or "-",
        "commit latency p50 / p99": f"{history.commit_ms(50):.1f} / {history.commit_ms(99):.1f} ms",
        "maximum of records behind": f"{history.max_lag:,}",
        "records/s, kills included": f"{history.records_per_second:,.0f}",
        "records/s, best second": f"{history.peak_per_second:,.0f}",
    }
