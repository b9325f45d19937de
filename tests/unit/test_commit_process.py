"""The process that commits, and how workers find it; it commits nothing here."""

from __future__ import annotations

import fcntl
import multiprocessing
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from connectors.spark import commit_requests
from connectors.spark.commit_process import CommitProcess
from connectors.spark.commit_requests import LOCK, SOCKET, born
from tests.waiting import until
from transactions.errors import OutcomeUnknownError, SparkOnceError


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as found:
        yield Path(found)


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for Spark's JVM."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_does_not_end_it_before_its_jvm(folder, jvm, number):
    """A service manager sends SIGTERM to all processes of a service at once, and a terminal that is
    closed SIGHUP.
    """
    command = [sys.executable, "-m", "connectors.spark.commit_process", str(folder)]
    with subprocess.Popen([*command, str(jvm.pid), born(jvm.pid)]) as process:
        until((folder / SOCKET).exists)
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        jvm.kill()
        jvm.wait()
        assert process.wait(30) == 0
    assert not folder.exists()


@pytest.mark.parametrize("held", [LOCK, commit_requests._STARTING])
def test_a_process_whose_jvm_is_not_seen_keeps_its_folder(folder, held):
    """Two containers share the place: neither sees the other's processes, but their locks."""
    other, dead, made = (folder / f"{2**22 + number}-1" for number in range(1, 4))
    for one in (other, dead):
        one.mkdir()
        (one / commit_requests._STARTING).touch()
        (one / LOCK).touch()
    made.mkdir()
    with (other / held).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        commit_requests._remove_old(folder / "ours")
    assert other.exists(), "its process serves, or starts"
    assert not dead.exists()
    assert made.exists(), "its worker is about to start a process"


def test_a_plan_without_a_place_for_the_process_says_so(folder, monkeypatch):
    """TMPDIR is full, or cannot be written: nothing has died."""
    (folder / "full").touch()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder / "full"))
    options: Any = SimpleNamespace(app_id="app", checkpoint=folder)
    plan = commit_requests.Plan(options=options, schema=pa.schema([]), left_out=())
    with pytest.raises(SparkOnceError, match="could not be started") as raised:
        commit_requests.ask(plan)
    assert "TMPDIR=" in str(raised.value)
    assert not isinstance(raised.value, OutcomeUnknownError)


class UnsendableError(Exception):
    """Of a foreign library."""

    def __reduce__(self) -> tuple[object, ...]:
        raise pickle.PicklingError("it holds a socket")


def test_an_error_that_cannot_be_sent_arrives_in_words(monkeypatch):
    process = CommitProcess()
    monkeypatch.setattr(process, "_result", lambda _: UnsendableError("the broker is away"))
    worker, ours = multiprocessing.Pipe()
    worker.send("a request")
    process._answer(ours)
    assert "UnsendableError: the broker is away" in str(worker.recv())
