"""A class archive for the driver's JVM: with it, Spark starts in about half the time.

Most of a Spark start is the loading and checking of some 20,000 classes. Instead, the JVM can map
them from an archive (class data sharing, JEP 350). One command per installation makes it:

    python -m connectors.spark.class_archive

The command takes half a minute and some 170 MB in the user's cache. From then on `build_session`
uses the archive. If it is missing, or no longer fits, Spark starts as usual. A driver that starts
again after a crash gains the most: its records wait for Spark. So `sparkonce run` makes the archive
without being asked, beside the first job of a machine that runs for a minute (`made_meanwhile`).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connectors.machine.java import ensure_java_home
from connectors.machine.notices import Say, say
from connectors.machine.parent_watch import live_as_long_as_parent
from connectors.machine.spare_room import no_room
from connectors.spark.archived_classes import (
    OPTIONS_KEY,
    QUIET,
    find_archive,
    place_of_archive,
    remove_unused,
    size_of,
)
from connectors.spark.session import build_session
from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("sparkonce.class_archive")

_LEARN: Final = (sys.executable, "-m", "connectors.spark.class_archive", "--learn")
_LEARN_S: Final = 300.0
_LOOK_S: Final = 0.1
#: How long a job has run when it begins: one that fails at its start, or ends soon, pays nothing.
_RUNS_S: Final = 60.0
#: What kept it from being made, such as too little memory, may be gone the next day.
_DAY_S: Final = 86_400.0
_IDLE: Final = "--idle"


@contextlib.contextmanager
def made_meanwhile(*, after_s: float = _RUNS_S) -> Iterator[None]:
    """Make the archive, if there is none, while the block runs; give it up at the block's end.

    It is made by another process, at the lowest priority, if the machine has memory and disk to
    spare, and by one job of the machine at a time. A failure is one line in the log.

    Args:
        after_s: how long the block has run before.
    """
    given_up = threading.Event()
    thread = threading.Thread(
        target=_make_beside, args=(given_up, after_s), name="sparkonce-class-archive", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        given_up.set()
        thread.join()


def _make_beside(given_up: threading.Event, after_s: float) -> None:
    try:
        java_home = ensure_java_home()
        if find_archive(java_home) is not None or given_up.wait(after_s):
            return
        folder, stem = place_of_archive(java_home)
        folder.mkdir(parents=True, exist_ok=True)
        failed = folder / f"{stem}.failed"
        if failed.exists() and SYSTEM_CLOCK.now_ms() / 1000 - failed.stat().st_mtime < _DAY_S:
            return  # a person who makes it reads why
        if problem := no_room(folder):
            logger.info("no class archive of Spark is made: %s", problem)
            return
        try:
            ensure_class_archive(tell=logger.info, given_up=given_up)
            failed.unlink(missing_ok=True)
        except ConfigurationError as error:
            if not given_up.is_set():
                failed.touch()
                logger.info("no class archive of Spark was made: %s", error.cause)
    except BlockingIOError:
        return  # another process makes it
    except Exception as error:  # noqa: BLE001 - a convenience: no job fails because of it
        logger.info("no class archive of Spark was made: %r", error)


def ensure_class_archive(*, tell: Say = say, given_up: threading.Event | None = None) -> Path:
    """Make the archive unless it exists; return its path.

    Args:
        tell: receives what takes time.
        given_up: ends the work when it is set, which is an error; the work then has the lowest
            priority. None: a person waits for it.

    Raises:
        BlockingIOError: another process makes it, and no person waits.
        ConfigurationError: no Java was found, or the Spark run that learns the classes failed.
    """
    java_home = ensure_java_home()
    found = find_archive(java_home)
    if found is not None:
        return found
    folder, stem = place_of_archive(java_home)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".making").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if given_up is not None:
                raise
            tell("another process makes the class archive of Spark; waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := find_archive(java_home)) is not None:
            return found
        tell(
            "making a class archive of Spark, once, for quicker starts (half a minute, 170 MB) ..."
        )
        began = time.monotonic()
        for half in folder.glob("tmp*/"):  # of a process that was killed: it had the lock
            shutil.rmtree(half, ignore_errors=True)
        archive = _made(folder, stem, given_up)
    remove_unused(folder, SYSTEM_CLOCK.now_ms() / 1000)
    tell(f"made in {time.monotonic() - began:.0f} s: {archive}")
    return archive


def _made(folder: Path, stem: str, given_up: threading.Event | None) -> Path:
    # In the same folder, so that one rename publishes it.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / stem
        options = [str(made)] if given_up is None else [str(made), _IDLE]
        problem = _run([*_LEARN, *options], given_up or threading.Event())
        if problem or not made.exists():
            raise ConfigurationError(
                "The class archive could not be made.",
                where=str(folder),
                cause=problem or "the JVM wrote no archive and no message",
                option="XDG_CACHE_HOME: a folder with 400 MB of free space; Spark runs without it "
                "too",
            )
        return made.replace(folder / f"{stem}-{size_of(made)}.jsa")


def _run(command: Sequence[str], given_up: threading.Event) -> str:
    """Run a process to its end; return "", or in half a line why it failed."""
    deadline = Deadline(_LEARN_S)
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # ends with this process, however this process ends
            stdout=subprocess.DEVNULL,
            stderr=said,
            # A ctrl-C is for this process, which then ends that one. No session of its own: the
            # kernel would give it a share of the CPU like all of ours (sched_autogroup).
            process_group=0,
        )
        try:
            while process.poll() is None and not deadline.expired() and not given_up.is_set():
                given_up.wait(_LOOK_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdin is not None:
                process.stdin.close()
            code = process.wait()
        if code == -signal.SIGKILL and given_up.is_set():
            return "it was given up"
        if code == -signal.SIGKILL and deadline.expired():
            return f"it did not end within {_LEARN_S:g} s"
        said.seek(0)
        last = said.read().strip().rpartition("\n")[2]
    return (last or "it wrote no message") if code else ""


def learn(archive: Path) -> int:
    """Run a pipeline's work in a JVM that writes the archive at its end; return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        session = build_session(
            "class archive",
            master="local[2]",
            conf={
                OPTIONS_KEY: f"{shlex.quote(f'-XX:ArchiveClassesAtExit={archive}')} {QUIET}",
                "spark.sql.streaming.checkpointLocation": folder,
            },
        )
        rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        counted = rows.mapInArrow(_pass, rows.schema).groupBy("value").count()

        def write(batch: object, _number: int) -> None:
            batch.mapInArrow(_pass, batch.schema).collect()  # type: ignore[attr-defined]

        query = counted.writeStream.outputMode("update").foreachBatch(write).start()
        while query.lastProgress is None or query.lastProgress["batchId"] < 1:
            if query.awaitTermination(0.1):
                break
        query.stop()
        gateway = session.sparkContext._gateway  # noqa: SLF001 - we wait for its JVM
        session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its parent
    return int(gateway.proc.wait())


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main(arguments: list[str]) -> int:
    """Make the archive; return the exit code."""
    if arguments[:1] == ["--learn"]:
        live_as_long_as_parent()
        if _IDLE in arguments:
            os.nice(19)
            with contextlib.suppress(OSError):  # if memory ends, this ends, and not the pipeline
                Path("/proc/self/oom_score_adj").write_text("1000")
        return learn(Path(arguments[1]))
    if arguments:
        sys.stderr.write(__doc__)
        return 0 if arguments == ["--help"] else 2
    try:
        ensure_class_archive()
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
