"""Which files of Spark's checkpoint folder belong to a finished batch; no session, no JVM.

Spark writes each file once, under another name first, and never changes it. Batch N is finished
when commits/N exists. Then the state with which batch N + 1 begins exists too. (The file names:
Spark's `HDFSMetadataLog`, `StateStore`.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from connectors.kafka.source.offsets import merged_offsets, without_topics
from connectors.pipeline.spark_checkpoint import batches_of
from transactions.errors import ConfigurationError, SavepointError
from transactions.log_backend import sync_folder

#: Spark's folder inside the driver's folder.
SPARK = "spark"

#: A batch's file, and Hadoop's checksum of that file.
_BATCH = re.compile(r"\.?(\d+)(\.crc)?")
_LOGS = ("offsets", "commits")
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


def files_of(checkpoint: Path, batch_id: int) -> dict[str, Path]:
    """Return the files that the next run needs to continue after a finished batch. The keys are
    paths below the driver's folder.

    Call it while no batch runs. Spark may still remove old state at any time.
    """
    found: dict[str, Path] = {}
    for path in (checkpoint / SPARK).rglob("*"):
        if not path.is_file() or ".tmp" in path.name:
            continue
        below = path.relative_to(checkpoint)
        if below.parts[1] in _LOGS:
            batch = _BATCH.fullmatch(path.name)
            if batch is None or int(batch[1]) > batch_id:
                continue
        found[below.as_posix()] = path
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class SparkFiles:
    """Spark's part of a checkpoint folder; see `connectors.pipeline.restoring.EngineFiles`.

    Attributes:
        places: the number of sources in the plan that continues. If two branches read one source,
            Spark gives it two places with the same offset. None: one place for each source.
    """

    places: int | None = None

    def has_state(self, names: Mapping[str, Any]) -> bool:
        """See `EngineFiles.has_state`."""
        return any(name.startswith(f"{SPARK}/state/") for name in names)

    def fit(self, folder: Path, checkpoint_id: int, sources: int, forget: frozenset[str]) -> None:
        """See `EngineFiles.fit`. A single source gets one place per branch that reads it now."""
        offsets = folder / SPARK / "offsets"
        version, _, *lines = (offsets / str(checkpoint_id)).read_text("utf-8").splitlines()
        if version != _VERSION:
            if not forget:
                return  # Spark itself compares the number of sources
            raise SavepointError(
                "Topics cannot be removed from the offsets of this savepoint.",
                where=f"offsets/{checkpoint_id}, format {version}",
                cause="another version of Spark has written it",
                option="subscribe: keep the topics for the first run; then take a new savepoint",
            )
        places = self.places or sources
        same = len(lines) == places
        # State also has a place in the plan, and that place cannot change.
        stateless = not (folder / SPARK / "state").exists()
        if not same and not (stateless and sources == 1 and len(set(lines)) == 1):
            raise SavepointError(
                "The savepoint is of a pipeline with another number of sources.",
                where=f"offsets/{checkpoint_id}: {len(lines)}, the pipeline has {places}",
                cause="Spark finds the offsets of a source by its place",
                option="read(): call it as often as before; a source can subscribe to several "
                "topics",
            )
        if not same:  # Spark also compares the number in the batch before
            for path in (offsets / str(number) for number in (checkpoint_id - 1, checkpoint_id)):
                if path.exists():
                    _rewrite(path, lambda old: old[:1] * places)
        if forget:
            _rewrite(
                offsets / str(checkpoint_id),
                lambda old: [one if one == "-" else without_topics(one, forget) for one in old],
            )


class NoFiles:
    """A continuous stage keeps nothing beside the log; see `EngineFiles`."""

    def has_state(self, names: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """See `EngineFiles.has_state`."""
        return False

    def fit(self, *_: object) -> None:
        """See `EngineFiles.fit`: there is nothing to change."""


def fit_offsets(
    batch_id: int,
    places: int,
    address: str,
    read: Callable[[str], str | None],
    write: Callable[[str, str], object],
) -> None:
    """Fit the offsets of a batch, and of the one before, to a plan; Spark compares both.

    Args:
        batch_id: the last finished batch; -1 for none.
        places: of sources in the plan that continues.
        address: of Spark's part of the checkpoint, for the error.
        read: returns the text of a file below the address, None if there is none.
        write: replaces such a file, durably.

    Raises:
        ConfigurationError: they are of several sources.
    """
    for name in (f"offsets/{number}" for number in range(max(batch_id - 1, 0), batch_id + 1)):
        text = read(name)
        changed = text and _fitted(text, places, f"{address}/{name}")
        if changed:
            write(name, changed)


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
    version, facts, *lines = text.splitlines()
    if version != _VERSION or len(lines) == places:
        return None  # of another format Spark itself compares the number
    if len(set(lines)) != 1:
        raise ConfigurationError(
            "The checkpoint is of a pipeline with another number of sources.",
            where=f"{where}: {len(lines)}, the pipeline has {places}",
            cause="Spark finds the offsets of a source by its place in the query",
            option="read(): call it as often as before; a source can subscribe to several topics",
        )
    return "\n".join([version, facts, *lines[:1] * places])


def _rewrite(path: Path, changed: Callable[[list[str]], list[str]]) -> None:
    """Replace the offsets in a batch's file, durably."""
    version, facts, *lines = path.read_text("utf-8").splitlines()
    replace(path, "\n".join([version, facts, *changed(lines)]))


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
