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

from connectors.bench import chart
from connectors.bench.figures import SHARES, Line

_OURS: Final = ("#0f766e", "#14b8a6", "#0e7490", "#115e59", "#5eead4")
_THEIRS: Final = ("#9aa5b1", "#b45309", "#c81e1e", "#7c3aed", "#52606d", "#d97706", "#be185d")


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write the picture; medians over the rounds."""
    systems = list(dict.fromkeys(one["system"] for one in lines if "system" in one))
    colours = _colours(systems)
    figure = Figure(figsize=(13, 2.6 + 0.32 * len(systems)), dpi=150, facecolor="white")
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.15], "wspace": 0.14})
    figure.subplots_adjust(left=0.2, right=0.98, top=0.86, bottom=0.16)
    _throughput(left, lines, systems, colours)
    _latency(right, lines, systems, colours)
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


def _latency(axes: Any, lines: Sequence[Line], systems: list[str], colours: Any) -> None:
    places = chart.make_distribution(axes, SHARES)
    for name in systems:
        curves = _values(lines, "latency", name, "curve_ms")
        if curves:
            axes.plot(places, np.median(curves, axis=0), color=colours[name], label=name, lw=1.6)
    axes.set_title("latency, ms, produced until visible", fontsize=10, loc="left")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
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
