"""The demo, made small: it survives its two kills, and its proof can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from connectors.demo.dataset import arrivals, load_flights, messages
from connectors.demo.demo_reader import read_committed
from connectors.demo.history import Kind
from connectors.demo.supervisor import DemoOptions, Supervisor
from tests.hdfs_cluster import HdfsCluster
from tests.integration.brokers import Broker, running_broker
from tests.integration.job_process import PATIENCE_S
from tests.tiers import long, sampled
from transactions.clock import Deadline

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "connectors.cli.main", "demo"]


@pytest.fixture(scope="module")
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of these tests alone: they look at all of its topics."""
    with running_broker(request.param) as broker:
        yield broker


def topics_of_demos(bootstrap: str) -> set[str]:
    known = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    return {name for name in known if name.startswith("flights-")}


def scratch_folders() -> set[str]:
    return {p.name for p in Path(tempfile.gettempdir()).glob("sparkonce-demo-*")}


@long
def test_two_kills_then_the_proof_holds_and_every_sabotage_breaks_it(
    bootstrap: str, tmp_path: Path
):
    before = topics_of_demos(bootstrap)
    options = DemoOptions(
        bootstrap=bootstrap, flights=20_000, seconds=3.0, output=tmp_path, master="local[2]"
    )
    with Supervisor(options, watch=lambda _history, _doing: None) as supervisor:
        supervisor.run()
        history = supervisor.history

        assert [check.detail for check in supervisor.prove() if not check.holds] == []
        assert len(history.of(Kind.KILL)) == 2
        assert history.recommitted > 0
        assert history.visible == 20_000

        supervisor.sabotage("loss")
        assert "1 lost" in supervisor.prove()[0].detail
        supervisor.sabotage("duplicate")
        assert "1 duplicated" in supervisor.prove()[0].detail

    assert topics_of_demos(bootstrap) == before


@pytest.mark.long
def test_two_kills_in_continuous_mode_and_a_failed_proof_is_exit_code_1_with_a_picture(
    bootstrap: str, tmp_path: Path
):
    """Only the sabotage fails, so without it the proof would hold."""
    before = topics_of_demos(bootstrap)
    small = ["--mode", "continuous", "--flights", "20000", "--seconds", "3"]
    run = subprocess.run(
        [
            *(*DEMO, "--bootstrap", bootstrap, "--output", str(tmp_path)),
            *(*small, "--sabotage", "duplicate"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert run.returncode == 1, run.stdout + run.stderr
    assert "1 duplicated" in run.stdout
    assert "counts per airport" not in run.stdout
    print(run.stdout)
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert topics_of_demos(bootstrap) == before


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["micro-batch", "continuous"])
def test_two_kills_with_the_checkpoint_in_hdfs(mode: str, bootstrap: str, tmp_path: Path):
    with HdfsCluster(tmp_path / "hdfs") as hdfs:
        place = ["--checkpoint", f"{hdfs.address}/demo", "--mode", mode]
        run = subprocess.run(
            [
                *(*DEMO, "--bootstrap", bootstrap, "--output", str(tmp_path), *place),
                *("--flights", "20000", "--seconds", "3"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        kept = hdfs.shell("-ls", "-R", "/demo")
    assert "/decisions/" in kept
    assert ("/spark/commits/" in kept) is (mode == "micro-batch")


@pytest.mark.long
def test_ctrl_c_leaves_nothing_behind(bootstrap: str, tmp_path: Path):
    topics, folders = topics_of_demos(bootstrap), scratch_folders()
    # A shell starts what runs in the background with ctrl-C ignored, and children inherit that.
    heard = ("env", "--default-signal=INT")
    demo = subprocess.Popen(
        [*heard, *DEMO, "--bootstrap", bootstrap, "--output", str(tmp_path), "--flights", "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    while "Spark is up" not in (line := demo.stdout.readline()):
        assert line, "the demo ended too early"
    started = psutil.Process(demo.pid).children(recursive=True)
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=PATIENCE_S)

    assert demo.returncode == 130, errors
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []
    assert topics_of_demos(bootstrap) == topics
    assert scratch_folders() <= folders


@pytest.mark.parametrize(
    "arguments",
    sampled(
        [
            ["--flights", "7"],
            ["--seconds", "-1"],
            ["--checkpoint", "ftp://far/away"],
            ["--checkpoint", __file__],
            ["--conf", "spark.x"],
        ],
        ["--conf", "spark.x"],
    ),
)
def test_bad_options_are_exit_code_2(arguments: list[str], tmp_path: Path):
    run = subprocess.run(
        [*DEMO, "--output", str(tmp_path / "out"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert run.returncode == 2
    assert arguments[1] in run.stderr
    assert not (tmp_path / "out").exists()


@contextmanager
def running_example(
    name: str, topics: dict[str, str], folder: Path, bootstrap: str, *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a file of `examples` as a user does, on topics of this test."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    text = text.replace('topic=f"flights-late-{MODE}"', 'topic="flights-late"')
    for written, real in topics.items():
        text = text.replace(f'="{written}"', f'="{real}"')
    text = text.replace('app_id="flights"', f'app_id="{topics["flights"]}"')
    text = text.replace('app_id=f"flights-late-', f'app_id=f"{topics["flights"]}-')
    script = folder / name
    script.write_text(text, encoding="utf-8")
    environment = os.environ | {"KAFKA": bootstrap, "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("wb") as log:
        job = subprocess.Popen(
            [sys.executable, str(script), *arguments], cwd=folder, stderr=log, env=environment
        )
        try:
            yield job
        finally:
            job.kill()
            job.wait()


def produce(bootstrap: str, topic: str, flights: pa.Table) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value in messages(flights):
        producer.produce(topic, value, key)
    assert producer.flush(10) == 0


def until_visible(
    bootstrap: str, topic: str, count: int, job: subprocess.Popen[bytes], folder: Path
) -> list[tuple[bytes, bytes]]:
    deadline = Deadline(PATIENCE_S)
    while len(seen := list(read_committed(bootstrap, topic))) < count:
        assert job.poll() is None, (folder / "log").read_text()
        assert not deadline.expired(), f"{len(seen)} flights"
        deadline.pause(0.5)
    return seen


@pytest.mark.long
def test_the_example_reads_as_it_runs(
    kafka_cluster: object, bootstrap: str, topic: Callable[..., str], tmp_path: Path
):
    names = ("flights-per-airport", "flights-clean", "flights")
    topics = {name: topic(partitions=2, name=name) for name in names}
    flights = load_flights(1000)
    produce(bootstrap, topics["flights"], flights)

    with running_example("flights.py", topics, tmp_path, bootstrap) as job:
        clean = until_visible(bootstrap, topics["flights-clean"], 1000, job, tmp_path)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 0

    assert sorted(int(key) for key, _ in clean) == list(range(1000))
    assert all(orjson.loads(value)["flight_id"] == int(key) for key, value in clean)
    counted = read_committed(bootstrap, topics["flights-per-airport"])
    assert {key.decode(): int(value) for key, value in counted} == arrivals(flights)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["continuous", "micro-batch"])
def test_one_function_gives_the_same_in_both_modes(
    kafka_cluster: object, bootstrap: str, topic: Callable[..., str], tmp_path: Path, mode: str
):
    topics = {name: topic(partitions=2, name=name) for name in ("flights-late", "flights")}
    flights = load_flights(1000)
    every = [orjson.loads(value) for _, value in messages(flights)]
    late = [flight for flight in every if (flight["dep_delay"] or 0) >= 15]
    produce(bootstrap, topics["flights"], flights)

    with running_example("continuous.py", topics, tmp_path, bootstrap, mode) as job:
        until_visible(bootstrap, topics["flights-late"], len(late), job, tmp_path)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 0, (tmp_path / "log").read_text()

    seen = read_committed(bootstrap, topics["flights-late"])
    found = sorted((orjson.loads(value) for _, value in seen), key=lambda one: one["flight_id"])
    assert found == late
