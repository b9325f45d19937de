"""Ours beside theirs: ratios, and the table for people."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from connectors.bench.figures import Line
from connectors.bench.tables import slowest_checkpoints

#: Figures that are compared, and whether more is better.
_COMPARED = {
    "records_per_s_total": True,
    "records_per_s_steady": True,
    "p50_ms": False,
    "p95_ms": False,
    "p99_ms": False,
}

#: Whose CPU time is told; see `connectors.bench.cpu_watch`.
_ROLES = ("tasks", "driver", "jvm", "broker")


def ratios(lines: Sequence[Line], ours: Sequence[str]) -> list[Line]:
    """Return ours/theirs of the medians over the rounds: a line per measurement (of latency at one
    rate), mode and peer.
    """
    out: list[Line] = []
    peers = [name for name in dict.fromkeys(one["system"] for one in lines) if name not in ours]
    for what, rate in dict.fromkeys(map(_measured, lines)):
        for mine, theirs in itertools.product(ours, peers):
            figures: dict[str, float] = {}
            for name in _COMPARED:
                both = [
                    median(lines, name, what=what, system=who, rate=rate) for who in (mine, theirs)
                ]
                if both[0] is not None and both[1]:
                    figures[name] = round(both[0] / both[1], 3)
            if figures:
                at = {} if rate is None else {"rate": rate}
                out.append({"what": f"{what} ratio", "ours": mine, "theirs": theirs} | at | figures)
    return out


def _measured(line: Line) -> tuple[str, int | None]:
    return line["what"], line.get("rate")


def median(
    lines: Sequence[Line], name: str, *, what: str, system: str, rate: int | None
) -> float | None:
    """Return the median of a figure over the rounds of one measurement; None if no line has it."""
    values = [
        line[name]
        for line in lines
        if _measured(line) == (what, rate)
        and line["system"] == system
        and line.get(name) is not None
    ]
    return float(np.median(values)) if values else None


def show(lines: Sequence[Line], compared: Sequence[Line]) -> None:
    """Print the tables for people on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = 160
    table = Table("measurement", "rate", "system", *_COMPARED, "lost", "dup", "error")
    for line in lines:
        if line["what"] in {"throughput", "latency"}:
            cells = [_cell(line.get(name)) for name in (*_COMPARED, "lost", "dup")]
            error = line.get("error", "")[:60]
            table.add_row(line["what"], _cell(line.get("rate")), line["system"], *cells, error)
    for line in compared:
        cells = [_ratio_cell(line.get(name), more) for name, more in _COMPARED.items()]
        both = f"{line['ours']} / {line['theirs']}"
        table.add_row(line["what"], _cell(line.get("rate")), both, *cells, "", "", "")
    console.print(table)
    console.print(_cpu(lines))
    for line in lines:
        if line.get("slowest"):
            console.print(slowest_checkpoints(line))


def _cpu(lines: Sequence[Line]) -> Table:
    """Return the table of what a record and a checkpoint cost, by who works."""
    table = Table("measurement", "rate", "system", "CPU", *_ROLES, title="CPU time by process")
    for line in lines:
        for name, unit in (
            ("cpu_us_per_record", "us a record"),
            ("cpu_ms_per_checkpoint", "ms a checkpoint"),
        ):
            if costs := line.get(name):
                cells = [_cell(costs.get(role)) for role in _ROLES]
                at = _cell(line.get("rate"))
                table.add_row(line["what"], at, line["system"], unit, *cells)
    return table


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 or isinstance(value, int) else f"{value:.1f}"


def _ratio_cell(value: float | None, more_is_better: bool) -> str:
    if value is None:
        return ""
    good = value >= 1 if more_is_better else value <= 1
    return f"[{'green' if good else 'red'}]{value:.2f}[/]"
