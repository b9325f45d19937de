"""Which files of Spark's checkpoint folder belong to a finished batch; no session, no JVM.

Spark's files are written once, under another name first, and never changed. Batch N is finished
when commits/N is there; the state that batch N + 1 begins with is there too. (The file names:
Spark's `HDFSMetadataLog`, `StateStore`.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from connectors.kafka.source.offsets import merged_offsets, without_topics
from transactions.errors import ConfigurationError, SavepointError
from transactions.log_backend import sync_folder

#: Spark's folder in that of the driver.
SPARK = "spark"

#: A batch's file, and Hadoop's checksum of it.
_BATCH = re.compile(r"\.?(\d+)(\.crc)?")
_LOGS = ("offsets", "commits")
_VERSION = "v1"


def finished_checkpoint(spark_checkpoint: Path) -> int:
    """Return the newest batch that Spark has written down as done, -1 before the first.

    It does so after foreachBatch returned, and that returns only when all is proven committed.
    """
    folder = spark_checkpoint / "commits"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def planned_end(spark_checkpoint: Path) -> dict[str, int]:
    """Return where batch 0 ends, per ``topic-partition``, if Spark has planned it already.

    Only a checkpoint of a version that did not decide where reading begins is asked this.
    """
    with contextlib.suppress(OSError, ValueError, ConfigurationError):
        text = (spark_checkpoint / "offsets" / "0").read_text("utf-8")
        version, _, *sources = text.splitlines()
        return merged_offsets(one for one in sources if one != "-") if version == _VERSION else {}
    return {}


def batches_in(folder: Path) -> list[tuple[int, Path]]:
    """Return the files of a log of Spark's, and their checksums, with their batches."""
    paths = folder.iterdir() if folder.is_dir() else []
    found = ((_BATCH.fullmatch(path.name), path) for path in paths)
    return [(int(batch[1]), path) for batch, path in found if batch is not None]


def files_of(checkpoint: Path, batch_id: int) -> dict[str, Path]:
    """Return what the next run needs to go on behind a finished batch, by path below the driver's
    folder.

    Called while no batch runs. Spark may remove old state meanwhile, in its own time.
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
        places: of sources in the plan that goes on. Spark gives a source that two branches read
            two places, with one and the same offset. None: one for each source.
    """

    places: int | None = None

    def has_state(self, names: Mapping[str, Any]) -> bool:
        """See `EngineFiles.has_state`."""
        return any(name.startswith(f"{SPARK}/state/") for name in names)

    def fit(self, folder: Path, checkpoint_id: int, sources: int, forget: frozenset[str]) -> None:
        """See `EngineFiles.fit`. A single source gets as many places as branches read it now."""
        offsets = folder / SPARK / "offsets"
        version, _, *lines = (offsets / str(checkpoint_id)).read_text("utf-8").splitlines()
        if version != _VERSION:
            if not forget:
                return  # Spark itself compares the number of sources
            raise SavepointError(
                "Topics cannot be taken out of the offsets of this savepoint.",
                where=f"offsets/{checkpoint_id}, format {version}",
                cause="another version of Spark has written it",
                option="subscribe: keep the topics for the first run; take a savepoint of that",
            )
        places = self.places or sources
        same = len(lines) == places
        # State has its place in the plan as well, and that cannot be moved.
        stateless = not (folder / SPARK / "state").exists()
        if not same and not (stateless and sources == 1 and len(set(lines)) == 1):
            raise SavepointError(
                "The savepoint is of a pipeline with another number of sources.",
                where=f"offsets/{checkpoint_id}: {len(lines)}, the pipeline has {places}",
                cause="Spark finds the offsets of a source by its place",
                option="read(): as often as before; a source can subscribe to several topics",
            )
        if not same:  # Spark compares the number in the batch before, too
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
        """See `EngineFiles.fit`: there is nothing."""


def _rewrite(path: Path, changed: Callable[[list[str]], list[str]]) -> None:
    """Write other offsets into a batch's file, durably."""
    version, facts, *lines = path.read_text("utf-8").splitlines()
    with path.open("w", encoding="utf-8") as file:
        file.write("\n".join([version, facts, *changed(lines)]))
        file.flush()
        os.fsync(file.fileno())
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop goes on without
    sync_folder(path.parent)
