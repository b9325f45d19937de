"""Figures from measurements: percentiles, phases, rates. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

Line = dict[str, Any]

#: The steps of a checkpoint, in their order; see `CheckpointReport.phase_ms`.
PHASES: Final = ("start", "write", "check", "decide", "commit", "finish")
#: Points at which the curve of a distribution is drawn.
SHARES: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)

#: Below this share of the wanted rate the producer did not keep the rate.
_LEAST_SHARE: Final = 0.98
#: A job that is slower than the rate falls behind, so its latency grows all the time. Growth below
#: these two limits is noise.
_GROWTH_MS: Final = 500.0
_GROWTH_PER_S_MS: Final = 50.0

Values = Sequence[float] | np.ndarray[Any, Any]


def percentiles(values: Values) -> dict[str, float]:
    """Return p50, p95, p99 and the maximum; an empty dict for no values."""
    if len(values) == 0:
        return {}
    p50, p95, p99, most = np.percentile(np.asarray(values, dtype=float), [50, 95, 99, 100])
    named = {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "max_ms": most}
    return {name: round(float(value), 1) for name, value in named.items()}


def curve(values: Values) -> dict[str, list[float]]:
    """Return the values at `SHARES`, for the picture."""
    if len(values) == 0:
        return {}
    return {"curve_ms": [round(float(one), 2) for one in np.quantile(values, SHARES)]}


def batch_start_ns(progress: Mapping[str, Any]) -> int:
    """Return when a batch began, from Spark's progress."""
    moment = dt.datetime.fromisoformat(progress["timestamp"])
    return int(moment.timestamp() * 1e3) * 1_000_000


def batches_of(report: Mapping[str, Any], since_ns: int = 0) -> list[Line]:
    """Return the batches with records that began after a moment."""
    rows = [one for one in report["progress"] if one["numInputRows"] > 0]
    return [one for one in rows if batch_start_ns(one) >= since_ns]


def begun_ns(report: Mapping[str, Any]) -> int | None:
    """Return when a job had its first record; None if the job did not report it."""
    first: int = report["first_record_ns"]
    batches = batches_of(report)
    if first or not batches:
        return first or None
    return batch_start_ns(batches[0])


def spark_phases(batches: Iterable[Line]) -> dict[str, dict[str, float]]:
    """Return p50, p95, p99 and maximum of each of Spark's own phases (durationMs)."""
    rows: dict[str, list[float]] = {}
    for one in batches:
        for name, value in one["durationMs"].items():
            rows.setdefault(name, []).append(value)
    return {name: _of_phase(values) for name, values in sorted(rows.items())}


def checkpoints_of(report: Mapping[str, Any], since_ns: int = 0) -> list[Line]:
    """Return our checkpoints with records that ended after a moment."""
    return [one for one in report["phases"] if one["end_ns"] >= since_ns and one["records"]]


def commit_phases(rows: Sequence[Line]) -> dict[str, dict[str, float]]:
    """Return p50, p95, p99 and maximum of the phases of these checkpoints."""
    found = {name: [row[name] for row in rows if name in row] for name in PHASES}
    return {name: _of_phase(values) for name, values in found.items() if values}


def commit_ms(row: Line) -> float:
    """Return a checkpoint's commit latency; see `CheckpointReport.commit_ms`."""
    return _sum_ms(row, ("check", "decide", "commit"))


def total_ms(row: Line) -> float:
    """Return the time of a checkpoint: all its phases."""
    return _sum_ms(row, PHASES)


def per_second(rows: Sequence[Line]) -> float | None:
    """Return the checkpoints per second; None for fewer than two checkpoints."""
    if len(rows) < 2 or rows[-1]["end_ns"] <= rows[0]["end_ns"]:
        return None
    seconds = float(rows[-1]["end_ns"] - rows[0]["end_ns"]) / 1e9
    return round((len(rows) - 1) / seconds, 2)


def per_checkpoint(
    us_per_record: Mapping[str, float] | None, rate: int, checkpoints_per_s: float | None
) -> dict[str, float] | None:
    """Return milliseconds of CPU per checkpoint by role, from microseconds per record; None where
    one of the two is not known.
    """
    if us_per_record is None or not checkpoints_per_s:
        return None
    records = rate / checkpoints_per_s
    return {role: round(us * records / 1e3, 2) for role, us in us_per_record.items()}


def records_between(rows: Sequence[Line]) -> int | None:
    """Return the records per second from the end of the second checkpoint to the end of the last
    but one: whole intervals only. The last records can wait up to a whole interval for a checkpoint
    that is not full: a fifth of a short run (seen). None for fewer than four checkpoints.
    """
    whole = rows[1:-1]
    if len(whole) < 2:
        return None
    seconds = float(whole[-1]["end_ns"] - whole[0]["end_ns"]) / 1e9
    return round(sum(int(row["records"]) for row in whole[1:]) / seconds)


def growth_ms(values_ms: Values) -> float:
    """Return by how much the last quarter's median is above the first quarter's."""
    quarter = len(values_ms) // 4
    if quarter == 0:
        return 0.0
    first, last = np.median(values_ms[:quarter]), np.median(values_ms[-quarter:])
    return round(float(last - first), 1)


def rate_held(rate: float, produced_per_s: float, growth: float, seconds: float) -> bool:
    """Return whether producer and job kept the rate.

    Args:
        rate: the wanted rate, records per second.
        produced_per_s: the rate of the producer.
        growth: see `growth_ms`.
        seconds: the measured time; the two medians are three quarters of it apart.
    """
    falls_behind = growth > max(_GROWTH_MS, _GROWTH_PER_S_MS * 0.75 * seconds)
    return produced_per_s >= _LEAST_SHARE * rate and not falls_behind


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return by how much y grows with x, by least squares; None when x does not change."""
    if len({x for x, _ in points}) < 2:
        return None
    xs, ys = zip(*points, strict=True)
    grows = float(np.polyfit(xs, ys, 1)[0])
    return round(grows, 3) + 0.0  # never -0.0


def _sum_ms(row: Line, phases: Sequence[str]) -> float:
    return float(sum(row.get(name, 0.0) for name in phases))


def _of_phase(values: Sequence[float]) -> dict[str, float]:
    found = np.percentile(values, [50, 95, 99, 100])
    names = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
    return {name: round(float(value), 2) for name, value in zip(names, found, strict=True)}
