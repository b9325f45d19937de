"""`sparkonce kafka` as a person types it: processes, exit codes, and what is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from connectors.cluster.broker_settings import choose_addresses
from tests.integration.job_process import PATIENCE_S
from tests.tiers import long, sampled
from tests.waiting import until

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def kafka(environment: dict[str, str]) -> Iterator[Command]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "connectors.cli.main", "kafka", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment,
            check=False,
        )

    yield run
    run("down")


def free_port() -> int:
    return choose_addresses(1, None)[0].port


def partitions_of(bootstrap: str) -> dict[str, int]:
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if name[0] != "_"}


def processes_that_name(folder: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in part for part in process.info["cmdline"] or ())
    ]


@pytest.mark.long
def test_up_status_down_with_three_brokers(kafka: Command, tmp_path: Path) -> None:
    assert kafka("status").returncode == 1
    port = free_port()

    up = kafka("up", "--brokers", "3", "--port", str(port), "--topic", "said:2", "--topic", "heard")
    assert up.returncode == 0, up.stderr
    bootstrap = up.stdout.removeprefix("Kafka is up: ").strip()
    assert bootstrap.startswith(f"127.0.0.1:{port},")
    brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).brokers
    assert len(brokers) == 3
    assert partitions_of(bootstrap) == {"said": 2, "heard": 1}

    again = kafka("up", "--port", str(port), "--topic", "said:5", "--topic", "late:3")
    assert again.returncode == 0
    assert again.stdout == f"Kafka runs already: {bootstrap}\n"
    assert "topic said: was there already" in again.stderr
    assert partitions_of(bootstrap) == {"said": 2, "heard": 1, "late": 3}

    refused = kafka("up", "--topic", "no topic")
    assert refused.returncode == 2
    assert "The topic 'no topic' could not be made." in refused.stderr
    assert kafka("up", "--topic", "said:none").returncode == 2

    status = kafka("status")
    assert status.returncode == 0
    assert status.stdout.count("serving") == 3
    assert str(port) in status.stdout

    down = kafka("down")
    assert (down.returncode, down.stdout) == (0, f"Kafka is down: {bootstrap}\n")
    assert processes_that_name(tmp_path) == []
    assert kafka("down").returncode == 0
    assert kafka("status").returncode == 1


@long
def test_status_tells_a_broker_that_was_killed(kafka: Command, tmp_path: Path) -> None:
    assert kafka("up", "--port", str(free_port())).returncode == 0
    for pid in processes_that_name(tmp_path):
        os.kill(pid, signal.SIGKILL)
    until(lambda: kafka("status").returncode != 0)
    assert kafka("down").stdout == "no Kafka runs\n"


@pytest.mark.parametrize("number", sampled([signal.SIGINT, signal.SIGKILL], signal.SIGKILL))
def test_interrupted_while_it_starts_nothing_is_left(
    environment: dict[str, str], kafka: Command, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "connectors.cli.main", "kafka", "up"]
    command += ["--port", str(free_port())]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as up:
        until(lambda: processes_that_name(tmp_path), pause_s=0.02)
        up.send_signal(number)
        assert up.wait(30) != 0
    until(lambda: not processes_that_name(tmp_path), pause_s=0.1)
    assert kafka("status").returncode == 1


@long
def test_a_taken_port_is_wrong_configuration(kafka: Command) -> None:
    port = free_port()
    assert kafka("up", "--port", str(port)).returncode == 0
    other = subprocess.run(
        [sys.executable, "-c", TAKEN, str(port)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert other.returncode == 2
    assert f"port {port} of 127.0.0.1 is taken" in other.stderr
    assert f"look at: port={port}" in other.stderr
    assert "Traceback" not in other.stderr


TAKEN = """
import os, sys, tempfile
with tempfile.TemporaryDirectory() as state:
    os.environ["XDG_STATE_HOME"] = state
    sys.argv = ["sparkonce", "kafka", "up", "--port", sys.argv[1]]
    from connectors.cli.main import main
    main()
"""
