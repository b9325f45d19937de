"""Ours beside theirs: ratios, and the table for people."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from connectors.bench.figures import Line

#: Figures that are compared, and whether more is better.
_COMPARED = {
    "records_per_s_total": True,
    "records_per_s_steady": True,
    "p50_ms": False,
    "p95_ms": False,
    "p99_ms": False,
}


def ratios(lines: Sequence[Line], ours: Sequence[str]) -> list[Line]:
    """Return ours/theirs of the medians over the rounds: a line per measurement, mode and peer."""
    out: list[Line] = []
    peers = [name for name in dict.fromkeys(one["system"] for one in lines) if name not in ours]
    for what in dict.fromkeys(line["what"] for line in lines):
        for mine, theirs in itertools.product(ours, peers):
            figures: dict[str, float] = {}
            for name in _COMPARED:
                both = [
                    _median([r for r in lines if r["what"] == what and r["system"] == who], name)
                    for who in (mine, theirs)
                ]
                if both[0] is not None and both[1]:
                    figures[name] = round(both[0] / both[1], 3)
            if figures:
                out.append({"what": f"{what} ratio", "ours": mine, "theirs": theirs, **figures})
    return out


def _median(lines: Sequence[Line], name: str) -> float | None:
    values = [line[name] for line in lines if line.get(name) is not None]
    return float(np.median(values)) if values else None


def show(lines: Sequence[Line], compared: Sequence[Line]) -> None:
    """Print the table for people on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = 160
    table = Table("measurement", "system", *_COMPARED, "lost", "dup", "error")
    for line in lines:
        if line["what"] in {"throughput", "latency"}:
            cells = [_cell(line.get(name)) for name in (*_COMPARED, "lost", "dup")]
            table.add_row(line["what"], line["system"], *cells, line.get("error", "")[:60])
    for line in compared:
        cells = [_ratio_cell(line.get(name), more) for name, more in _COMPARED.items()]
        table.add_row(line["what"], f"{line['ours']} / {line['theirs']}", *cells, "", "", "")
    console.print(table)


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 or isinstance(value, int) else f"{value:.1f}"


def _ratio_cell(value: float | None, more_is_better: bool) -> str:
    if value is None:
        return ""
    good = value >= 1 if more_is_better else value <= 1
    return f"[{'green' if good else 'red'}]{value:.2f}[/]"
