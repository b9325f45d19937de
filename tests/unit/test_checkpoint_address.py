"""A checkpoint in an object store: who wins there, what tools read there, and what is refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from connectors import KafkaSink, KafkaSource
from connectors.cli import savepoint as savepoint_command
from connectors.cli import transactions as transactions_command
from connectors.files import FileSink
from connectors.operations.pipeline_start import pipeline_start
from connectors.options.sink import identity_of
from connectors.pipeline import run as run_module
from connectors.pipeline.checkpoint_address import checked_location
from connectors.pipeline.run import Run
from connectors.pipeline.run_options import RunOptions
from connectors.postgres import PostgresSink
from connectors.spark import arrow_pipeline
from connectors.wal import (
    FileCheckpointCommitter,
    SQLiteCheckpointCommitter,
    SQLiteWriteAheadSink,
    StdOutWriteAheadSink,
)
from tests.unit.jvm import JVM
from tests.unit.s3_server import Fault, S3Server
from tests.unit.samples import decision
from transactions.checkpoint_location import BOUND_TO, CheckpointLocation
from transactions.decision_log import DecisionLog
from transactions.errors import (
    ConfigurationError,
    DecisionLogError,
    FencedError,
    IdentityMismatchError,
    SparkOnceError,
)
from transactions.log_entries import Start
from transactions.log_location import LogLocation
from transactions.restart_strategy import is_retried
from transactions.savepoint_place import find_savepoints, verify_savepoint

URL = "s3://bucket/app"
BRIEF = {"timeout_s": "0.4", "retry_s": "1"}
#: A checkpoint that has nothing to commit.
EMPTY = decision(0, committables=())
#: It starts nothing: what is wrong is found before a query is needed.
SESSION: Any = SimpleNamespace(_jsparkSession=None, sparkContext=SimpleNamespace(_jvm=JVM))
SINK = KafkaSink(bootstrap_servers="nobody:1", topic="out")


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as one:
        yield one


@pytest.fixture
def place(server: S3Server) -> CheckpointLocation:
    return CheckpointLocation(URL, server.options(**BRIEF))


@pytest.fixture
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the options of the store as a machine would: in the environment."""
    for name, value in server.options().items():
        monkeypatch.setenv(f"AWS_{'ENDPOINT_URL' if name == 'endpoint' else name.upper()}", value)


def run_at(place: CheckpointLocation, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Run:
    monkeypatch.setattr(run_module, "check_clusters", lambda *_: None)
    times: Any = {"checkpoint_timeout_s": 10, "restart_budget_s": 1}
    return Run(RunOptions(app_id="app", checkpoint=place, sources=[], sinks=[], **times, **more))


def four_parts(error: BaseException | None) -> SparkOnceError:
    assert isinstance(error, SparkOnceError), repr(error)
    assert all((error.what, error.where, error.cause, error.option)), error
    assert "secret" not in str(error)
    return error


# --- drivers on one address -----------------------------------------------------------------------


def test_of_two_drivers_the_newest_wins(place, server, monkeypatch):
    older, newer = run_at(place, monkeypatch), run_at(place, monkeypatch)
    older.open()
    older.log.decide(EMPTY)
    newer.open()
    assert newer.log.state.decision == EMPTY
    for act in (older.check_newest, lambda: older.log.decide(decision(1))):
        with pytest.raises(FencedError):
            act()
    newer.log.decide(decision(1))
    older.close()
    newer.close()
    assert server.objects["app/log-id"].decode() == newer.log.log_id
    assert all(key.startswith(("app/decisions/", "app/log-id")) for key in server.objects)


def test_a_log_that_is_not_the_checkpoints_is_refused_before_its_fence(place, server, monkeypatch):
    place.files().put_if_absent(BOUND_TO, b"0123abcd")
    with pytest.raises(IdentityMismatchError, match="belongs to the log 0123abcd") as raised:
        run_at(place, monkeypatch).open()
    four_parts(raised.value)
    assert [*server.objects] == ["app/log-id"]


def test_a_log_elsewhere_wins_but_not_over_one_that_is_there(place, server, monkeypatch, tmp_path):
    other = LogLocation("s3://bucket/logs", server.options())
    elsewhere = run_at(place, monkeypatch, decision_log=other)
    elsewhere.open()
    elsewhere.close()
    assert {key.rpartition("/")[0] for key in server.objects} == {"app", "logs"}
    begun = CheckpointLocation("s3://bucket/begun", server.options())
    begun.log.backend().put_if_absent("1", b"")
    with pytest.raises(IdentityMismatchError, match="a log of its own"):
        run_at(begun, monkeypatch, decision_log=LogLocation(tmp_path / "new")).open()


def test_a_store_that_overwrites_is_refused_before_the_first_entry(place, server, monkeypatch):
    server.is_conditional = False
    with pytest.raises(ConfigurationError, match="no conditional put") as raised:
        run_at(place, monkeypatch).open()
    four_parts(raised.value)
    assert server.objects == {}


def test_the_log_is_named_although_the_answer_is_lost(place, server, monkeypatch):
    """Each try is stored and answered by 500: the start fails, or finds what it has put itself."""
    server.fail(Fault(method="PUT", key=BOUND_TO, carried_out=True, status=500, times=999))
    with pytest.raises(DecisionLogError, match="does not answer") as raised:
        run_at(place, monkeypatch).open()
    assert is_retried(four_parts(raised.value))
    server.heal()
    again = run_at(place, monkeypatch)
    again.open()
    again.close()
    assert server.objects["app/log-id"].decode() == again.log.log_id


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sink",
    [
        SINK,
        FileSink(path="s3://bucket/said"),
        PostgresSink(conninfo="postgresql://db/x", table="orders"),
    ],
    ids=["kafka", "files in a store", "postgres"],
)
def test_what_needs_no_disk_is_taken(place, sink):
    assert checked_location(place, [sink]) == place


def test_what_is_decided_may_not_lie_on_one_machine(place, server, tmp_path):
    sinks = [
        FileSink(path=str(tmp_path / "said")),
        StdOutWriteAheadSink(
            name="said",
            buffer=tmp_path / "said",
            committer=FileCheckpointCommitter(tmp_path / "marks"),
        ),
        SQLiteWriteAheadSink(
            name="said",
            buffer=tmp_path / "said",
            committer=SQLiteCheckpointCommitter(tmp_path / "db"),
            table="said",
        ),
    ]
    for sink in sinks:
        error = four_parts(refused("continuous", place, sink))
        assert "The sink 'said' keeps decided records in a folder" in error.what
        assert f"{tmp_path / 'said'}; checkpoint {URL}" in error.where
        assert checked_location(str(tmp_path / "state"), [sink]).folder == tmp_path / "state"
    assert not server.requests


def test_micro_batches_need_an_address_that_hadoop_knows():
    location = CheckpointLocation("az://container/app", {"account_name": "us"})
    error = four_parts(refused("micro-batch", location, SINK))
    assert "Spark cannot keep its part" in error.what
    assert "abfss://" in error.option


@pytest.mark.parametrize("mode", ["micro-batch", "continuous"])
@pytest.mark.parametrize(
    "address",
    ["hdfs://name", "dbfs:/app", "memory:///", "s3:/bucket/x", "s3://key:secret@bucket/x"],
)
def test_an_address_that_holds_no_log_is_refused(mode, address):
    four_parts(refused(mode, address, SINK))


@pytest.mark.parametrize("mode", ["micro-batch", "continuous"])
@pytest.mark.parametrize("name", ["file", "file/below", "nothing"])
def test_a_checkpoint_where_a_file_lies_is_refused(mode, name, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "nothing").symlink_to(tmp_path / "gone")
    error = four_parts(refused(mode, str(tmp_path / name), SINK))
    assert error.where == str(tmp_path / name.partition("/")[0])
    assert error.option.startswith(f"checkpoint={tmp_path / name}:")
    log = LogLocation(tmp_path / name)
    for opened in (CheckpointLocation(tmp_path / name).files, log.backend, log.check):
        with pytest.raises(ConfigurationError, match="A file lies where a folder is needed"):
            opened()


@pytest.mark.parametrize("address", ["{}/new/log", "file://{}/new/log", "file:{}/new/log"])
def test_a_check_makes_no_folder(address, tmp_path):
    log = LogLocation(address.format(tmp_path))
    log.check()
    assert not list(tmp_path.iterdir())
    log.backend()
    assert (tmp_path / "new" / "log").is_dir()


def refused(mode: str, checkpoint: Any, sink: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        arrow_pipeline(
            SESSION,
            app_id="app",
            checkpoint=checkpoint,
            source=KafkaSource(bootstrap_servers="nobody:1", subscribe="in"),
            mode=mode,
            sink=sink,
        )
    return caught.value


# --- tools ----------------------------------------------------------------------------------------

JOB = """
[app]
id = "app"
checkpoint = "s3://bucket/app"
mode = "continuous"
store.endpoint = "{endpoint}"
store.access_key_id = "tester"
store.secret_access_key = "secret"
[source]
kafka.bootstrap.servers = "nobody:1"
subscribe = "in"
[[sink]]
kafka.bootstrap.servers = "nobody:1"
topic = "out"
"""


@pytest.fixture
def log(place: CheckpointLocation, monkeypatch: pytest.MonkeyPatch) -> DecisionLog:
    """Return the log of a pipeline that has decided checkpoint 7; its driver ran on pod-1."""
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "pod-1")
        log = DecisionLog.open(
            place.log.backend(), application_id="app", identity={"sinks": identity_of([SINK])}
        )
    log.begin(Start(sources=('{"in":{"0":5}}',)))
    log.decide(decision(7))
    place.files().put_if_absent(BOUND_TO, log.log_id.encode())
    return log


@pytest.fixture
def job(server: S3Server, tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(endpoint=server.endpoint))
    return path


def typed(command: Any, *words: object) -> Result:
    done = CliRunner().invoke(command, [str(word) for word in words])
    assert "secret" not in done.output
    return done


def test_transactions_reads_an_address_with_options_of_the_environment(log, environment):
    done = typed(transactions_command.command, "list", "--checkpoint", f"{URL}/", "--json")
    assert done.exit_code == 0, done.exception
    told = orjson.loads(done.stdout)
    assert told["log"] == log.log_id
    assert told["checkpoint"] == 7


def test_transactions_refuses_a_log_that_is_not_the_addresses(log, place, server, environment):
    server.objects["app/log-id"] = b"0123abcd"
    done = typed(transactions_command.command, "list", "--checkpoint", URL)
    assert isinstance(done.exception, IdentityMismatchError)
    assert "the folder belongs to the log 0123abcd" in four_parts(done.exception).cause


def test_an_address_without_a_log_is_said_to_have_none(server, environment):
    done = typed(transactions_command.command, "list", "--checkpoint", "s3://bucket/misspelt")
    error = four_parts(done.exception)
    assert "There is no decision log" in error.what
    assert "--checkpoint s3://bucket/misspelt" in error.option
    assert server.objects == {}


def test_verify_begins_where_the_pipeline_began(log, place, environment):
    for checkpoint in (URL, place):
        assert pipeline_start(checkpoint, ["in"]) == {"in-0": 5}


def test_a_savepoint_of_a_stopped_pipeline_is_made_of_its_log(log, job, tmp_path):
    log.settle()
    done = typed(savepoint_command.command, "take", job, "--to", tmp_path / "to", "--stopped")
    assert done.exit_code == 0, done.exception
    (made,) = find_savepoints(tmp_path / "to")
    assert verify_savepoint(made).decision.checkpoint_id == 7
    assert not verify_savepoint(made).files
