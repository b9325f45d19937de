"""The engine's part of a checkpoint that begins with a savepoint. On the driver, before a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from connectors.pipeline.restored_checkpoint import SavedFiles
from connectors.spark.checkpoint_files import SPARK, bring_back, fit_offsets, forget_topics
from connectors.spark.hadoop_copier import copier_between
from connectors.spark.query_files import files_at
from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import SavepointError
from transactions.savepoint import broken
from transactions.savepoint_place import FILES, copy_files

_VERSION = "v1"


@dataclasses.dataclass(frozen=True, slots=True)
class SparkFiles:
    """Spark's part of a checkpoint; see `connectors.pipeline.restored_checkpoint.EngineFiles`.

    Attributes:
        spark: the driver's session; it copies what is not in a folder.
        places: the number of sources in the plan that continues. If two branches read one source,
            Spark gives it two places with the same offset. None: one place for each source.
    """

    spark: SparkSession
    places: int | None = None

    def has_state(self, names: Mapping[str, Any]) -> bool:
        """See `EngineFiles.has_state`."""
        return any(name.startswith(f"{SPARK}/state/") for name in names)

    def has_any(self, checkpoint: CheckpointLocation) -> bool:
        """See `EngineFiles.has_any`."""
        return files_at(self.spark, checkpoint).has_any()

    def check(self, saved: SavedFiles) -> None:
        """See `EngineFiles.check`. A single source gets one place per branch that reads it now."""
        name, where = f"offsets/{saved.savepoint.decision.checkpoint_id}", saved.place.part(FILES)
        text = files_at(self.spark, where).read(name)
        if text is None:
            raise broken(f"{where}, {SPARK}/{name}", "the file is missing")
        version, _, *lines = text.splitlines()
        if version != _VERSION:
            if not saved.forget:
                return  # Spark itself compares the number of sources
            raise SavepointError(
                "Topics cannot be removed from the offsets of this savepoint.",
                where=f"{name}, format {version}",
                cause="another version of Spark has written it",
                option="subscribe: keep the topics for the first run; then take a new savepoint",
            )
        places = self.places or saved.sources
        # State also has a place in the plan, and that place cannot change.
        may_change = saved.sources == 1 and not self.has_state(saved.savepoint.files)
        if len(lines) != places and not (may_change and len(set(lines)) == 1):
            raise SavepointError(
                "The savepoint is of a pipeline with another number of sources.",
                where=f"{name}: {len(lines)}, the pipeline has {places}",
                cause="Spark finds the offsets of a source by its place",
                option="read(): call it as often as before; a source can subscribe to several "
                "topics",
            )

    def bring(
        self, saved: SavedFiles, target: CheckpointLocation, before_each: Callable[[], None]
    ) -> None:
        """See `EngineFiles.bring`."""
        copier = copier_between(self.spark, saved.place, target)
        copy_files(saved.place, saved.savepoint, target, copier, before_each)
        files, number = files_at(self.spark, target), saved.savepoint.decision.checkpoint_id
        bring_back(files, saved.savepoint.decision)  # the savepoint copied what was there
        fit_offsets(files, number, self.places or saved.sources)
        if saved.forget:
            forget_topics(files, number, saved.forget)


class NoFiles:
    """A continuous stage keeps nothing beside the log; see `EngineFiles`."""

    def has_state(self, names: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """See `EngineFiles.has_state`."""
        return False

    def has_any(self, _checkpoint: CheckpointLocation) -> bool:
        """See `EngineFiles.has_any`."""
        return False

    def check(self, *_: object) -> None:
        """See `EngineFiles.check`: there is nothing to check."""

    def bring(self, *_: object) -> None:
        """See `EngineFiles.bring`: there is nothing to bring."""
