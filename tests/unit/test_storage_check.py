"""`sparkonce doctor --checkpoint`: what it finds in a storage, and what it leaves there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from connectors.cli.doctor import command
from connectors.doctor import storage
from connectors.doctor.storage import check_storage
from connectors.doctor.verdict import Level, Verdict
from tests.pages import block, commands
from tests.unit.s3_server import Fault, S3Server
from transactions.checkpoint_location import CheckpointLocation
from transactions.log_backend import MemoryBackend

URL = "s3://bucket/app"
ALL = ["put if absent", "read after write", "list after put", "delete", "put if absent, raced"]
JOB = """
[app]
id = "app"
checkpoint = "{checkpoint}"
mode = "{mode}"
{more_of_app}
[source]
kafka.bootstrap.servers = "nobody:1"
subscribe = "in"
[[sink]]
kafka.bootstrap.servers = "nobody:1"
topic = "out"
{more}
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Yield a store that the environment names."""
    with S3Server() as one:
        for name, value in one.options().items():
            known = "ENDPOINT_URL" if name == "endpoint" else name.upper()
            monkeypatch.setenv(f"AWS_{known}", value)
        yield one


def doctor(*words: object) -> tuple[int, list[dict[str, Any]]]:
    done: Result = CliRunner().invoke(command, [*map(str, words), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "secret" not in done.output
    assert "hidden" not in done.output
    return done.exit_code, orjson.loads(done.stdout)["storages"]


def refusal(tried: list[dict[str, Any]]) -> dict[str, str]:
    """Return the one refusal; what comes after it was not tried."""
    (one,) = tried
    assert one["level"] == "refuse"
    *good, bad = one["checks"]
    assert [row["level"] for row in good] == ["ok"] * len(good)
    assert all(bad[part] for part in ("check", "found", "reason", "option"))
    return bad


# --- a whole trial, with processes that race ------------------------------------------------------


def test_a_store_that_keeps_its_promises(server):
    server.page = 3
    code, (tried,) = doctor("--checkpoint", f"{URL}/")
    assert (code, tried["level"], tried["address"]) == (0, "ok", f"{URL}/")
    assert [row["check"] for row in tried["checks"]] == ALL
    assert "raced for 20 names" in tried["checks"][-1]["found"]
    assert server.objects == {}
    raced = {key.rpartition("/")[2] for key, _ in server.stored if "/race-" in key}
    assert raced == {f"race-{number}" for number in range(20)}


def test_a_store_that_looks_before_it_writes_loses_a_race(server):
    """One process alone sees nothing wrong in it: only a put at the same moment comes between."""
    server.gap_s = 0.02
    code, tried = doctor("--checkpoint", URL)
    bad = refusal(tried)
    assert (code, bad["check"]) == (1, "put if absent, raced")
    assert "2 of two processes won the name race-" in bad["found"]
    assert "two drivers could both decide" in bad["reason"]
    assert server.objects == {}


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_a_folder_is_tried_and_not_made(tmp_path: Path, begun: bool):
    folder = tmp_path / "state" / "app"
    if begun:
        folder.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    code, (tried,) = doctor("--checkpoint", folder)
    assert (code, [row["check"] for row in tried["checks"]]) == (0, ALL)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_command_of_the_page(server):
    server.bucket = "state"
    (line,) = commands(block("docs/decision_log.md", "sparkonce doctor --checkpoint"))
    code, (one,) = doctor(*line.removeprefix("sparkonce doctor ").split())
    assert (code, one["level"]) == (0, "ok")


# --- what is refused ------------------------------------------------------------------------------


def test_a_store_without_conditional_put_is_refused_as_a_start_refuses_it(server):
    server.is_conditional = False
    code, tried = doctor("--checkpoint", URL)
    bad = refusal(tried)
    assert (code, bad["check"]) == (1, "put if absent")
    assert "The object store has no conditional put" in bad["found"]
    assert server.objects == {}


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("s3://nobody/app", "does not exist"),
        ("wasbs://name/app", "unknown kind of store"),
        ("memory:///", "cannot lie in memory"),
        ("s3://key:hidden@bucket/app", "carries credentials"),
    ],
)
def test_an_address_that_no_log_can_lie_at_is_refused(server, address, says):
    code, tried = doctor("--checkpoint", address)
    assert code == 1
    assert says in refusal(tried)["found"]


def test_who_may_not_write_is_told(server):
    server.fail(Fault(method="PUT", status=403, times=999))
    bad = refusal(doctor("--checkpoint", URL)[1])
    assert "refused our credentials or our rights" in bad["found"]


def test_a_store_that_does_not_answer_is_told_in_time(server):
    server.fail(Fault(method="PUT", status=500, times=999))
    bad = refusal(doctor("--checkpoint", URL, "--timeout", "2s")[1])
    assert "no known result" in bad["found"]


class Late(MemoryBackend):
    """Each promise but one is kept."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self._broken = broken

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self._broken == "put if absent":
            self.delete(name)
        return super().put_if_absent(name, data)

    def get(self, name: str) -> bytes | None:
        is_late = self._broken == "read after write" and name == "read-3"
        return None if is_late else super().get(name)

    def list(self, *, durable: bool = True) -> list[str]:
        names = super().list(durable=durable)
        is_late = self._broken == "list after put"
        return [name for name in names if not (is_late and name == "list-3")]

    def delete(self, name: str) -> None:
        if self._broken != "delete":
            super().delete(name)


@pytest.mark.parametrize("broken", ALL[:-1])
def test_each_broken_promise_is_named(broken: str, monkeypatch: pytest.MonkeyPatch):
    backend = Late(broken)
    monkeypatch.setattr(CheckpointLocation, "files", lambda _: backend)
    monkeypatch.setattr(storage, "_PROMISES", {k: storage._PROMISES[k] for k in ALL[:-1]})
    *good, bad = check_storage(CheckpointLocation(URL))
    assert (bad.check, bad.level) == (broken, Level.REFUSE)
    assert [row.check for row in good] == ALL[: ALL.index(broken)]
    assert all((bad.found, bad.reason, bad.option))


# --- a job ----------------------------------------------------------------------------------------


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the places that are tried; the cluster of the job does not exist."""
    places: list[str] = []

    def check(place: CheckpointLocation, **_: float) -> list[Verdict]:
        places.append(str(place))
        return []

    monkeypatch.setattr(storage, "check_storage", check)
    monkeypatch.setattr("connectors.doctor.probe.gather", lambda *_: None)
    monkeypatch.setattr("connectors.doctor.verdicts.judge", lambda *_: [])
    return places


LOG = '[decision_log]\naddress = "s3://bucket/log"\n'


@pytest.mark.parametrize(
    ("mode", "checkpoint", "more", "wanted"),
    [
        ("continuous", "state", "", []),
        ("continuous", URL, "", [URL]),
        ("continuous", URL, LOG, [URL, "s3://bucket/log"]),
        ("micro-batch", "state", LOG, ["s3://bucket/log"]),
        ("micro-batch", "state", '[decision_log]\naddress = "log"\n', []),
    ],
)
def test_the_stores_of_a_job_are_tried(tmp_path, tried, mode, checkpoint, more, wanted):
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(mode=mode, checkpoint=checkpoint, more=more, more_of_app=""))
    assert doctor("--job", path)[0] == 0
    assert tried == wanted


def test_options_of_a_job_reach_its_store(tmp_path, server, monkeypatch):
    for name in ("ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setattr("connectors.doctor.probe.gather", lambda *_: None)
    monkeypatch.setattr("connectors.doctor.verdicts.judge", lambda *_: [])
    options = "".join(f'store.{name} = "{value}"\n' for name, value in server.options().items())
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(mode="continuous", checkpoint=URL, more="", more_of_app=options))
    code, (one,) = doctor("--job", path)
    assert (code, one["level"]) == (0, "ok"), one
    assert server.objects == {}


def test_a_checkpoint_beside_a_job_is_refused(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(mode="continuous", checkpoint="state", more="", more_of_app=""))
    done = CliRunner().invoke(command, ["--job", str(path), "--checkpoint", URL])
    assert "--checkpoint cannot be given beside --job" in str(done.exception)
