"""`sparkonce bench` on a real broker: its lines, its picture, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from connectors.testing.brokers import running_broker
from tests.integration.job_process import PATIENCE_S
from tests.tiers import long

BENCH = [sys.executable, "-m", "connectors.cli.main", "bench"]
PREFIX = "sparkonce-bench-"
PHASES = {"start", "write", "check", "decide", "commit", "finish"}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker of these tests alone: what the command leaves on it must be nobody else's."""
    with running_broker() as broker:
        yield broker.bootstrap_servers


def left_on(bootstrap: str) -> set[str]:
    """Topics and groups that only this command makes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = admin.list_topics(timeout=10).topics
    groups = admin.list_consumer_groups(request_timeout=10).result().valid
    names = {*topics, *(group.group_id for group in groups)}
    return {name for name in names if name.startswith(PREFIX)}


def environment(tmp_path: Path) -> dict[str, str]:
    """A folder for temporary files that is this test's own: what is left in it was left behind."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return {**os.environ, "TMPDIR": str(scratch)}


def folders_left(tmp_path: Path) -> list[str]:
    return [one.name for one in (tmp_path / "scratch").glob(f"{PREFIX}*")]


def ended(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with the temporary files of `environment`."""
    return subprocess.run(
        [*BENCH, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=environment(tmp_path),
    )


@pytest.mark.long
def test_commit_in_continuous_mode_with_a_picture_and_a_line(bootstrap: str, tmp_path: Path):
    picture = tmp_path / "commit.svg"
    run = ended(
        tmp_path,
        *("commit", "--bootstrap", bootstrap, "--mode", "continuous"),
        *("--seconds", "3", "--warmup", "1", "--barrier-interval", "0.05"),
        *("--json", "-", "--plot", str(picture)),
    )

    assert run.returncode == 0, run.stderr + run.stdout
    (line,) = map(json.loads, run.stdout.splitlines())
    judge(line)
    assert set(line["phase_ms"]) == PHASES
    assert all(ms["p50_ms"] <= ms["p95_ms"] <= ms["p99_ms"] for ms in line["phase_ms"].values())
    assert 0 < line["commit_ms"]["p50_ms"] <= line["commit_ms"]["max_ms"]
    # A barrier each 50 ms for 3 s: fewer on a busy machine, never more.
    assert 5 <= line["checkpoints"] <= 61
    assert line["subtasks"] == line["partitions"] == 2
    assert "in all" in run.stderr
    assert "measuring" in run.stderr
    assert picture.read_text("utf-8").rstrip().endswith("</svg>")
    assert left_on(bootstrap) == set()
    assert folders_left(tmp_path) == []


@pytest.mark.long
def test_the_slowest_checkpoints_beside_the_pauses_of_the_broker(tmp_path: Path):
    run = ended(
        tmp_path,
        *("latency", "--mode", "continuous", "--slowest", "4", "--json", "-"),
        *("--rate", "400", "--seconds", "3", "--warmup", "1"),
    )

    assert run.returncode == 0, run.stderr + run.stdout
    line, phases = map(json.loads, run.stdout.splitlines())
    judge(line)
    slow = phases["slowest"]
    totals = [one["total_ms"] for one in slow]
    assert len(slow) == 4
    assert totals == sorted(totals, reverse=True)
    assert all(0 <= one["broker_pause_ms"] <= one["total_ms"] for one in slow)
    assert all(one["total_ms"] >= one["write"] + one["commit"] for one in slow)
    # A young JVM replaces code all the time: it stands still for some of these three seconds.
    assert 0 < phases["broker_paused_share"] < 1
    assert "broker pause" in run.stderr
    assert folders_left(tmp_path) == []


def judge(line: dict[str, Any]) -> None:
    """Every id was looked for and found once."""
    assert {name: line[name] for name in ("lost", "dup", "foreign", "untransformed")} == {
        "lost": 0,
        "dup": 0,
        "foreign": 0,
        "untransformed": 0,
    }
    assert line["measured"] == 1200
    assert "error" not in line


@pytest.mark.long
def test_an_interrupted_run_leaves_nothing_behind(bootstrap: str, tmp_path: Path):
    bench = subprocess.Popen(
        [
            *(*BENCH, "latency", "--bootstrap", bootstrap, "--mode", "continuous"),
            *("--seconds", "100", "--warmup", "0", "--rate", "200"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    assert bench.stderr is not None
    while "measuring" not in (said := bench.stderr.readline()):
        assert said, "the benchmark ended too early"
    started = psutil.Process(bench.pid).children(recursive=True)
    assert any(one.name() == "java" for one in started)
    assert len(left_on(bootstrap)) >= 2
    bench.send_signal(signal.SIGINT)
    bench.send_signal(signal.SIGTERM)  # an impatient user: removing goes on all the same
    _, errors = bench.communicate(timeout=PATIENCE_S)

    assert bench.returncode == 130, errors
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []
    assert left_on(bootstrap) == set()
    assert folders_left(tmp_path) == []


@long
def test_brokers_that_are_not_there_are_told_and_end_with_1(tmp_path: Path):
    run = ended(tmp_path, "latency", "--bootstrap", "127.0.0.1:1")

    assert run.returncode == 1, run.stderr
    assert "The benchmark's topic could not be made." in run.stderr
    assert "look at: --bootstrap=127.0.0.1:1" in run.stderr
    assert folders_left(tmp_path) == []


def test_more_replicas_than_brokers_end_with_2(bootstrap: str, tmp_path: Path):
    run = ended(tmp_path, "throughput", "--bootstrap", bootstrap, "--replication-factor", "9")

    assert run.returncode == 2, run.stderr
    assert "look at: --replication-factor=9" in run.stderr
    assert left_on(bootstrap) == set()
