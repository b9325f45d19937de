"""The distribution of a latency as a picture, as HdrHistogram draws it: the tail has the room."""

from __future__ import annotations

import html
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from connectors.bench.figures import SHARES, Line
from transactions.errors import ConfigurationError

_INK: Final = "#1f2933"
_SOFT: Final = "#7b8794"
_GRID: Final = "#e4e7eb"
_LINES: Final = ("#0f766e", "#b45309", "#0e7490", "#7c3aed", "#c81e1e", "#52606d", "#14b8a6")
_MARKS: Final = (0.5, 0.9, 0.99, 0.999)


def check_installed() -> None:
    """Find out before the run, not after it, whether a picture can be drawn.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigurationError(
            "The distribution is drawn with matplotlib.",
            where="--plot",
            cause="the project was installed without its extra `demo`",
            option="pip install 'sparkonce[demo]'",
        ) from error


def curves(lines: Sequence[Line]) -> dict[str, list[float]]:
    """Return the curves that lines have, by the name in the legend: ms at `SHARES`."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if "commit_ms" in line and "curve_ms" in line["commit_ms"]:
            found[f"commit, {line['subtasks']} subtask(s)"] = line["commit_ms"]["curve_ms"]
        elif line["what"] == "latency" and "curve_ms" in line:
            found[line["system"]] = line["curve_ms"]
    return found


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write the picture; its kind is that of the name: svg, png, or html with the svg in it."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra `demo`

    figure = Figure(figsize=(9, 5), dpi=150, facecolor="white")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.09, right=0.97, top=0.84, bottom=0.1)
    places = [-np.log10(1 - share) for share in SHARES]
    for number, (name, values) in enumerate(curves(lines).items()):
        colour = _LINES[number % len(_LINES)]
        axes.plot(places, values, color=colour, lw=2, marker="o", ms=3, label=name)
    axes.set_yscale("log")
    axes.set_xticks([-np.log10(1 - one) for one in _MARKS], [f"p{100 * one:g}" for one in _MARKS])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("ms", color=_SOFT)
    axes.legend(frameon=False, fontsize=9, labelcolor=_INK)
    _plain(axes)
    title, detail = titles(lines)
    figure.text(0.09, 0.93, title, fontsize=13, fontweight="bold", color=_INK)
    figure.text(0.09, 0.88, detail, fontsize=8.5, color=_SOFT)
    if path.suffix.lower() == ".html":
        path.write_text(_page(figure, title), "utf-8")
    else:
        figure.savefig(path)


def titles(lines: Sequence[Line]) -> tuple[str, str]:
    """Return what is drawn, and under which conditions."""
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


def _plain(axes: Any) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.tick_params(colors=_SOFT, length=0)
    axes.tick_params(which="minor", length=0)
    axes.grid(color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
