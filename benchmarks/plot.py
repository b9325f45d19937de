"""The lines of a run as one picture: throughput as bars, latency as its distribution.

python -m benchmarks.plot benchmarks/results/<date>-NAME.jsonl     # writes NAME.png beside it
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.comparison import median
from connectors.bench import chart
from connectors.bench.figures import SHARES, Line

#: The distribution is drawn at this rate, if it was measured.
_USUAL_RATE: Final = 2000
_OURS: Final = ("#0f766e", "#14b8a6", "#0e7490", "#115e59", "#5eead4")
_THEIRS: Final = ("#9aa5b1", "#b45309", "#c81e1e", "#7c3aed", "#52606d", "#d97706", "#be185d")


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write the picture; medians over the rounds. Latency at several rates is a curve more."""
    systems = list(dict.fromkeys(one["system"] for one in lines if "system" in one))
    rates = sorted({one["rate"] for one in lines if one["what"] == "latency" and "rate" in one})
    colours = _colours(systems)
    rows = 2 if len(rates) > 1 else 1
    height = 2.6 + 0.32 * len(systems)
    figure = Figure(figsize=(13, height + (rows - 1) * 4.2), dpi=150, facecolor="white")
    grid = figure.add_gridspec(
        rows,
        2,
        width_ratios=[1, 1.15],
        height_ratios=[height, 4.2][:rows],
        wspace=0.14,
        hspace=0.35,
    )
    figure.subplots_adjust(left=0.2, right=0.98, top=0.92, bottom=0.1)
    _throughput(figure.add_subplot(grid[0, 0]), lines, systems, colours)
    _latency(figure.add_subplot(grid[0, 1]), lines, systems, colours, rates)
    if rows > 1:
        _curve(figure.add_subplot(grid[1, :]), lines, systems, colours, rates)
    figure.savefig(path)


def _throughput(axes: Any, lines: Sequence[Line], systems: list[str], colours: Any) -> None:
    rows = [name for name in systems if _values(lines, "throughput", name, "records_per_s_total")]
    rows.reverse()
    for height, name in enumerate(rows):
        total = np.median(_values(lines, "throughput", name, "records_per_s_total"))
        axes.barh(height, total, color=colours[name], height=0.66)
        axes.text(total, height, f" {total:,.0f}", va="center", color=chart.INK, fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_xlim(right=axes.get_xlim()[1] * 1.15)
    axes.set_title("records a second, until visible to read_committed", fontsize=10, loc="left")
    _plain(axes, "x")


def _latency(
    axes: Any, lines: Sequence[Line], systems: list[str], colours: Any, rates: Sequence[int]
) -> None:
    places = chart.make_distribution(axes, SHARES)
    rate = _USUAL_RATE if _USUAL_RATE in rates else min(rates, default=None)
    for name in systems:
        curves = _values(
            [one for one in lines if one.get("rate") == rate], "latency", name, "curve_ms"
        )
        if curves:
            axes.plot(places, np.median(curves, axis=0), color=colours[name], label=name, lw=1.6)
    at = "" if rate is None else f", at {rate:,} records a second"
    axes.set_title(f"latency, ms, produced until visible{at}", fontsize=10, loc="left")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
    _plain(axes, "both")


def _curve(
    axes: Any, lines: Sequence[Line], systems: list[str], colours: Any, rates: Sequence[int]
) -> None:
    for name in systems:
        for figure, style in (("p50_ms", "-"), ("p99_ms", "--")):
            found = {
                rate: median(lines, figure, what="latency", system=name, rate=rate)
                for rate in rates
            }
            drawn = {rate: ms for rate, ms in found.items() if ms is not None}
            label = f"{name}, {figure.removesuffix('_ms')}"
            axes.plot(
                *(list(drawn), list(drawn.values()), style),
                color=colours[name],
                label=label,
                lw=1.6,
                marker="o",
                ms=3,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(rates, [f"{rate:,}" for rate in rates], fontsize=8)
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title("latency, ms, by records a second", fontsize=10, loc="left")
    axes.legend(fontsize=7, frameon=False, ncols=2)
    _plain(axes, "both")


def _values(lines: Sequence[Line], what: str, system: str, name: str) -> list[Any]:
    mine = (one for one in lines if one["what"] == what and one["system"] == system)
    return [one[name] for one in mine if one.get(name) is not None]


def _colours(systems: list[str]) -> dict[str, str]:
    ours = [name for name in systems if name.startswith("sparkonce")]
    theirs = [name for name in systems if name not in ours]
    return {
        name: palette[number % len(palette)]
        for names, palette in ((ours, _OURS), (theirs, _THEIRS))
        for number, name in enumerate(names)
    }


def _plain(axes: Any, grid: str) -> None:
    axes.grid(axis=grid, color=chart.GRID, lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(results: Path) -> None:
    """Draw a file of results."""
    lines = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
    draw(lines, results.with_suffix(".png"))
    click.echo(results.with_suffix(".png"))


if __name__ == "__main__":
    main()
