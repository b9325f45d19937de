"""What `sparkonce bench` refuses before it starts anything, and how it is interrupted."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from benchmarks import recovery
from connectors.bench import job_process, picture
from connectors.bench.interruption import Interruption
from connectors.bench.job_process import JobProcess
from connectors.bench.options import BenchOptions
from connectors.bench.system import System, our_system
from connectors.bench.workbench import temporary_files_in
from connectors.cli.bench import command
from tests.waiting import until
from transactions.clock import Deadline
from transactions.errors import ConfigurationError, SparkOnceError

CONTINUOUS = {"mode": "continuous"}


@pytest.mark.parametrize(
    ("what", "given", "named"),
    [
        ("latency", {"record_bytes": 16}, "--record-size=16"),
        ("latency", {"rate": 0}, "--rate=0"),
        ("latency", {"rate": 1, "seconds": 0.5}, "--rate=1, --seconds=0.5"),
        ("latency", {"seconds": -1.0}, "--seconds=-1"),
        ("latency", {"warmup_s": -1.0}, "--warmup=-1"),
        ("latency", {"slowest": -1}, "--slowest=-1"),
        ("latency", {"barrier_interval_s": 0.1}, "barrier_interval_s=0.1"),
        ("latency", {**CONTINUOUS, "barrier_interval_s": 0.0}, "--barrier-interval=0"),
        (
            "latency",
            {**CONTINUOUS, "barrier_interval_s": 0.1, "target_latency_s": 0.1},
            "barrier_interval_s, target_latency_s",
        ),
        ("latency", {"mode": "continous"}, "mode=continous"),
        ("latency", {"subtasks": (1, 2)}, "--subtasks=1,2"),
        ("latency", {"replication_factor": 2}, "--replication-factor=2"),
        ("latency", {"conf": ("spark.x",)}, "--conf=spark.x"),
        ("latency", {"plot": Path("x.pdf")}, "--plot=x.pdf"),
        ("latency", {"plot": Path("/not/here/x.svg")}, "--plot=/not/here/x.svg"),
        ("latency", {"rate": 10**8}, "--records, or --rate with --seconds"),
        ("throughput", {"records": 0}, "--records=0"),
        ("throughput", {"plot": Path("x.svg")}, "--plot=x.svg"),
        ("commit", {"subtasks": (0,)}, "--subtasks=0"),
        ("commit", {"subtasks": (2, 2)}, "--subtasks=2,2"),
        ("commit", {"subtasks": (3,), "partitions": 2}, "--subtasks=3, --partitions=2"),
        ("commit", {**CONTINUOUS, "subtasks": (3,), "partitions": 2}, "--partitions=2"),
    ],
)
def test_refused_before_anything_starts(what: str, given: dict[str, Any], named: str):
    with pytest.raises(ConfigurationError) as refused:
        BenchOptions(what=what, **given).validate()
    assert named in refused.value.option
    assert refused.value.what
    assert refused.value.cause


def test_two_replicas_are_a_matter_of_the_users_own_cluster():
    kafka = {"bootstrap.servers": "broker:9092"}
    BenchOptions(what="latency", kafka=kafka, replication_factor=2).validate()


def test_a_series_has_a_slot_for_every_subtask():
    options = BenchOptions(what="commit", subtasks=(1, 2, 4), **CONTINUOUS)
    options.validate()
    runs = options.runs()
    assert [run.system.settings["master"] for run in runs] == ["local[1]", "local[2]", "local[4]"]
    assert [run.system.settings["parallelism"] for run in runs] == [1, 2, 4]
    assert [run.shape.partitions for run in runs] == [4, 4, 4]


def test_in_micro_batches_a_partition_is_a_subtask():
    runs = BenchOptions(what="commit", subtasks=(1, 3)).runs()
    assert [run.shape.partitions for run in runs] == [1, 3]
    assert "parallelism" not in runs[0].system.settings
    (alone,) = BenchOptions(what="latency").runs()
    assert (alone.subtasks, alone.shape.partitions, alone.rate) == (2, 2, 2000)
    assert alone.shape.value_bytes == 92


def test_a_master_of_the_user_is_taken():
    options = BenchOptions(what="commit", subtasks=(1, 2), master="spark://m:7077", **CONTINUOUS)
    assert {run.system.settings["master"] for run in options.runs()} == {"spark://m:7077"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["latency", "--record-size", "10"], "--record-size=10"),
        (["commit", "--subtasks", "1,x"], "whole numbers"),
        (["throughput", "--plot", "x.svg"], "No such option"),
        (["latency", "--json", "/not/here/x"], "--json=/not/here/x"),
        (["latency", "--kafka", "linger.ms"], "the form is name=value"),
        (["latency", "--bootstrap", "x:1", "--kafka", "acks=1"], "acks"),
    ],
)
def test_the_command_ends_with_2(arguments: list[str], says: str):
    ended = CliRunner().invoke(command, arguments)
    assert (ended.exit_code, says in ended.output) == (2, True), ended.output


def test_a_picture_that_cannot_be_drawn_is_told_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match="matplotlib"):
        picture.check_installed()
    ended = CliRunner().invoke(command, ["latency", "--plot", str(tmp_path / "x.svg")])
    assert ended.exit_code == 2
    assert "pip install '.[demo]' in a clone" in ended.output


def test_below_a_long_tmpdir_spark_has_no_unix_sockets():
    name = "spark.python.unix.domain.socket.enabled"
    assert name not in temporary_files_in(Path("/tmp/sparkonce-bench-abcdefgh"))
    assert temporary_files_in(Path("/" + "x" * 80))[name] == "false"


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_what_must_not_be_left_half_done(number: signal.Signals):
    said: list[str] = []
    done = []
    with pytest.raises(KeyboardInterrupt), Interruption(said.append) as interruption:
        with interruption.shielded():
            send(number)
            send(number)
            done.append("whole")
        done.append("not reached")
    assert done == ["whole"]
    assert len(said) == 2


def test_only_the_first_signal_interrupts_and_tidying_up_runs_whole():
    before = signal.getsignal(signal.SIGINT)
    done = []
    with Interruption(lambda _: None) as interruption:
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        send(signal.SIGINT)  # while a job is being stopped: removing has not begun yet
        try:
            interruption.shield()
        finally:
            send(signal.SIGTERM)
            done.append("removed")
    assert done == ["removed"]
    assert signal.getsignal(signal.SIGINT) is before


SCRIPT = """
import json, os, pathlib, subprocess, sys, time
task = json.loads(pathlib.Path(sys.argv[1]).read_text())
folder = pathlib.Path(task["folder"])
{body}
"""
#: What Spark's worker daemon does: a child that leaves the process group.
WITH_CHILD = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
(folder / "child.tmp").write_text(str(child.pid))
os.rename(folder / "child.tmp", folder / "child")
time.sleep(600)
"""


@pytest.fixture
def job_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], JobProcess]:
    monkeypatch.setattr(job_process, "ensure_java_home", lambda: "/no/java/is/started")
    monkeypatch.setattr(job_process, "_LAST_WORDS_S", 0.2)

    def make(body: str) -> JobProcess:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(body=body))
        ours = our_system("continuous")
        system = dataclasses.replace(
            ours, command=lambda task: [sys.executable, str(script), ours.command(task)[-1]]
        )
        kafka = {"bootstrap.servers": "broker:9092", "sasl.password": "hush"}
        return JobProcess(
            system, tmp_path / "job", kafka=kafka, topics=("in", "out"), batch_records=None
        )

    return make


def ended(job: JobProcess) -> SparkOnceError:
    deadline = Deadline(20.0)
    while not deadline.expired():
        try:
            job.check()
        except SparkOnceError as error:
            return error
        deadline.pause(0.01)
    raise AssertionError("it goes on")


def test_a_job_ends_with_everything_it_started(job_of: Callable[[str], JobProcess]):
    with job_of(WITH_CHILD) as job:
        until((job.folder / "child").exists)
        child = psutil.Process(int((job.folder / "child").read_text()))
        assert child.is_running()
    # It was killed; on a busy machine it is gone a moment later.
    child.wait(20)
    assert not psutil.pid_exists(job.pid)


def test_a_password_is_in_a_file_of_its_owner_and_not_in_the_arguments(
    job_of: Callable[[str], JobProcess],
):
    with job_of("time.sleep(600)") as job:
        file = job.folder / "task.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert json.loads(file.read_text())["kafka"] == {"sasl.password": "hush"}
        assert "hush" not in " ".join(psutil.Process(job.pid).cmdline())


def test_a_job_that_failed_is_told_with_the_end_of_its_log(job_of: Callable[[str], JobProcess]):
    with job_of("sys.exit('the reason')") as job:
        error = ended(job)
    assert "exit code 1" in error.what
    assert "the reason" in error.cause
    assert not isinstance(error, ConfigurationError)


def test_an_error_of_ours_keeps_its_four_parts(job_of: Callable[[str], JobProcess]):
    told = {"configuration": True, "what": "W", "where": "X", "cause": "Y", "option": "Z"}
    body = f"(folder / 'error.json').write_text(json.dumps({told!r})); sys.exit(1)"
    with job_of(body) as job:
        error = ended(job)
    assert isinstance(error, ConfigurationError)
    assert (error.what, error.where, error.cause, error.option) == ("W", "X", "Y", "Z")


class NoFeed:
    def __init__(self, *_arguments: Any) -> None: ...

    def __enter__(self) -> NoFeed:
        return self

    def __exit__(self, *_error: object) -> None: ...


class NoCluster:
    bootstrap_servers = "nowhere:9"

    def create_topic(self, *_arguments: Any) -> None: ...


def test_jars_of_a_peer_that_cannot_be_fetched_are_a_line_of_the_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def command(_task: object) -> list[str]:
        raise SparkOnceError("The jars cannot be had.", cause="no network")

    monkeypatch.setattr(recovery, "Feed", NoFeed)
    peer = System(name="a peer", command=command, versions={})
    cluster: Any = NoCluster()
    line = recovery.one_round(cluster, tmp_path, peer, rate=1, settle_s=0.0)
    assert "The jars cannot be had." in line["error"]
