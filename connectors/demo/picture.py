"""The timeline as one PNG: loaded and visible records, kills and restarts, commit latency."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from connectors.bench import chart
from connectors.demo.history import History, Kind

_LOADED: Final = "#9aa5b1"
_VISIBLE: Final = "#0f766e"
_KILL: Final = "#c81e1e"
_RESTART: Final = "#b45309"
_OUTAGE: Final = "#fde8e8"
#: With more checkpoints than this the picture draws no marks: they would form a line.
_MOST_MARKS: Final = 100


def check_installed() -> None:
    """See `connectors.bench.chart.check_installed`."""
    chart.check_installed("The demo draws its timeline with matplotlib.")


def draw(history: History, path: Path, *, holds: bool) -> None:
    """Write the picture."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra `demo`

    figure = Figure(figsize=(12.5, 7.2), dpi=150, facecolor="white")
    top, bottom = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [3.4, 1.0], "hspace": 0.08}
    )
    figure.subplots_adjust(left=0.075, right=0.975, top=0.84, bottom=0.085)
    for axes in (top, bottom):
        chart.make_plain(axes, grid="y")
        for begin, end in history.outages:
            axes.axvspan(begin, end, color=_OUTAGE, lw=0, zorder=0)
    _records(top, history)
    _marks(top, history)
    _commits(bottom, history)
    _title(figure, history, holds)
    figure.savefig(path)


def _title(figure: Any, history: History, holds: bool) -> None:
    kills = len(history.of(Kind.KILL))
    verdict = "every one exactly once" if holds else "THE PROOF FAILED"
    colour = chart.INK if holds else _KILL
    figure.text(
        0.075,
        0.94,
        f"{history.total:,} flights, {kills} SIGKILLs of the driver, {verdict}",
        fontsize=17,
        fontweight="bold",
        color=colour,
    )
    text = (
        f"{len(history.checkpoints)} checkpoints, {history.recommitted} transactions re-committed "
        f"after a kill  ·  commit latency p50 {history.commit_ms(50):.0f} ms, "
        f"p99 {history.commit_ms(99):.0f} ms  ·  {history.records_per_second:,.0f} records/s "
        f"overall, {history.peak_per_second:,.0f} in the best second"
    )
    figure.text(0.075, 0.9, text, fontsize=10.5, color=chart.SOFT)


def _records(axes: Any, history: History) -> None:
    at = [one.at for one in history.samples]
    loaded = [max(one.loaded, one.visible) for one in history.samples]
    visible = [one.visible for one in history.samples]
    axes.fill_between(at, visible, loaded, color=_LOADED, alpha=0.22, lw=0)
    axes.plot(at, loaded, color=_LOADED, lw=2, label="loaded by a plain producer")
    label = "visible to a read_committed reader"
    axes.plot(at, visible, color=_VISIBLE, lw=2.4, drawstyle="steps-post", label=label)
    first = [line for line in history.checkpoints if not line.replayed]
    if len(first) <= _MOST_MARKS:
        axes.plot(
            [line.at for line in first],
            [_visible_at(history, line.at) for line in first],
            "o",
            ms=4.5,
            mfc="white",
            mec=_VISIBLE,
            mew=1.4,
            label="checkpoint",
        )
    axes.set_ylim(0, history.total * 1.2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
    axes.set_ylabel("flights", color=chart.SOFT)


def _visible_at(history: History, at: float) -> int:
    return next((one.visible for one in history.samples if one.at >= at), history.visible)


def _marks(axes: Any, history: History) -> None:
    height = history.total * 1.2
    for kill in history.of(Kind.KILL):
        axes.axvline(kill.at, color=_KILL, lw=1.6)
        axes.plot([kill.at], [_visible_at(history, kill.at)], "X", color=_KILL, ms=10, mec="white")
        name, _, reason = kill.text.partition(" ")
        axes.annotate(
            f"{name}\n{_broken(reason)}",
            (kill.at, height * 0.985),
            xytext=(6, 0),
            textcoords="offset points",
            color=_KILL,
            fontsize=9,
            va="top",
            linespacing=1.25,
        )
    for mark in history.of(Kind.RECOVERED):
        visible = _visible_at(history, mark.at)
        at_the_end = mark.at > 0.7 * history.samples[-1].at  # on the right is the legend
        axes.plot([mark.at], [visible], "D", color=_RESTART, ms=7, mec="white", zorder=4)
        axes.annotate(
            mark.text,
            (mark.at, visible),
            xytext=(-9, 8) if at_the_end else (9, -15),
            textcoords="offset points",
            color=_RESTART,
            fontsize=9,
            ha="right" if at_the_end else "left",
        )
    working = [end for _, end in history.outages]
    heights = [_visible_at(history, at) for at in working]
    label = "first checkpoint after the restart"
    axes.plot(working, heights, ls="", marker="^", color=_RESTART, ms=9, mec="white", label=label)
    axes.legend(
        loc="lower right", framealpha=0.85, edgecolor="white", labelcolor=chart.INK, fontsize=9.5
    )
    for done in history.of(Kind.LOADED):
        axes.annotate(
            done.text,
            (done.at, history.total),
            xytext=(0, 7),
            textcoords="offset points",
            color=chart.SOFT,
            fontsize=9,
            ha="center",
        )


def _broken(text: str) -> str:
    return text.replace(": ", ":\n").replace(" decision", "\ndecision")


def _commits(axes: Any, history: History) -> None:
    real = [line for line in history.checkpoints if not line.replayed]
    at, cost = [line.at for line in real], [line.commit_ms for line in real]
    many = len(real) > _MOST_MARKS
    axes.vlines(at, 0, cost, color=_VISIBLE, lw=0.5 if many else 2.2)
    axes.plot(at, cost, ls="", marker="o", ms=1.2 if many else 3.5, color=_VISIBLE)
    axes.set_ylim(0, max([*cost, 1.0]) * 1.25)
    axes.set_ylabel("commit, ms", color=chart.SOFT)
    axes.set_xlabel("seconds", color=chart.SOFT)
    begin = next((one.at for one in history.samples if one.loaded), 0.0)
    axes.set_xlim(max(0.0, begin - 2.0), history.samples[-1].at)
