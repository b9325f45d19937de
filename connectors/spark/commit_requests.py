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
from collections.abc import Iterator
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

#: Files in the process's folder: the key that a caller must know, and where it listens.
KEY: Final = "key"
SOCKET: Final = "socket"
_LOCK: Final = "lock"
_OF_A_JVM: Final = "jvm-"
_STARTS_S: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Asks `QueryRun.plan`; answered with its `TaskPlan`."""

    options: QueryOptions
    schema: pa.Schema


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
        SparkOnceError: the request failed.
        OutcomeUnknownError: the process has died; the next start of the query finds out.
    """
    folder = _folder_of(_jvm())
    try:
        with _connected(folder, starts=isinstance(request, Plan)) as connection:
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
            option="start the query again",
        ) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


@contextlib.contextmanager
def _connected(folder: Path, *, starts: bool) -> Iterator[Connection]:
    """Connect to the process, and start it if there is none."""
    try:
        connection = _connection(folder)
    except OSError:
        if not starts:
            raise
        with _locked(folder):  # two queries can begin at once
            try:
                connection = _connection(folder)
            except OSError:
                connection = _started(folder)
    with connection:
        yield connection


def _connection(folder: Path) -> Connection:
    return Client(str(folder / SOCKET), family="AF_UNIX", authkey=(folder / KEY).read_bytes())


def _started(folder: Path) -> Connection:
    """Start the process. A session of its own keeps ctrl-C away: it ends with the JVM."""
    (folder / KEY).unlink(missing_ok=True)
    _remove_old(folder)
    jvm = _jvm()
    command = [sys.executable, "-m", "connectors.spark.commit_process", str(folder)]
    process = subprocess.Popen(
        [*command, str(jvm.pid), str(jvm.create_time())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    deadline = Deadline(_STARTS_S)
    while process.poll() is None and not deadline.expired():
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
def _jvm() -> psutil.Process:
    """Return Spark's JVM: it has started this worker, or the daemon that forked this worker."""
    parents = psutil.Process().parents()
    found = (one for one in parents if one.name().lower().startswith("java"))
    return next(found, parents[0])


def _folder_of(jvm: psutil.Process) -> Path:
    """Return the folder of the commit process of a JVM; nobody else can read it."""
    home = Path(tempfile.gettempdir()) / f"sparkonce-commits-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid() or home.is_symlink():
        raise SparkOnceError(
            "The folder of the process that commits belongs to somebody else.",
            where=str(home),
            cause="another user of this machine has made it",
            option="TMPDIR: a folder of your own",
        )
    folder = home / f"{_OF_A_JVM}{jvm.pid}-{int(jvm.create_time())}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _remove_old(folder: Path) -> None:
    """Remove what killed processes have left: folders of JVMs that have ended."""
    for other in folder.parent.glob(f"{_OF_A_JVM}*"):
        pid, _, started = other.name.removeprefix(_OF_A_JVM).partition("-")
        if other != folder and not is_running(int(pid), float(started)):
            shutil.rmtree(other, ignore_errors=True)


def is_running(pid: int, started: float) -> bool:
    """Return whether a process runs that began at this time: a number can be used again."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) <= 1
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
