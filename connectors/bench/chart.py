"""Common parts of this project's charts; they need matplotlib, which an extra installs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from transactions.errors import ConfigurationError

INK: Final = "#1f2933"
SOFT: Final = "#7b8794"
GRID: Final = "#e4e7eb"
_MARKS: Final = (0.5, 0.9, 0.99, 0.999)


def check_installed(what: str, where: str = "") -> None:
    """Check before the run that a chart can be drawn.

    Args:
        what: the chart, for the error.
        where: the option that asks for the chart.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigurationError(
            what,
            where=where,
            cause="the project was installed without its extra `demo`",
            option="pip install '.[demo]' in a clone of sparkonce",
        ) from error


def make_plain(axes: Any, *, grid: str) -> None:
    """Keep only the bottom line of the axes, and draw a grid ("x", "y" or "both") behind all."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(colors=SOFT, length=0)
    axes.grid(axis=grid, color=GRID, lw=0.8)
    axes.set_axisbelow(True)


def make_distribution(axes: Any, shares: Sequence[float]) -> list[float]:
    """Scale axes like HdrHistogram's latency plots, which give most room to the tail.

    Returns:
        For each share of the records, its place on the x axis.
    """
    axes.set_yscale("log")
    axes.set_xticks([-np.log10(1 - one) for one in _MARKS], [f"p{100 * one:g}" for one in _MARKS])
    return [-np.log10(1 - share) for share in shares]
