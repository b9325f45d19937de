"""The process that commits, and how workers find it; it commits nothing here."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.spark import commit_requests
from connectors.spark.commit_requests import LOCK, SOCKET, born
from transactions.clock import Deadline


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


def until(it_is_so: Callable[[], bool]) -> None:
    deadline = Deadline(30)
    while not it_is_so():
        assert not deadline.expired()
        deadline.pause(0.02)


def test_sigterm_does_not_end_it_before_its_jvm(folder, jvm):
    """A service manager sends SIGTERM to all processes of a service at once."""
    command = [sys.executable, "-m", "connectors.spark.commit_process", str(folder)]
    with subprocess.Popen([*command, str(jvm.pid), born(jvm.pid)]) as process:
        until((folder / SOCKET).exists)
        process.send_signal(signal.SIGTERM)
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
