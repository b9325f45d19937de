"""Examples that no other test runs, as their users run them: on a broker, killed, and moved."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from connectors.demo.dataset import arrivals, load_flights
from tests.auditor.reader import Follower, read_committed
from tests.integration.job_process import PATIENCE_S, ROOT, running
from tests.integration.test_demo import produce
from tests.pages import block, commands, replaced
from tests.tiers import long
from transactions.clock import Deadline


def rewritten(name: str, folder: Path, changes: dict[str, str]) -> Path:
    """Copy an example into a folder, with names of this test in the place of its own."""
    text = (ROOT / "examples" / name).read_text("utf-8")
    for written, real in changes.items():
        assert text.count(written) == 1, written
        text = text.replace(written, real)
    path = folder / Path(name).name
    path.write_text(text, "utf-8")
    return path


@contextlib.contextmanager
def started(
    words: list[str], folder: Path, output: str = "out", **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in a process group of its own, and end what is left of it, JVM and all."""
    with (folder / output).open("ab") as out, (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            words,
            cwd=folder,
            stdout=out,
            stderr=log,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


# --- stdout.py ------------------------------------------------------------------------------------


@long
def test_stdout_has_each_flight_when_its_checkpoint_is_decided(
    bootstrap: str, topic: Callable[..., str], application_id: str, tmp_path: Path
):
    source = topic(partitions=2, name="flights")
    changes = {
        'subscribe="flights"': f'subscribe="{source}"',
        'app_id="flights-stdout"': f'app_id="{application_id}"',
    }
    words = [sys.executable, str(rewritten("stdout.py", tmp_path, changes))]

    def printed() -> list[int]:
        lines = (tmp_path / "out").read_bytes().splitlines()
        return [orjson.loads(orjson.loads(line)["flight"])["flight_id"] for line in lines]

    def run(crash_at: str) -> list[int]:
        """Run it until it is killed there, and return what it and all before it have printed."""
        with started(words, tmp_path, KAFKA=bootstrap, SPARKONCE_CRASH_AT=crash_at) as job:
            assert job.wait(PATIENCE_S) == -signal.SIGKILL, (tmp_path / "log").read_text()
        return printed()

    produce(bootstrap, source, load_flights(200))
    assert run("prepared_checked") == [], "all tasks have written; it is not decided"
    assert run("decision_durable") == [], "decided; it is not sent"
    # The next run sends what was decided; then Spark runs the same checkpoint again, and it dies
    # in the next one, which has the same flights under another number.
    produce(bootstrap, source, load_flights(200))
    everything = list(range(200))
    assert sorted(run("all_committed")) == sorted(everything * 2)
    # The mark of the second is set, and Spark does not know that it is done.
    with started(words, tmp_path, KAFKA=bootstrap) as job:
        produce(bootstrap, source, load_flights(1))
        deadline = Deadline(PATIENCE_S)
        while len(printed()) < 401:
            assert job.poll() is None, (tmp_path / "log").read_text()
            assert not deadline.expired(), len(printed())
            deadline.pause(0.3)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 0, (tmp_path / "log").read_text()
    assert printed()[400:] == [0]
    assert sorted(printed()[:200]) == sorted(printed()[200:400]) == everything, "in their order"


# --- own_sink -------------------------------------------------------------------------------------


@long
@pytest.mark.parametrize(
    ("mode", "in_a_task"),
    [("continuous", "acknowledged"), ("micro-batch", "")],
)
def test_a_sink_of_ones_own_under_a_driver_that_is_killed(
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    mode: str,
    in_a_task: str,
):
    """Between the phases, and in the middle of the commit; the files have every record once."""
    said = topic(partitions=2, name="said")
    shutil.copy(ROOT / "examples/own_sink/folder_sink.py", tmp_path)
    changes = {'app_id=f"said-{MODE}"': f'app_id="{application_id}"'}
    words = [sys.executable, str(rewritten("own_sink/pipeline.py", tmp_path, changes)), mode]
    kafka = {"KAFKA": bootstrap, "TOPIC": said}
    folder = tmp_path / ("said" if mode == "continuous" else "said-micro-batch")
    expected: list[bytes] = []

    def produce_more() -> None:
        more = [b"%05d" % (len(expected) + number) for number in range(50)]
        producer = Producer({"bootstrap.servers": bootstrap})
        for word in more:
            producer.produce(said, word)
        assert producer.flush(30) == 0
        expected.extend(more)

    def visible() -> list[bytes]:
        files = sorted((folder / "data").glob("*"))
        return [line for file in files for line in file.read_bytes().splitlines()]

    for crash_at in filter(None, (in_a_task, "prepared_checked", "decision_durable")):
        produce_more()
        once = {"SPARKONCE_CRASH_AT": crash_at, "SPARKONCE_CRASH_ONCE": str(tmp_path / crash_at)}
        with started(words, tmp_path, **kafka, **once) as job:
            deadline = Deadline(PATIENCE_S)
            while not (tmp_path / crash_at).exists():
                assert job.poll() is None, (tmp_path / "log").read_text()
                assert not deadline.expired()
                deadline.pause(0.1)
            if crash_at != in_a_task:
                assert job.wait(60) == -signal.SIGKILL
        assert set(visible()) <= set(expected)
    with started(words, tmp_path, **kafka) as job:
        produce_more()
        deadline = Deadline(PATIENCE_S)
        while len(visible()) < len(expected):
            assert job.poll() is None, (tmp_path / "log").read_text()
            assert not deadline.expired(), len(visible())
            deadline.pause(0.3)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 0, (tmp_path / "log").read_text()
    assert sorted(visible()) == expected
    assert list((folder / "staged").iterdir()) == []


# --- guarantees.toml ------------------------------------------------------------------------------


def clicks(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, b"click %d" % number, partition=number % 2)
    assert producer.flush(30) == 0


def counted(bootstrap: str, topic: str) -> Counter[bytes | None]:
    return Counter(record.value for record in read_committed(bootstrap, topic))


@pytest.mark.long
def test_each_guarantee_after_a_dead_driver_and_a_dead_worker(
    bootstrap: str, topic: Callable[..., str], application_id: str, tmp_path: Path
):
    names = ("clicks", "clicks-exactly", "clicks-at-least", "clicks-fast")
    source, exactly, at_least, fast = (topic(2, name) for name in names)
    changes = {
        'id = "guarantees"': f'id = "{application_id}"',
        'trigger = "1 second"': 'trigger = "1 second"\nmaster = "local[2]"',
        'subscribe = "clicks"': f'subscribe = "{source}"',
        'topic = "clicks-exactly"': f'topic = "{exactly}"',
        'topic = "clicks-at-least"': f'topic = "{at_least}"',
        'topic = "clicks-fast"': f'topic = "{fast}"',
    }
    job = rewritten("guarantees.toml", tmp_path, changes)
    clicks(bootstrap, source, range(40))
    once = tmp_path / "a worker died"
    with Follower(bootstrap, exactly) as reader:
        # The driver dies when all is flushed and prepared, and nothing is decided.
        with running(job, BROKERS=bootstrap, SPARKONCE_CRASH_AT="prepared_checked@0") as process:
            assert process.wait() == -signal.SIGKILL, process.text
        assert reader.records == []
        assert counted(bootstrap, at_least) == counted(bootstrap, source)

        # A worker dies in the second checkpoint: the same process goes on, by its strategy.
        crash = {"SPARKONCE_CRASH_AT": "offsets_sent@1", "SPARKONCE_CRASH_ONCE": str(once)}
        with running(job, BROKERS=bootstrap, **crash) as process:
            reader.until(lambda seen: len(seen) == 40, timeout=PATIENCE_S)
            clicks(bootstrap, source, range(40, 80))
            reader.until(lambda seen: len(seen) == 80, timeout=PATIENCE_S)
            assert process.terminate() == 0, process.text
    assert once.exists()
    assert ": restart 1 in 0.0 s (failure-rate(max_failures=3, " in process.text

    inputs = counted(bootstrap, source)
    assert len(inputs) == 80
    assert counted(bootstrap, exactly) == inputs
    repeated = counted(bootstrap, at_least)
    assert set(repeated) == set(inputs)
    assert {repeated[b"click %d" % number] for number in range(40)} == {2}
    assert set(counted(bootstrap, fast)) <= set(inputs)


# --- flights.toml, and its move -------------------------------------------------------------------


def shell_of_the_page(folder: Path, bootstrap: str) -> list[str]:
    """Return the commands that examples/README.md shows for a move, as words for a process that
    becomes the last of them.
    """
    code = block("examples/README.md", "--from-savepoint")
    *first, last = commands(replaced(code, {"localhost:9092": bootstrap}))
    command = folder / "sparkonce"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m connectors.cli.main "$@"\n')
    command.chmod(0o755)
    lines = [f'export PATH="{folder}:$PATH"', *first, f"exec {last}"]
    return ["bash", "-euc", "\n".join(lines)]


@pytest.mark.long
def test_a_pipeline_of_a_file_moves_with_its_state_by_the_commands_of_the_page(
    bootstrap: str, topic: Callable[..., str], application_id: str, tmp_path: Path
):
    names = ("flights", "flights-clean", "flights-per-airport")
    source, clean, per_airport = (topic(2, name) for name in names)
    changes = {
        'id = "flights"': f'id = "{application_id}"',
        'trigger = "1 second"': 'trigger = "1 second"\nmaster = "local[2]"',
        'subscribe = "flights"': f'subscribe = "{source}"',
        'topic = "flights-clean"': f'topic = "{clean}"',
        'topic = "flights-per-airport"': f'topic = "{per_airport}"',
    }
    (tmp_path / "examples").mkdir()
    job = rewritten("flights.toml", tmp_path / "examples", changes)
    flights: pa.Table = load_flights(600)
    with Follower(bootstrap, clean) as reader:
        produce(bootstrap, source, flights.slice(0, 400))
        with running(job, BROKERS=bootstrap) as old:
            reader.until(lambda seen: len(seen) == 400, timeout=PATIENCE_S)
            with started(shell_of_the_page(tmp_path, bootstrap), tmp_path) as new:
                assert old.wait() == 0, old.text  # --stop ends it
                produce(bootstrap, source, flights.slice(400))
                reader.until(
                    lambda seen: len(seen) == 600 or new.poll() is not None, timeout=PATIENCE_S
                )
                assert new.poll() is None, (tmp_path / "log").read_text()
                new.send_signal(signal.SIGTERM)
                assert new.wait(60) == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "examples/moved/decisions").is_dir()

    seen = read_committed(bootstrap, clean)
    assert sorted(int(record.key) for record in seen) == list(range(600))
    latest = [orjson.loads(record.value) for record in read_committed(bootstrap, per_airport)]
    assert {one["dest"]: one["arrivals"] for one in latest} == arrivals(flights)
