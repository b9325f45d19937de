"""What `make bench` makes of its lines: medians, ratios by rate, and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import comparison, plot
from benchmarks.run import main
from connectors.bench.figures import Line, per_checkpoint

OURS, THEIRS = "sparkonce continuous", "Kafka Streams"
CURVE = [1.0] * len(plot.SHARES)


def latency(system: str, rate: int, p50: float) -> Line:
    figures = {"p50_ms": p50, "p95_ms": 2 * p50, "p99_ms": 4 * p50, "curve_ms": CURVE}
    return {"what": "latency", "system": system, "rate": rate, **figures}


ROUNDS = [
    *(latency(OURS, 1000, ms) for ms in (30.0, 10.0, 20.0)),
    *(latency(THEIRS, 1000, ms) for ms in (10.0, 10.0, 40.0)),
    *(latency(OURS, 50_000, ms) for ms in (8.0, 8.0, 8.0)),
    *(latency(THEIRS, 50_000, ms) for ms in (16.0, 16.0, 16.0)),
    {"what": "throughput", "system": OURS, "records_per_s_total": 900},
    {"what": "throughput", "system": THEIRS, "records_per_s_total": 300},
]


def test_ratios_are_of_the_medians_at_one_rate():
    found = comparison.ratios(ROUNDS, [OURS])
    assert [(one["what"], one.get("rate"), one.get("p50_ms")) for one in found] == [
        ("latency ratio", 1000, 2.0),
        ("latency ratio", 50_000, 0.5),
        ("throughput ratio", None, None),
    ]
    assert found[-1]["records_per_s_total"] == 3.0


@pytest.mark.parametrize("rates", [{1000}, {1000, 50_000}, set()])
def test_a_picture_shows_several_rates_as_a_curve(tmp_path: Path, rates: set[int]):
    lines = [one for one in ROUNDS if one.get("rate", 1000) in rates or "rate" not in one]
    plot.draw(lines, tmp_path / "drawn.png")
    size = int.from_bytes((tmp_path / "drawn.png").read_bytes()[20:24], "big")
    plot.draw(ROUNDS[-2:], tmp_path / "low.png")
    low = int.from_bytes((tmp_path / "low.png").read_bytes()[20:24], "big")
    assert (size > low) == (len(rates) > 1)


def test_the_cpu_time_of_a_checkpoint_follows_from_that_of_a_record():
    assert per_checkpoint({"broker": 40.0}, 2000, 50.0) == {"broker": 1.6}
    assert per_checkpoint(None, 2000, 50.0) is None
    assert per_checkpoint({"broker": 40.0}, 2000, None) is None


@pytest.mark.parametrize("rate", ["0", "fast", "1000,", "1000,-5"])
def test_a_rate_that_is_none_is_refused(rate: str):
    said = CliRunner().invoke(main, ["--rate", rate])
    assert said.exit_code == 2
    assert f"not records a second: {rate}" in said.output
