"""The benchmark runs, and its lines can be read by a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.job_process import PATIENCE_S

ROOT = Path(__file__).parents[2]
SYSTEMS = ("sparkonce micro-batch", "sparkonce continuous")
PEER = "hand-written loop, 100 ms"
OPTIONS = ["--records", "20000", "--batch-records", "10000", "--seconds", "3", "--warmup", "2"]
#: Each test starts a Spark for each job that it measures.
TIMEOUT_S = 600
#: Shorter, so that a run that hangs is told with its output.
MEASURED_WITHIN_S = TIMEOUT_S - 30


def measured(*options: str) -> list[dict[str, Any]]:
    """Run `benchmarks.run` and return its lines."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", *OPTIONS, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=MEASURED_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return list(map(json.loads, done.stdout.splitlines()))


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
def test_lines_of_a_small_run():
    every = measured("--rate", "2000", "--peers", "loop-100")
    of_system: dict[str, dict[str, Any]] = {system: {} for system in (*SYSTEMS, PEER)}
    for line in every:
        if "system" in line:
            of_system[line["system"]][line["what"]] = line
    for system, lines in of_system.items():
        judge(lines)
        if system == PEER:
            assert set(lines) == {"throughput", "latency"}
            assert lines["throughput"]["commits"] > 0
            continue
        assert set(lines) == {"throughput", "throughput phases", "latency", "latency phases"}
        assert set(lines["latency phases"]["phase_ms"]) == {
            "start", "write", "check", "decide", "commit", "finish"
        }  # fmt: skip
    assert {one["theirs"] for one in every if "theirs" in one} == {PEER}
    # So small a continuous run may become visible at once.
    assert of_system[SYSTEMS[0]]["throughput"]["records_per_s_steady"] > 0


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
def test_latency_at_several_rates_beside_the_pauses_of_the_broker():
    options = ("--only", "latency", "--modes", "continuous", "--peers", "none")
    every = measured("--rate", "500,1000", *options)
    latencies = [one for one in every if one["what"] == "latency"]
    rates = [one["rate"] for one in latencies]
    assert rates == [500, 1000], "the run that warms the broker up does not count"
    for one in latencies:
        assert one["cpu_us_per_record"]["broker"] > 0
        assert one["cpu_ms_per_checkpoint"]["tasks"] > 0
    paused = [one for one in every if one["what"] == "latency phases"]
    assert [one["rate"] for one in paused] == rates
    assert all(one["slowest"] and 0 <= one["broker_paused_share"] < 1 for one in paused)


def judge(lines: dict[str, dict[str, Any]]) -> None:
    """Nothing lost, nothing twice, and figures that can be."""
    for name in ("throughput", "latency"):
        line = lines[name]
        assert {key: line[key] for key in ("lost", "dup", "foreign", "untransformed")} == {
            "lost": 0,
            "dup": 0,
            "foreign": 0,
            "untransformed": 0,
        }
    assert lines["throughput"]["records_per_s_total"] > 0
    assert 0 < lines["latency"]["p50_ms"] <= lines["latency"]["p99_ms"]
    assert lines["latency"]["measured"] == 6000
    assert lines["latency"]["curve_ms"] == sorted(lines["latency"]["curve_ms"])


@pytest.mark.long
def test_recovery_after_a_sigkill_of_the_driver():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.recovery", "--rounds=1", "--settle=2", "--no-peer"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr + done.stdout
    (line,) = map(json.loads, done.stdout.splitlines())
    assert (line["lost"], line["dup"]) == (0, 0)
    assert 0 < line["first_new_s"] < 60
    assert sum(line["split_s"].values()) == pytest.approx(line["first_new_s"], abs=0.1)
    assert all(seconds > -0.01 for seconds in line["split_s"].values()), line
