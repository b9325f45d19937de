"""Beginning a checkpoint folder from a savepoint, before the first run on it. On the driver.

It refuses a savepoint that is broken, is of another application or of the other mode; state of a
source topic or a sink that the pipeline does not have; output that is newer than the savepoint,
because it would be produced twice. A person can allow the last two.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from connectors.kafka.source.offsets import merged_offsets, split_key, without_topics
from connectors.kafka.source.resting import was_read
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.kafka_source import KafkaSource
from connectors.pipeline.changed_parts import SOURCES
from connectors.pipeline.run import CONNECT_SECONDS
from connectors.pipeline.run_options import RunOptions
from connectors.wire.coordinator_wire import CoordinatorWire
from transactions.checkpoint_location import BOUND_TO, CheckpointLocation
from transactions.clock import Deadline
from transactions.decision_log import read_log
from transactions.errors import SavepointError
from transactions.log_backend import LocalFileBackend, LogBackend, sync_folder
from transactions.savepoint import (
    MANIFEST,
    Savepoint,
    copy_files,
    has_decided,
    read_savepoint,
    restored_log,
    verify_savepoint,
)

logger = logging.getLogger(__name__)

_RESTORED_FROM: Final = "restored-from"
#: A file that says: the folder's log, which lies elsewhere, was begun. If it is empty later, it was
#: lost.
_LOG_BEGUN: Final = "log-begun"
_SHOWN: Final = 5
_MODE: Final = "mode"


class EngineFiles(Protocol):
    """What only the engine knows about its own files; see `connectors.spark.checkpoint_files`."""

    def has_state(self, names: Mapping[str, Any]) -> bool:
        """Return whether files, named below the checkpoint folder, hold state of operators."""

    def fit(self, folder: Path, checkpoint_id: int, sources: int, forget: frozenset[str]) -> None:
        """Check that the files of a checkpoint are of so many sources, and remove topics from them.

        Raises:
            SavepointError: they are not, or the removal fails.
        """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FromSavepoint:
    """From where a pipeline goes on, and what it may lose or repeat by that.

    Attributes:
        place: the savepoint.
        claim: the savepoint belongs to the pipeline from now on, and is deleted when the first
            checkpoint after it is finished. Else it is copied, stays, and can be restored again.
        allow_non_restored_state: leave out the offsets of topics, and the place of sinks, that
            the pipeline does not have.
        accept_duplicates: go on even if newer output than the savepoint exists.
    """

    place: Path
    claim: bool = False
    allow_non_restored_state: bool = False
    accept_duplicates: bool = False


def accepts_duplicates(wanted: FromSavepoint | None) -> bool:
    """Return whether the restore also accepts output that is written twice."""
    return wanted is not None and wanted.accept_duplicates


def restore(wanted: FromSavepoint, run: RunOptions, engine: EngineFiles) -> Savepoint | None:
    """Make the checkpoint folder of a pipeline from a savepoint.

    Args:
        wanted: see `FromSavepoint`.
        run: of the pipeline that will run on it.
        engine: see `EngineFiles`.

    Returns:
        The savepoint; None when the folder was restored from it before. The pipeline then goes on
        where it is, so the same command line can start it again after a crash.

    Raises:
        SavepointError: see the module; nothing was changed.
        BrokerUnavailableError, AuthenticationError, MissingTopicError: it is not known whether
            newer output exists.
    """
    folder = restorable_folder(run.checkpoint)
    if _was_restored(wanted, run, folder):
        return None
    savepoint = verify_savepoint(wanted.place)
    gone = _check_fits(savepoint, wanted, run, engine)
    offsets = savepoint.decision.end_offsets
    kept = tuple(without_topics(one, gone) for one in offsets) if gone else offsets
    _refuse_newer_output(kept, wanted, run)
    # It has a name of its own: another process may restore at this very moment.
    staged = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.restoring")
    try:
        staged.mkdir(parents=True)
        copy_files(wanted.place, savepoint, staged)
        engine.fit(staged, savepoint.decision.checkpoint_id, len(run.sources), gone)
        _bind(staged, savepoint, wanted.place, run, kept)
        staged.rename(folder)  # over an empty folder, or none
        sync_folder(folder.parent)
    except OSError as error:
        raise SavepointError(
            "The checkpoint folder could not be made from the savepoint.",
            where=f"{folder}: {error}",
            cause="the disk is full or read-only; the folder is a mount point; or another process "
            "created it at the same moment",
            option=f"checkpoint={folder}: a folder that does not exist, on a disk with "
            f"{savepoint.size:,} bytes",
        ) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    if run.decision_log is not None:
        _begin_elsewhere(savepoint, _facts(folder), run, folder)
    return savepoint


def restorable_folder(checkpoint: CheckpointLocation) -> Path:
    """Return the folder of a checkpoint that a savepoint can begin.

    Raises:
        SavepointError: it lies at an address of a store.
    """
    if checkpoint.folder is None:
        raise SavepointError(
            "A savepoint is restored into a folder of a file system only.",
            where=str(checkpoint),
            cause="the restored folder appears by a rename on a file system of this machine",
            option="checkpoint: a folder. Or begin a new pipeline at this address, with another id "
            "and startingGroupId: the id of the pipeline that has stopped",
        )
    return checkpoint.folder


def _bind(
    staged: Path, savepoint: Savepoint, place: Path, run: RunOptions, end_offsets: tuple[str, ...]
) -> None:
    """Write our own files beside the engine's: the log, and where the folder comes from."""
    log_id = secrets.token_hex(4)
    remembered = {
        "savepoint_id": savepoint.savepoint_id,
        "place": str(place.absolute()),
        "log_id": log_id,
        "end_offsets": end_offsets,
    }
    folder = LocalFileBackend(staged)
    folder.put_if_absent(BOUND_TO, log_id.encode())
    folder.put_if_absent(_RESTORED_FROM, orjson.dumps(remembered))
    if run.decision_log is None:
        _begin_log(savepoint, remembered, run, LocalFileBackend(staged / "decisions"))


def _facts(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / _RESTORED_FROM
    facts: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
    return facts


def _was_restored(wanted: FromSavepoint, run: RunOptions, checkpoint: Path) -> bool:
    """Return whether the folder is the savepoint's already; begin its log if that was not done."""
    if not checkpoint.exists() or not any(checkpoint.iterdir()):
        return False
    facts = _facts(checkpoint)
    if facts.get("place") != str(wanted.place.absolute()):
        raise SavepointError(
            "A savepoint is restored into an empty checkpoint folder only.",
            where=f"{checkpoint}, restored from: {facts.get('place', '-')}",
            cause="it holds files of a pipeline, which would lose its position, or of somebody "
            "else",
            option=f"checkpoint={checkpoint}: name another folder; or leave --from-savepoint out",
        )
    there = (wanted.place / MANIFEST).exists()  # not after a claim
    if there and read_savepoint(wanted.place).savepoint_id != facts["savepoint_id"]:
        raise SavepointError(
            "The checkpoint folder was restored from another savepoint of this name.",
            where=f"{checkpoint}: {facts['savepoint_id']}",
            cause=f"somebody has put another savepoint in its place since then: {wanted.place}",
            option=f"checkpoint={checkpoint}: name another folder; or leave --from-savepoint out",
        )
    begun = run.decision_log is None or (checkpoint / _LOG_BEGUN).exists()
    if not begun:
        _begin_elsewhere(verify_savepoint(wanted.place), facts, run, checkpoint)
    log = read_log(run.log_location.backend())
    if not has_decided(log):  # its first start failed, and time has passed
        _refuse_newer_output(facts["end_offsets"], wanted, run)
    return True


def _begin_elsewhere(
    savepoint: Savepoint, facts: Mapping[str, Any], run: RunOptions, checkpoint: Path
) -> None:
    _begin_log(savepoint, facts, run, run.log_location.backend())
    LocalFileBackend(checkpoint).put_if_absent(_LOG_BEGUN, b"")


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


def _check_fits(
    savepoint: Savepoint, wanted: FromSavepoint, run: RunOptions, engine: EngineFiles
) -> frozenset[str]:
    """Return the source topics that the pipeline does not read, if it may leave them out."""
    before, now = savepoint.state.identity, run.all_identity()
    if savepoint.log.application_id != run.app_id:
        raise SavepointError(
            f"The savepoint is of the application {savepoint.log.application_id!r}.",
            where=str(wanted.place),
            cause="a pipeline cannot use the state of another pipeline",
            option=f"app_id={run.app_id}",
        )
    if before.get(_MODE, "") != now.get(_MODE, ""):
        raise SavepointError(
            "The savepoint is of a pipeline in the other mode.",
            where=f"{wanted.place}: {before.get(_MODE) or 'micro-batch'}",
            cause="micro-batches keep Spark's own files, a continuous stage has none",
            option=f"mode={now.get(_MODE) or 'micro-batch'}",
        )
    # By their offsets: how a source names its topics may change, and a pattern is no topic.
    saved = {split_key(name)[0] for name in merged_offsets(savepoint.decision.end_offsets)}
    read = {one for one in saved if was_read(before.get(SOURCES, one), one)}  # the others rested
    topics = {one for one in read if not any(each.reads_topic(one) for each in run.sources)}
    was, is_now = (orjson.loads(one["sinks"]) for one in (before, now))
    if was != is_now and engine.has_state(savepoint.files):
        raise SavepointError(
            "A pipeline with state must keep its sinks when it starts from a savepoint.",
            where=f"{wanted.place}: sinks {sorted(was)}, now {sorted(is_now)}",
            cause="Spark finds the state of an operator by its place in the plan of all branches: "
            "another branch would start with this state",
            option="[[sink]]: keep the same sinks, in the same order",
        )
    sinks = {name for name, facts in was.items() if is_now.get(name) != facts}
    if (topics or sinks) and not wanted.allow_non_restored_state:
        raise SavepointError(
            "The savepoint has state of parts that the pipeline does not have.",
            where=f"{wanted.place}: topics {sorted(topics) or '-'}, sinks {sorted(sinks) or '-'}",
            cause="the pipeline was changed; the restore would skip their state",
            option="--allow-non-restored-state skips this state",
        )
    return frozenset(topics)


def _refuse_newer_output(
    end_offsets: tuple[str, ...], wanted: FromSavepoint, run: RunOptions
) -> None:
    """The consumer group of the application says how far it has come: transactions carry that. A
    partition that the savepoint does not know will be read from 0.
    """
    saved = merged_offsets(end_offsets)
    ahead = {
        name: offset
        for source in run.sources
        for name, offset in _committed(source, run.app_id).items()
        if offset > saved.get(name, 0)
    }
    if not ahead:
        return
    ranges = [f"{name} [{saved.get(name, 0)}, {end})" for name, end in sorted(ahead.items())]
    count = sum(end - saved.get(name, 0) for name, end in ahead.items())
    what = f"{count:,} offsets behind the savepoint were already processed"
    shown = ", ".join(ranges[:_SHOWN])
    if wanted.accept_duplicates:
        logger.warning("%s; they are processed again: %s", what, shown)
        return
    raise SavepointError(
        f"{what}; their output would be produced twice.",
        where=f"group {run.app_id!r}: {shown}",
        cause=f"the pipeline continued after {wanted.place.name} was taken",
        option="--accept-duplicates; or a newer savepoint",
    )


def _committed(source: KafkaSource, group: str) -> dict[str, int]:
    names = SourcePlanner(source).partitions()
    with CoordinatorWire(source.client_settings) as wire:
        found = wire.read_markers(group, names, Deadline(CONNECT_SECONDS), stable=False)
    return {name: offset for name, (offset, _) in found.items() if offset >= 0}
