"""Draws the distribution of a latency like HdrHistogram: most room is for the tail."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from connectors.bench import chart
from connectors.bench.figures import SHARES, Line

_LINES: Final = ("#0f766e", "#b45309", "#0e7490", "#7c3aed", "#c81e1e", "#52606d", "#14b8a6")


def check_installed() -> None:
    """See `connectors.bench.chart.check_installed`."""
    chart.check_installed("The distribution is drawn with matplotlib.", where="--plot")


def curves(lines: Sequence[Line]) -> dict[str, list[float]]:
    """Return the curves of the lines, in ms at `SHARES`, by their names in the legend."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if "commit_ms" in line and "curve_ms" in line["commit_ms"]:
            found[f"commit, {line['subtasks']} subtask(s)"] = line["commit_ms"]["curve_ms"]
        elif line["what"] == "latency" and "curve_ms" in line:
            found[line["system"]] = line["curve_ms"]
    return found


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write the picture; the suffix chooses svg, png, or html that contains the svg."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra `demo`

    figure = Figure(figsize=(9, 5), dpi=150, facecolor="white")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.09, right=0.97, top=0.84, bottom=0.1)
    places = chart.make_distribution(axes, SHARES)
    for number, (name, values) in enumerate(curves(lines).items()):
        colour = _LINES[number % len(_LINES)]
        axes.plot(places, values, color=colour, lw=2, marker="o", ms=3, label=name)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("ms", color=chart.SOFT)
    axes.legend(frameon=False, fontsize=9, labelcolor=chart.INK)
    chart.make_plain(axes, grid="both")
    axes.tick_params(which="minor", length=0)
    title, detail = titles(lines)
    figure.text(0.09, 0.93, title, fontsize=13, fontweight="bold", color=chart.INK)
    figure.text(0.09, 0.88, detail, fontsize=8.5, color=chart.SOFT)
    if path.suffix.lower() == ".html":
        path.write_text(_page(figure, title), "utf-8")
    else:
        figure.savefig(path)


def titles(lines: Sequence[Line]) -> tuple[str, str]:
    """Return the title of the picture, and the conditions of the measurement."""
    first = next(one for one in lines if "partitions" in one)
    what = "Commit latency" if first["what"] == "commit" else "Latency, produced until visible"
    facts = (
        first["system"],
        f"{first['rate']:,} records/s",
        f"{first['partitions']} partitions",
        f"values of {first['value_bytes']} bytes",
        first["master"] if len(lines) == 1 else "",
        f"{first['cpus']} CPUs",
        first["at"],
    )
    return what, "  ·  ".join(filter(None, facts))


def _page(figure: Any, title: str) -> str:
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :]  # without the XML prologue
    return (
        "<!doctype html>\n"
        f'<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<body>{svg}</body></html>\n"
    )
