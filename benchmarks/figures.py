"""Figures from measurements: percentiles, phases, ratios, and the table for people."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

Line = dict[str, Any]

_PHASES = ("start", "write", "check", "decide", "commit", "finish")
#: Figures that are compared, and whether more is better.
_COMPARED = {
    "records_per_s_total": True,
    "records_per_s_steady": True,
    "p50_ms": False,
    "p95_ms": False,
    "p99_ms": False,
}


#: Where the curve of a distribution is drawn.
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


def percentiles(values: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """Return p50, p95, p99 and the maximum; nothing for no values."""
    if len(values) == 0:
        return {}
    p50, p95, p99, most = np.percentile(np.asarray(values, dtype=float), [50, 95, 99, 100])
    named = {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "max_ms": most}
    return {name: round(float(value), 1) for name, value in named.items()}


def curve(values: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    """Return the values at `SHARES`, for the picture."""
    if len(values) == 0:
        return {}
    return {"curve_ms": [round(float(one), 2) for one in np.quantile(values, SHARES)]}


def batch_start_ns(progress: Line) -> int:
    """Return when a batch began, as Spark's progress says it."""
    moment = dt.datetime.fromisoformat(progress["timestamp"])
    return int(moment.timestamp() * 1e3) * 1_000_000


def batches_of(report: Line, since_ns: int = 0) -> list[Line]:
    """Return the batches with records that began after a moment."""
    rows = [one for one in report["progress"] if one["numInputRows"] > 0]
    return [one for one in rows if batch_start_ns(one) >= since_ns]


def spark_phases(batches: Iterable[Line]) -> dict[str, dict[str, float]]:
    """Return p50 and p99 of each of Spark's own phases (durationMs)."""
    rows: dict[str, list[float]] = {}
    for one in batches:
        for name, value in one["durationMs"].items():
            rows.setdefault(name, []).append(value)
    return {name: _p50_p99(values) for name, values in sorted(rows.items())}


def commit_phases(report: Line, since_ns: int = 0) -> dict[str, dict[str, float]]:
    """Return p50 and p99 of the phases of our checkpoints that ended after a moment."""
    rows = [one for one in report["phases"] if one["end_ns"] >= since_ns and one["records"]]
    return {n: _p50_p99([row[n] for row in rows if n in row]) for n in _PHASES if rows}


def _p50_p99(values: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}


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
