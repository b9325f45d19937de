"""The pytest plugin as a user meets it: the example project, a good job, and a broken one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.driver_function import copy
from tests.pages import block
from tests.tiers import long

ROOT = Path(__file__).parents[2]
BROKEN_JOB = [sys.executable, "-m", "tests.integration.doubling_job"]
CONTINUOUS_JOB = """
[app]
id = "copy"
checkpoint = "state"
mode = "continuous"
master = "local[2]"
[source]
kafka.bootstrap.servers = "${BOOTSTRAP_SERVERS}"
subscribe = "${SOURCE}"
startingOffsets = "earliest"
[[sink]]
kafka.bootstrap.servers = "${BOOTSTRAP_SERVERS}"
topic = "${OUTPUT}"
"""


@pytest.mark.long
def test_the_example_project_passes_its_own_test():
    """In a pytest of its own: entry point, ini file, embedded broker, job file, two kills."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            "examples/flights_project",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:]
    assert "test_every_flight_comes_through_exactly_once PASSED" in run.stdout


@long
@pytest.mark.timeout(600)
def test_the_test_of_the_page_passes_in_a_project_of_its_own(tmp_path: Path):
    code = block("docs/testing.md", "def test_every_flight")
    assert code == block("docs/getting_started.md", "def test_every_flight")
    for name in ("job.toml", "flights_job.py", "pytest.ini"):
        shutil.copy(ROOT / "examples/flights_project" / name, tmp_path)
    (tmp_path / "test_flights.py").write_text(code)
    words = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        words, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=400, check=False
    )
    assert run.returncode == 0, run.stdout[-6000:]
    assert "test_every_flight_comes_through_exactly_once PASSED" in run.stdout


@long
def test_crashes_by_a_seed_then_until_a_reader_has_seen_all(sparkonce_topic, sparkonce_pipeline):
    source, output = sparkonce_topic("source", partitions=2), sparkonce_topic("output")
    source.produce((f"{n}", "x") for n in range(120))
    pipeline = sparkonce_pipeline(copy, source=source, output=output, most=40)
    (point,) = pipeline.crashes(seed=3, times=1)
    assert point in pipeline.crash_points
    pipeline.run_until(lambda seen: len(seen) == 120, topic=output)
    pipeline.audit(input=source, output=output, id="key").assert_exactly_once()
    assert pipeline.story[1].startswith(f"killed at {point}; exit ")
    assert pipeline.story[2] == "ran; exit 0"


@long
def test_a_job_file_in_continuous_mode_runs_to_its_end(
    sparkonce_topic, sparkonce_pipeline, tmp_path: Path
):
    """By itself in `run`; in `run_until` it goes on until it is stopped."""
    source, output = sparkonce_topic("source", partitions=2), sparkonce_topic("output")
    source.produce((f"{n}", "x") for n in range(100))
    (tmp_path / "job.toml").write_text(CONTINUOUS_JOB)
    pipeline = sparkonce_pipeline(tmp_path / "job.toml", SOURCE=source, OUTPUT=output)
    pipeline.kill_at("decision_durable")
    pipeline.run()
    pipeline.audit(input=source, output=output, id="key").assert_exactly_once()
    source.produce((f"{n}", "x") for n in range(100, 150))
    pipeline.run_until(lambda seen: len(seen) == 150, topic=output)
    pipeline.audit(input=source, output=output, id="key").assert_exactly_once()
    assert pipeline.story[1:] == ["ran; exit 0"] * 2


def test_a_job_that_doubles_and_loses_fails_with_both_ids(sparkonce_topic, sparkonce_pipeline):
    source, output = sparkonce_topic("source", partitions=2), sparkonce_topic("output")
    source.produce((f"flight {n}", "x") for n in range(50))
    pipeline = sparkonce_pipeline(
        BROKEN_JOB, SOURCE=source, OUTPUT=output, DOUBLE="flight 17", LOSE="flight 31"
    )
    pipeline.run()
    audit = pipeline.audit(input=source, output=output, id="key")
    assert (audit.lost, audit.duplicated) == ([b"flight 31"], [b"flight 17"])
    with pytest.raises(AssertionError) as failed:
        audit.assert_exactly_once()
    text = str(failed.value)
    assert "not exactly once: duplicate (1), lost" in text
    assert "duplicated: b'flight 17'" in text
    assert "lost:       b'flight 31'" in text
    assert "ran; exit 0" in text


@pytest.mark.long
def test_a_crash_point_that_is_not_reached_fails_the_test(sparkonce_topic, sparkonce_pipeline):
    """A crash test that did not crash proves nothing."""
    source, output = sparkonce_topic("source"), sparkonce_topic("output")
    source.produce(["x"])
    pipeline = sparkonce_pipeline(BROKEN_JOB, SOURCE=source, OUTPUT=output, DOUBLE="none")
    with pytest.raises(AssertionError, match="never came to 'decision_durable'"):
        pipeline.kill_at("decision_durable")
    with pytest.raises(ValueError, match="there is no crash point 'decision_durabel'"):
        pipeline.kill_at("decision_durabel")
