"""The checkpoint that begins with a savepoint: what is written, and in which order. On the driver.

A folder appears by a rename, complete. At an address nothing can be renamed: a file that names the
savepoint comes first, then the engine's files, then the log, and last a file that says so. A start
that is killed on the way is repeated from the first file on; without ``--from-savepoint`` it is
refused (`refuse_half_restored`).
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from connectors.pipeline.run_options import RunOptions
from transactions.checkpoint_location import BOUND_TO, CheckpointLocation
from transactions.decision_log import read_log
from transactions.errors import SavepointError, SparkOnceError
from transactions.log_backend import LocalFileBackend, LogBackend, sync_folder
from transactions.savepoint import Savepoint, restored_log
from transactions.savepoint_place import MANIFEST

logger = logging.getLogger(__name__)

#: A file that says from which savepoint a checkpoint comes.
_RESTORED_FROM: Final = "restored-from"
#: A file that says: the log was begun, which no rename has brought: it lies elsewhere, or the
#: checkpoint is at an address. If the log is empty later, it was lost.
_LOG_BEGUN: Final = "log-begun"


@dataclasses.dataclass(frozen=True, slots=True)
class SavedFiles:
    """The engine's files in a savepoint, and what the pipeline that goes on makes of them.

    Attributes:
        savepoint: its manifest.
        place: where it lies.
        sources: how many the pipeline has.
        forget: topics that the pipeline leaves out.
    """

    savepoint: Savepoint
    place: CheckpointLocation
    sources: int
    forget: frozenset[str]


class EngineFiles(Protocol):
    """What only the engine knows about its own files; see `connectors.spark.restored_files`."""

    def has_state(self, names: Mapping[str, Any]) -> bool:
        """Return whether files, named below the checkpoint, hold state of operators."""

    def has_any(self, checkpoint: CheckpointLocation) -> bool:
        """Return whether files of the engine lie in a checkpoint.

        Raises:
            SparkOnceError: the store does not answer.
        """

    def check(self, saved: SavedFiles) -> None:
        """Check that files are of so many sources, and can forget topics.

        Raises:
            SavepointError: they are not, or cannot.
            SparkOnceError: the store does not answer.
        """

    def bring(
        self, saved: SavedFiles, target: CheckpointLocation, before_each: Callable[[], None]
    ) -> None:
        """Copy checked files to a checkpoint, and remove topics from them.

        Args:
            saved: what `check` has accepted.
            target: of the checkpoint; what an earlier try has left there is overwritten.
            before_each: called before each file; what it raises ends the copying.

        Raises:
            SavepointError: a file is not as it was written.
            OSError: one could not be copied.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """What becomes a checkpoint.

    Attributes:
        saved: of a savepoint that was checked.
        run: of the pipeline that will run on it.
        engine: see `EngineFiles`.
        end_offsets: where its sources go on.
    """

    saved: SavedFiles
    run: RunOptions
    engine: EngineFiles
    end_offsets: tuple[str, ...]

    def make(self) -> None:
        """Make the checkpoint, or what an earlier start has not brought to an address.

        Raises:
            SavepointError: a file was changed, or could not be written.
            SparkOnceError: a store does not answer.
        """
        checkpoint = self.run.checkpoint
        self.engine.check(self.saved)
        try:
            if checkpoint.folder is None:
                self._fill_address()
            else:
                self._make_folder(checkpoint.folder)
        except SparkOnceError:
            raise
        except OSError as error:
            if checkpoint.folder is None:
                raise SparkOnceError(
                    "The savepoint could not be brought to the address.",
                    where=f"{checkpoint}: {error}",
                    cause="a store does not answer or refuses a file; or Hadoop has no client of "
                    "it",
                    option=f"--from-savepoint {self.saved.place}: repeat this start; it goes on",
                ) from error
            raise SavepointError(
                "The checkpoint folder could not be made from the savepoint.",
                where=f"{checkpoint}: {error}",
                cause="the disk is full or read-only; the folder is a mount point; another process "
                "created it at the same moment; or the store of the savepoint does not answer",
                option=f"checkpoint={checkpoint}: a folder that does not exist, on a disk with "
                f"{self.saved.savepoint.size:,} bytes",
            ) from error

    def _make_folder(self, folder: Path) -> None:
        # It has a name of its own: another process may restore at this very moment.
        staged = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.restoring")
        try:
            staged.mkdir(parents=True)
            self.engine.bring(self.saved, CheckpointLocation(staged), lambda: None)
            facts = self._bind(LocalFileBackend(staged))
            if self.run.decision_log is None:
                log = LocalFileBackend(staged / "decisions")
                _begin_log(self.saved.savepoint, facts, self.run, log)
            staged.rename(folder)  # over an empty folder, or none
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        if self.run.decision_log is not None:
            begin_log_elsewhere(self.saved.savepoint, facts, self.run)

    def _fill_address(self) -> None:
        checkpoint = self.run.checkpoint
        files = checkpoint.files()
        facts = self._bind(files)  # another start may have been the first
        same = facts["savepoint_id"] == self.saved.savepoint.savepoint_id
        if not same or not _is_from(facts, self.saved.place):
            raise _used(checkpoint, facts["place"])
        if files.get(BOUND_TO) != facts["log_id"].encode():
            raise _used(checkpoint, "-")
        if tuple(facts["end_offsets"]) != self.end_offsets:
            raise SavepointError(
                "The restore was begun with other topics.",
                where=f"{checkpoint}, from {self.saved.place}",
                cause="the pipeline was changed between two starts of the same restore",
                option=f"checkpoint={checkpoint}: name another address; or restore with the topics "
                "of the first start",
            )
        self.engine.bring(self.saved, checkpoint, self._check_unfinished)
        begin_log_elsewhere(self.saved.savepoint, facts, self.run)

    def _check_unfinished(self) -> None:
        """Stop when another start has finished the restore: its pipeline uses the files now."""
        if log_is_begun(self.run.checkpoint):
            raise SparkOnceError(
                "Another start has finished the restore.",
                where=f"{self.run.checkpoint}, from {self.saved.place}",
                cause="two drivers were started at the same time",
                option="stop one of them; the newest wins",
            )

    def _bind(self, files: LogBackend) -> Mapping[str, Any]:
        """Write down where the checkpoint comes from and which log is its own; return that."""
        facts: dict[str, Any] = {
            "savepoint_id": self.saved.savepoint.savepoint_id,
            "place": str(self.saved.place),
            "log_id": secrets.token_hex(4),
            "end_offsets": self.end_offsets,
        }
        if not files.put_if_absent(_RESTORED_FROM, orjson.dumps(facts)):
            facts = orjson.loads(files.get(_RESTORED_FROM) or b"{}")
        files.put_if_absent(BOUND_TO, str(facts["log_id"]).encode())
        return facts


# --- what is there ----------------------------------------------------------------------------


def facts_of(checkpoint: CheckpointLocation) -> Mapping[str, Any] | None:
    """Return where a checkpoint comes from, None if it comes from no savepoint."""
    data = checkpoint.read(_RESTORED_FROM)
    facts: dict[str, Any] | None = None if data is None else orjson.loads(data)
    return facts


def log_is_begun(checkpoint: CheckpointLocation) -> bool:
    """Return whether a log was begun that no rename has brought."""
    return checkpoint.read(_LOG_BEGUN) is not None


def was_completed(facts: Mapping[str, Any], run: RunOptions) -> bool:
    """Return whether all of a restored checkpoint is there, but perhaps a log elsewhere. If only
    the file is missing that says so, it is put.
    """
    checkpoint = run.checkpoint
    if checkpoint.folder is not None or log_is_begun(checkpoint):
        return True
    if read_log(run.log_location.backend()).log_id != facts["log_id"]:
        return False
    checkpoint.files().put_if_absent(_LOG_BEGUN, b"")  # a start was killed before that
    return True


def refuse_half_restored(checkpoint: CheckpointLocation) -> None:
    """Refuse a new log in a checkpoint that a restore has not finished: the engine's files may be
    there, and everything would be read once more.

    Raises:
        SavepointError: it has not.
    """
    facts = facts_of(checkpoint)
    if facts is not None and checkpoint.folder is None and not log_is_begun(checkpoint):
        raise SavepointError(
            "The restore from a savepoint was not finished.",
            where=f"{checkpoint}, from {facts['place']}",
            cause="the start that restored it was killed or failed",
            option=f"--from-savepoint {facts['place']}: repeat that start; or take another "
            "checkpoint",
        )


def refuse_used(checkpoint: CheckpointLocation, engine: EngineFiles) -> None:
    """Refuse a checkpoint that holds something.

    Raises:
        SavepointError: it does.
    """
    folder = checkpoint.folder
    if folder is None:
        used = checkpoint.files().list() or checkpoint.has_log() or engine.has_any(checkpoint)
    else:
        used = folder.exists() and any(folder.iterdir())
    if used:
        raise _used(checkpoint, "-")


def _used(checkpoint: CheckpointLocation, restored_from: str) -> SavepointError:
    return SavepointError(
        "A savepoint is restored into an empty checkpoint only.",
        where=f"{checkpoint}, restored from: {restored_from}",
        cause="it holds files of a pipeline, which would lose its position, of somebody else, or "
        "of a restore that was not finished",
        option=f"checkpoint={checkpoint}: name another place; or leave --from-savepoint out",
    )


def _is_from(facts: Mapping[str, Any], place: CheckpointLocation) -> bool:
    return place.is_same(CheckpointLocation(facts["place"]))


def check_same(
    facts: Mapping[str, Any], place: CheckpointLocation, checkpoint: CheckpointLocation
) -> None:
    """Check that a checkpoint comes from this savepoint.

    Raises:
        SavepointError: it does not.
    """
    if not _is_from(facts, place):
        raise _used(checkpoint, facts["place"])
    try:
        manifest = place.read(MANIFEST)
    except (OSError, SparkOnceError) as error:  # a restored checkpoint does not need it any more
        logger.warning("the savepoint of %s cannot be looked at: %s", checkpoint, error)
        return
    if manifest is None:
        return  # it was claimed
    if Savepoint.from_bytes(manifest, where=str(place)).savepoint_id != facts["savepoint_id"]:
        raise SavepointError(
            "The checkpoint was restored from another savepoint of this name.",
            where=f"{checkpoint}: {facts['savepoint_id']}",
            cause=f"somebody has put another savepoint in its place since then: {place}",
            option=f"checkpoint={checkpoint}: name another place; or leave --from-savepoint out",
        )


def begin_log_elsewhere(savepoint: Savepoint, facts: Mapping[str, Any], run: RunOptions) -> None:
    """Begin a log that no rename of the checkpoint's folder brings.

    Raises:
        SavepointError: another log lies there.
    """
    _begin_log(savepoint, facts, run, run.log_location.backend())
    run.checkpoint.files().put_if_absent(_LOG_BEGUN, b"")


def _begin_log(
    savepoint: Savepoint, remembered: Mapping[str, Any], run: RunOptions, backend: LogBackend
) -> None:
    restored_log(
        backend,
        savepoint,
        log_id=remembered["log_id"],
        identity=run.all_identity(),
        end_offsets=tuple(remembered["end_offsets"]),
    )
