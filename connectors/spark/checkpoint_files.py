"""Which files of Spark's checkpoint folder belong to a finished batch; no session, no JVM.

Spark writes each file once, under another name first, and never changes it. Batch N is finished
when commits/N exists. Then the state with which batch N + 1 begins exists too. (The file names:
Spark's `HDFSMetadataLog`, `StateStore`.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import orjson

from connectors.kafka.source.offsets import merged_offsets, without_topics
from connectors.pipeline.spark_checkpoint import batches_of
from transactions.errors import ConfigurationError
from transactions.log_backend import sync_folder
from transactions.log_entries import Decision
from transactions.replay import same_places

logger = logging.getLogger(__name__)

#: Spark's folder inside the driver's folder.
SPARK = "spark"

#: A batch's file, and Hadoop's checksum of that file.
_BATCH = re.compile(r"\.?(\d+)(\.crc)?")
_LOGS = ("offsets", "commits")
#: Where Spark has no plan it takes a query for a new one, and refuses each file in these folders
#: (`MicroBatchExecution.verifyNewCheckpointDirectory`), its own half-written one too.
MUST_BE_EMPTY = (*_LOGS, "state")
_METADATA = "metadata"
_VERSION = "v1"


def finished_checkpoint(spark_checkpoint: Path) -> int:
    """Return the newest batch that Spark has recorded as done, -1 before the first.

    Spark records it after foreachBatch returned, which happens only when all is proven committed.
    """
    return max(batches_of(spark_checkpoint / "commits"), default=-1)


def is_finished(spark_checkpoint: Path, batch_id: int) -> bool:
    """Return whether Spark can start after a batch. If a power cut left a record without content,
    the batch was committed all the same; the next start of its pipeline writes the record again.
    """
    path = spark_checkpoint / "commits" / str(batch_id)
    return path.exists() and is_whole(path)


def is_whole(path: Path) -> bool:
    """Return whether a file of Spark's logs ends with a line of JSON, as a whole one does.

    A checksum can be torn while its file is whole. No checksum counts: Hadoop works without it.
    """
    if path.suffix == ".crc":
        return False
    try:
        orjson.loads(path.read_bytes().rpartition(b"\n")[2])
    except orjson.JSONDecodeError:
        return False
    return True


def planned_end(spark_checkpoint: Path) -> dict[str, int]:
    """Return where batch 0 ends, per ``topic-partition``, if Spark has planned it already.

    Used only for a checkpoint of a version that did not decide where reading begins.
    """
    with contextlib.suppress(OSError, ValueError, ConfigurationError):
        text = (spark_checkpoint / "offsets" / "0").read_text("utf-8")
        version, _, *sources = text.splitlines()
        return merged_offsets(one for one in sources if one != "-") if version == _VERSION else {}
    return {}


def batches_in(folder: Path) -> list[tuple[int, Path]]:
    """Return the files of one of Spark's logs, and their checksums, with their batch numbers."""
    paths = folder.iterdir() if folder.is_dir() else []
    found = ((_BATCH.fullmatch(path.name), path) for path in paths)
    return [(int(batch[1]), path) for batch, path in found if batch is not None]


def files_of(checkpoint: Path, batch_id: int) -> dict[str, str]:
    """Return the files that the next run needs to continue after a finished batch, by their paths
    below the driver's folder.

    Call it while no batch runs. Spark may still remove old state at any time.
    """
    paths = [path for path in (checkpoint / SPARK).rglob("*") if path.is_file()]
    by_name = {path.relative_to(checkpoint).as_posix(): path for path in paths}
    return {name: str(path) for name, path in by_name.items() if is_of_batch(name, batch_id)}


def is_of_batch(name: str, batch_id: int) -> bool:
    """Return whether a file, named below the checkpoint, was there when a batch was finished, and
    its next run needs it. Checksums of Hadoop it does not: a savepoint has its own.
    """
    _, log, *_ = parts = name.split("/")
    if ".tmp" in parts[-1] or parts[-1].endswith(".crc"):
        return False
    return log not in _LOGS or (parts[-1].isdecimal() and int(parts[-1]) <= batch_id)


class BatchTexts(Protocol):
    """The files of Spark's part of a checkpoint, as text."""

    @property
    def address(self) -> str:
        """Of Spark's part, for errors."""

    def read(self, name: str) -> str | None:
        """Return the text of a file, None if there is none."""

    def replace(self, name: str, text: str) -> None:
        """Replace a file, durably; a crash leaves the old one or the new one."""


def fit_offsets(files: BatchTexts, batch_id: int, places: int) -> None:
    """Fit the offsets of a batch, and of the one before, to a plan, durably; Spark compares both.

    Args:
        files: Spark's part of the checkpoint.
        batch_id: the last finished batch; -1 for none.
        places: of sources in the plan that continues.

    Raises:
        ConfigurationError: they are of several sources.
    """
    for name in (f"offsets/{number}" for number in range(max(batch_id - 1, 0), batch_id + 1)):
        text = files.read(name)
        changed = text and _fitted(text, places, f"{files.address}/{name}")
        if changed:
            files.replace(name, changed)


def bring_back(files: BatchTexts, decision: Decision) -> None:
    """Write again, durably, what another driver has written over since a batch was decided: the
    plans that its replay and the next batch begin with, and the name of the query.

    Of a plan only the offsets: the time and the watermark in it stay those of the other driver. If
    both the query and its plan are others, the files are of another pipeline, and stay as they
    are; the run then raises a `ReplayMismatchError` before it writes.

    Args:
        files: Spark's part of the checkpoint.
        decision: the last one, of a run on these files.
    """
    number = decision.checkpoint_id
    ends = {number: decision.end_offsets, number - 1: decision.start_offsets}
    plans = {f"offsets/{batch}": offsets for batch, offsets in ends.items() if batch >= 0}
    planned = {name: _as_decided(files.read(name), offsets) for name, offsets in plans.items()}
    changed = {name: text for name, text in planned.items() if text}
    query = files.read(_METADATA)
    if query is not None and decision.query_id not in query:
        if changed or planned[f"offsets/{number}"] is None:
            return
        changed[_METADATA] = orjson.dumps({"id": decision.query_id}).decode()
    for name, text in changed.items():
        logger.warning("%s/%s: brought back; another driver has replaced it", files.address, name)
        files.replace(name, text)


def _as_decided(text: str | None, offsets: Sequence[str]) -> str | None:
    """Return a batch's file with the offsets of a decision, "" if it has them, None if there is no
    file of a known format.
    """
    if text is None or not text.startswith(f"{_VERSION}\n"):
        return None
    found = ["" if one == "-" else one for one in text.splitlines()[2:]]
    return "" if same_places(found, offsets) else _with(text, [one or "-" for one in offsets])


def _with(text: str, lines: Sequence[str]) -> str:
    """Return a batch's file with other offsets, one line for each source."""
    return "\n".join([*text.splitlines()[:2], *lines])


def forget_topics(files: BatchTexts, batch_id: int, topics: frozenset[str]) -> None:
    """Take the offsets of topics out of those of a batch, durably."""
    name = f"offsets/{batch_id}"
    text = files.read(name) or ""
    kept = [one if one == "-" else without_topics(one, topics) for one in text.splitlines()[2:]]
    files.replace(name, _with(text, kept))


def _fitted(text: str, places: int, where: str) -> str | None:
    """Return a batch's offsets for a plan with another number of places of its only source, None if
    they fit. Another set of branches reads that source in another number of places.

    Args:
        text: the batch's file in ``offsets``.
        places: of sources in the plan that continues.
        where: the file, for the error.

    Raises:
        ConfigurationError: they are of several sources.
    """
    version, _, *lines = text.splitlines()
    if version != _VERSION or len(lines) == places:
        return None  # of another format Spark itself compares the number
    if len(set(lines)) != 1:
        raise ConfigurationError(
            "The checkpoint is of a pipeline with another number of sources.",
            where=f"{where}: {len(lines)}, the pipeline has {places}",
            cause="Spark finds the offsets of a source by its place in the query",
            option="read(): call it as often as before; a source can subscribe to several topics",
        )
    return _with(text, lines[:1] * places)


def replace(path: Path, text: str) -> None:
    """Replace a batch's file, durably; a crash leaves the old one or the new one."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop works without it
    written = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with written.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)
    sync_folder(path.parent)
