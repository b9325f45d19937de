"""What Spark's workers ask the commit process, and how they find or start it.

Called in the workers that Spark runs beside the driver's JVM: where it plans a write, and where it
commits one. They are short-lived, so each request is a connection of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil
import pyarrow as pa

from connectors.spark.query_options import QueryOptions
from connectors.spark.sink_stage import BatchOrder, SinkStage
from transactions.clock import Deadline
from transactions.errors import OutcomeUnknownError, SparkOnceError
from transactions.sink import Owner

#: The checkpoint of a job, in a log of its own.
JOB: Final = 0

#: Files in the process's folder: where it listens, and what it locks for its life.
SOCKET: Final = "socket"
LOCK: Final = "lock"
_STARTING: Final = "starting"
_STARTS_S: Final = 60.0
#: The longest address of a socket that every system takes.
_LONGEST_ADDRESS: Final = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Asks `QueryRun.plan`; answered with its `TaskPlan`."""

    options: QueryOptions
    schema: pa.Schema
    left_out: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Asks `QueryRun.commit`; answered with None when all is committed."""

    options: QueryOptions
    number: int
    owners: frozenset[Owner]
    told: tuple[bytes, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Asks `QueryRun.abort`; answered with None."""

    options: QueryOptions
    owners: frozenset[Owner]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """What every task of one batch gets.

    Attributes:
        stage: writes its rows.
        order: says which; its checkpoint is the batch that was planned.
        columns: which of the rows' columns are written.
    """

    stage: SinkStage
    order: BatchOrder
    columns: tuple[str, ...]


Request: TypeAlias = Plan | Commit | Abort


def ask(request: Request) -> Any:
    """Ask the commit process of this worker's JVM, and return its answer.

    Only a plan starts the process: when it has died, there is nothing to commit or to abort.

    Raises:
        SparkOnceError: the request failed, or the process could not be started.
        OutcomeUnknownError: the process has died; the next start of the query finds out.
    """
    try:
        starts = isinstance(request, Plan)
        with _reached() if starts else _connection(_folder_of(*_jvm())) as connection:
            connection.send(request)
            answer = connection.recv()
    except (EOFError, OSError) as error:
        if isinstance(request, Abort):
            return None
        raise OutcomeUnknownError(
            "The process that commits has died; what it had decided is committed by the next "
            "start.",
            where=f"application {request.options.app_id} in {request.options.checkpoint}: {error}",
            cause="it was killed, or the machine has no memory left",
            option="start the query or job again",
        ) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _reached() -> Connection:
    """Connect to the process, and start it if there is none.

    Raises:
        SparkOnceError: it could not be started.
    """
    try:
        pid, born = _jvm()
        folder = _folder_of(pid, born)
        with contextlib.suppress(OSError):
            return _connection(folder)
        with (folder / _STARTING).open("w") as file:  # two queries can begin at once
            fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(OSError):
                return _connection(folder)
            return _started(folder, pid, born)
    except OSError as error:
        raise SparkOnceError(
            "The process that commits could not be started.",
            where=str(error),
            cause="its folder cannot be made or written: the disk is full, or read-only",
            option=f"TMPDIR={os.environ.get('TMPDIR', '(absent)')}: a folder that can be written",
        ) from error


def _connection(folder: Path) -> Connection:
    return Client(str(folder / SOCKET), family="AF_UNIX")


def _started(folder: Path, pid: int, born: str) -> Connection:
    """Start the process. A session of its own keeps ctrl-C away: it ends with the JVM."""
    _remove_old(folder)
    command = [sys.executable, "-m", "connectors.spark.commit_process", str(folder)]
    process = subprocess.Popen(
        [*command, str(pid), born],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    deadline = Deadline(_STARTS_S)
    # Its code is 0 if another process serves the JVM already: then that one answers soon.
    while not process.poll() and not deadline.expired():
        with contextlib.suppress(OSError):
            return _connection(folder)
        deadline.pause(0.02)
    process.kill()
    raise SparkOnceError(
        "The process that commits could not be started.",
        where=f"{folder}, exit code {process.wait()}",
        cause="its own message stands above this one",
        option="TMPDIR: a folder that can be written",
    )


@functools.cache
def _jvm() -> tuple[int, str]:
    """Return Spark's JVM: it has started this worker, or the daemon that forked this worker."""
    parents = psutil.Process().parents()
    found = (one for one in parents if one.name().lower().startswith("java"))
    pid = next(found, parents[0]).pid
    return pid, born(pid)


def _folder_of(pid: int, born: str) -> Path:
    """Return the folder of the commit process of a JVM; nobody else can read it.

    Raises:
        SparkOnceError: there can be no such folder.
    """
    home = Path(tempfile.gettempdir()) / f"sparkonce-{os.getuid()}"
    folder = home / f"{pid}-{born}"
    if len(str(folder / SOCKET)) > _LONGEST_ADDRESS:
        raise SparkOnceError(
            "The address of the process that commits would be too long.",
            where=str(folder),
            cause=f"the address of a socket may have {_LONGEST_ADDRESS} characters",
            option=f"TMPDIR={tempfile.gettempdir()}: a shorter path",
        )
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid() or home.is_symlink():
        raise SparkOnceError(
            "The folder of the process that commits belongs to somebody else.",
            where=str(home),
            cause="another user of this machine has made it",
            option="TMPDIR: a folder of your own",
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _remove_old(folder: Path) -> None:
    """Remove what killed processes have left: folders of JVMs that have ended.

    A JVM of another container is not seen here, though the two can share this place. Its process
    holds a lock, and so does the worker that starts the process. Where a worker has not come so
    far, the folder is empty.
    """
    at_once = fcntl.LOCK_EX | fcntl.LOCK_NB
    for other in folder.parent.iterdir():
        pid, _, born_then = other.name.partition("-")
        if other == folder or not pid.isdecimal() or is_running(int(pid), born_then):
            continue
        with contextlib.suppress(OSError), (other / _STARTING).open() as starting:
            fcntl.flock(starting, at_once)
            with (other / LOCK).open("w") as lock:
                fcntl.flock(lock, at_once)
                shutil.rmtree(other, ignore_errors=True)


def is_running(pid: int, born_then: str) -> bool:
    """Return whether a process runs that was born then: a number can be used again."""
    try:
        return born(pid) == born_then and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def born(pid: int) -> str:
    """Return when a process was born, by a clock that nobody sets.

    Linux counts ticks from the boot. psutil makes a time of day of them, which a step of the wall
    clock changes.

    Raises:
        psutil.NoSuchProcess: it does not run.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return str(int(psutil.Process(pid).create_time()))
