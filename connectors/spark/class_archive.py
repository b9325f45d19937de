"""A class archive for the driver's JVM: with it, Spark starts in about half the time.

Most of a Spark start is the loading and checking of some 20,000 classes. Instead, the JVM can map
them from an archive (class data sharing, JEP 350). One command per installation makes it:

    python -m connectors.spark.class_archive

The command takes half a minute and some 170 MB in the user's cache. From then on `build_session`
uses the archive. If it is missing, or no longer fits, Spark starts as usual. A driver that starts
again after a crash gains the most: its records wait for Spark.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from connectors.machine.java import ensure_java_home
from connectors.machine.notices import Say, say
from connectors.spark.archived_classes import (
    OPTIONS_KEY,
    QUIET,
    find_archive,
    place_of_archive,
    remove_unused,
    size_of,
)
from connectors.spark.session import build_session
from transactions.clock import SYSTEM_CLOCK
from transactions.errors import ConfigurationError

_LEARN_S = 300.0


def ensure_class_archive(*, tell: Say = say) -> Path:
    """Make the archive unless it exists; return its path.

    Raises:
        ConfigurationError: no Java was found, or the Spark run that learns the classes failed.
    """
    java_home = ensure_java_home()
    found = find_archive(java_home)
    if found is not None:
        return found
    tell("making a class archive of Spark, once, for quicker starts (half a minute, 170 MB) ...")
    began = time.monotonic()
    folder, stem = place_of_archive(java_home)
    folder.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that one rename publishes it.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / stem
        learn = [sys.executable, "-m", "connectors.spark.class_archive", "--learn", str(made)]
        try:
            done = subprocess.run(
                learn, capture_output=True, text=True, timeout=_LEARN_S, check=False
            )
            failed, said = done.returncode != 0, done.stderr.strip()
        except subprocess.TimeoutExpired:
            failed, said = True, f"it did not end within {_LEARN_S:g} s"
        if failed or not made.exists():
            raise ConfigurationError(
                "The class archive could not be made.",
                where=str(folder),
                cause=said.rpartition("\n")[2] or "the JVM wrote no archive and no message",
                option="XDG_CACHE_HOME: a folder with 400 MB of free space; Spark runs without it "
                "too",
            )
        archive = made.replace(folder / f"{stem}-{size_of(made)}.jsa")
    remove_unused(folder, SYSTEM_CLOCK.now_ms() / 1000)
    tell(f"made in {time.monotonic() - began:.0f} s: {archive}")
    return archive


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
