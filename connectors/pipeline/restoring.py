"""Beginning a checkpoint from a savepoint, before the first run on it. On the driver.

It refuses a savepoint that is broken, is of another application or of the other mode; state of a
source topic or a sink that the pipeline does not have; output that is newer than the savepoint,
because it would be produced twice. A person can allow the last two.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from connectors.kafka.source.offsets import merged_offsets, split_key, without_topics
from connectors.kafka.source.resting import was_read
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.kafka_source import KafkaSource
from connectors.pipeline.changed_parts import SOURCES
from connectors.pipeline.restored_checkpoint import (
    EngineFiles,
    RestoredCheckpoint,
    SavedFiles,
    begin_log_elsewhere,
    check_same,
    facts_of,
    log_is_begun,
    refuse_used,
    was_completed,
)
from connectors.pipeline.run import CONNECT_SECONDS
from connectors.pipeline.run_options import RunOptions
from connectors.wire.coordinator_wire import CoordinatorWire
from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import Deadline
from transactions.decision_log import read_log
from transactions.errors import SavepointError
from transactions.savepoint import Savepoint, has_decided
from transactions.savepoint_place import verify_savepoint

logger = logging.getLogger(__name__)

_SHOWN: Final = 5
_MODE: Final = "mode"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FromSavepoint:
    """From where a pipeline goes on, and what it may lose or repeat by that.

    Attributes:
        place: the savepoint: a folder, or the address of a store.
        claim: the savepoint belongs to the pipeline from now on, and is deleted when the first
            checkpoint after it is finished. Else it is copied, stays, and can be restored again.
        allow_non_restored_state: leave out the offsets of topics, and the place of sinks, that
            the pipeline does not have.
        accept_duplicates: go on even if newer output than the savepoint exists.
    """

    place: str | Path | CheckpointLocation
    claim: bool = False
    allow_non_restored_state: bool = False
    accept_duplicates: bool = False

    def location(self, checkpoint: CheckpointLocation) -> CheckpointLocation:
        """Return the place; in the same kind of store as the checkpoint it has the same options."""
        given = self.place
        return given if isinstance(given, CheckpointLocation) else checkpoint.beside(given)


def accepts_duplicates(wanted: FromSavepoint | None) -> bool:
    """Return whether the restore also accepts output that is written twice."""
    return wanted is not None and wanted.accept_duplicates


def restore(wanted: FromSavepoint, run: RunOptions, engine: EngineFiles) -> Savepoint | None:
    """Make the checkpoint of a pipeline from a savepoint.

    Args:
        wanted: see `FromSavepoint`.
        run: of the pipeline that will run on it.
        engine: see `EngineFiles`.

    Returns:
        The savepoint; None when the checkpoint was restored from it before. The pipeline then goes
        on where it is, so the same command line can start it again after a crash.

    Raises:
        SavepointError: see the module; nothing was changed, but perhaps files at an address.
        BrokerUnavailableError, AuthenticationError, MissingTopicError: it is not known whether
            newer output exists.
        SparkOnceError: the store of the checkpoint or of the savepoint does not answer.
    """
    place, checkpoint = wanted.location(run.checkpoint), run.checkpoint
    facts = facts_of(checkpoint)
    if facts is None:
        refuse_used(checkpoint, engine)
    else:
        check_same(facts, place, checkpoint)
        if was_completed(facts, run):
            _go_on(facts, place, wanted, run)
            return None
    savepoint = verify_savepoint(place)
    gone = _check_fits(savepoint, place, wanted, run, engine)
    offsets = savepoint.decision.end_offsets
    kept = tuple(without_topics(one, gone) for one in offsets) if gone else offsets
    _refuse_newer_output(kept, place, wanted, run)
    saved = SavedFiles(savepoint, place, sources=len(run.sources), forget=gone)
    RestoredCheckpoint(saved, run, engine, end_offsets=kept).make()
    return savepoint


def _go_on(
    facts: Mapping[str, Any], place: CheckpointLocation, wanted: FromSavepoint, run: RunOptions
) -> None:
    """Begin the log of a restored checkpoint if that was not done, and check what it may repeat."""
    if run.decision_log is not None and not log_is_begun(run.checkpoint):
        begin_log_elsewhere(verify_savepoint(place), facts, run)
    log = read_log(run.log_location.backend())
    if not has_decided(log):  # its first start failed, and time has passed
        _refuse_newer_output(facts["end_offsets"], place, wanted, run)


def _check_fits(
    savepoint: Savepoint,
    place: CheckpointLocation,
    wanted: FromSavepoint,
    run: RunOptions,
    engine: EngineFiles,
) -> frozenset[str]:
    """Return the source topics that the pipeline does not read, if it may leave them out."""
    before, now = savepoint.state.identity, run.all_identity()
    if savepoint.log.application_id != run.app_id:
        raise SavepointError(
            f"The savepoint is of the application {savepoint.log.application_id!r}.",
            where=str(place),
            cause="a pipeline cannot use the state of another pipeline",
            option=f"app_id={run.app_id}",
        )
    if before.get(_MODE, "") != now.get(_MODE, ""):
        raise SavepointError(
            "The savepoint is of a pipeline in the other mode.",
            where=f"{place}: {before.get(_MODE) or 'micro-batch'}",
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
            where=f"{place}: sinks {sorted(was)}, now {sorted(is_now)}",
            cause="Spark finds the state of an operator by its place in the plan of all branches: "
            "another branch would start with this state",
            option="[[sink]]: keep the same sinks, in the same order",
        )
    sinks = {name for name, facts in was.items() if is_now.get(name) != facts}
    if (topics or sinks) and not wanted.allow_non_restored_state:
        raise SavepointError(
            "The savepoint has state of parts that the pipeline does not have.",
            where=f"{place}: topics {sorted(topics) or '-'}, sinks {sorted(sinks) or '-'}",
            cause="the pipeline was changed; the restore would skip their state",
            option="--allow-non-restored-state skips this state",
        )
    return frozenset(topics)


def _refuse_newer_output(
    end_offsets: tuple[str, ...], place: CheckpointLocation, wanted: FromSavepoint, run: RunOptions
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
        cause=f"the pipeline continued after {place} was taken",
        option="--accept-duplicates; or a newer savepoint",
    )


def _committed(source: KafkaSource, group: str) -> dict[str, int]:
    names = SourcePlanner(source).partitions()
    with CoordinatorWire(source.client_settings) as wire:
        found = wire.read_markers(group, names, Deadline(CONNECT_SECONDS), stable=False)
    return {name: offset for name, (offset, _) in found.items() if offset >= 0}
