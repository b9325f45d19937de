"""Moves a query on Spark's own Kafka source to a pipeline of ours: the checkpoint says where the
pipeline begins, and that becomes the first entry of its decision log.

The start is one entry, put if absent. So a migration is whole or not there, no second one can
change it, and the new pipeline has nothing else to learn: each driver already begins where the log
says. The old checkpoint is only read. Runs on the command line, without Spark and without a broker.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import orjson

from connectors.kafka.source.offsets import format_offsets, split_key
from connectors.options.kafka_source import KafkaSource
from connectors.options.option import checked_app_id
from connectors.pipeline.spark_checkpoint import Progress, newest_batches, read_progress
from transactions.clock import SYSTEM_CLOCK
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import ConfigurationError, FencedError
from transactions.log_entries import Start
from transactions.log_location import LogLocation

logger = logging.getLogger(__name__)

#: What becomes of a planned batch.
RUN_AGAIN: Final = "run-again"
SKIP: Final = "skip"

_SHOWN: Final = 5
_LOG_FOLDER: Final = "decisions"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OldQuery:
    """What the log keeps of the old query, as JSON in `Start.asked`.

    Attributes:
        checkpoint: its folder.
        batch: the newest batch that was done at the migration.
        planned: the newest batch that was planned.
    """

    checkpoint: str
    batch: int
    planned: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Where a new pipeline begins.

    Attributes:
        progress: of the old query.
        planned_batch: what becomes of its planned batch; None: it has none.
        begins: per source of the new pipeline, as ``topic-partition: offset``.
    """

    progress: Progress
    planned_batch: str | None
    begins: tuple[Mapping[str, int], ...]

    @property
    def start(self) -> Start:
        """The entry for the log; it also says which query it comes from."""
        old = self.progress
        query = OldQuery(checkpoint=str(old.place), batch=old.done, planned=old.planned)
        said = orjson.dumps(query).decode()
        return Start(
            sources=tuple(map(format_offsets, self.begins)), asked=(said,) * len(self.begins)
        )


def migrate(
    old: Path,
    *,
    app_id: str,
    checkpoint: Path,
    decision_log: LogLocation | None = None,
    source: KafkaSource | None = None,
    planned_batch: str | None = None,
) -> Migration:
    """Begin the checkpoint of a new pipeline where an old query has ended.

    Args:
        old: the checkpoint of the query, which has been stopped for good.
        app_id: of the new pipeline.
        checkpoint: folder of the new pipeline, without a file in it.
        decision_log: where the new pipeline keeps its log, if not in that folder.
        source: the only source of the new pipeline. None: it has the sources of the query.
        planned_batch: RUN_AGAIN or SKIP, for a query that was stopped within a batch.

    Raises:
        ConfigurationError: see `plan_migration` and `begin`; nothing was written.
        DecisionLogError: it is not known whether the start was written; a second call tells.
    """
    migration = plan_migration(old, source=source, planned_batch=planned_batch)
    begin(migration, app_id=app_id, checkpoint=checkpoint, decision_log=decision_log)
    return migration


def plan_migration(
    old: Path, *, source: KafkaSource | None = None, planned_batch: str | None = None
) -> Migration:
    """Return where a new pipeline begins; write nothing. The arguments are those of `migrate`.

    Raises:
        ConfigurationError: the checkpoint cannot be translated; its topics are not those of
            `source`; or a batch was planned, and nobody has said what becomes of it.
    """
    progress = read_progress(old)
    in_doubt = bool(progress.in_doubt)
    if in_doubt and planned_batch is None:
        raise _planned(progress)
    if planned_batch is not None and not in_doubt:
        raise ConfigurationError(
            "The query has no planned batch.",
            where=f"{old}: batch {progress.done} is done",
            cause="every batch that has offsets also has a commit",
            option=f"--planned-batch {planned_batch}: leave it out",
        )
    ends = progress.planned_ends if planned_batch == SKIP else progress.ends
    _refuse_two_places(old, ends)
    return Migration(
        progress=progress,
        planned_batch=planned_batch,
        begins=ends if source is None else (_of_one_source(old, ends, source),),
    )


def begin(
    migration: Migration, *, app_id: str, checkpoint: Path, decision_log: LogLocation | None = None
) -> None:
    """Write the start of a new pipeline. The arguments are those of `migrate`.

    Raises:
        ConfigurationError: the checkpoint folder or the log is in use.
        DecisionLogError: see `migrate`.
    """
    checked_app_id(app_id)
    refuse_used(checkpoint, decision_log)
    backend = (decision_log or LogLocation(checkpoint / _LOG_FOLDER)).backend()
    log = DecisionLog(backend, read_log(backend), application_id=app_id, clock=SYSTEM_CLOCK)
    try:
        log.begin(migration.start)
    except FencedError as error:  # another process was faster
        raise _used(checkpoint, backend.describe(), "another process began it just now") from error


def refuse_used(checkpoint: Path, decision_log: LogLocation | None = None) -> None:
    """Check that a new pipeline can begin here.

    Raises:
        ConfigurationError: the folder has files, or the log has entries.
    """
    log_folder = checkpoint / _LOG_FOLDER
    names = [path.name for path in checkpoint.iterdir()] if checkpoint.is_dir() else []
    if others := sorted({*names} - {_LOG_FOLDER}):
        raise _used(checkpoint, others[0], "a pipeline has already used this folder")
    if decision_log is None and not log_folder.is_dir():
        return  # to ask would make the folder
    backend = (decision_log or LogLocation(log_folder)).backend()
    state = read_log(backend)
    if state.tail == 0:
        return
    again = any(map(_old_query, state.asked)) and not state.run_epoch
    cause = "this command has run before" if again else "a pipeline has already used this log"
    raise _used(checkpoint, f"{backend.describe()}: {', '.join(state.start)[:300]}", cause)


def check_stopped(asked: Iterable[str]) -> None:
    """Check, before the first checkpoint of a migrated pipeline, that the old query has not gone on
    since its migration.

    Args:
        asked: what `Start.asked` says; only that of a migration is looked at.

    Raises:
        ConfigurationError: it has: its newer batches would be read twice.
    """
    for old in filter(None, map(_old_query, asked)):
        place = Path(old.checkpoint)
        if not place.is_dir():
            logger.info("%s is gone; the old query is not looked at", place)
            continue
        done, planned = newest_batches(place)
        if (done, planned) != (old.batch, old.planned):
            raise ConfigurationError(
                "The old query went on after its migration; its newer batches would be read twice.",
                where=f"{place}: batch {done} is done and batch {planned} planned, the migration "
                f"saw {old.batch} and {old.planned}",
                cause="the query still ran during `sparkonce migrate`, or was started again",
                option="stop the query; remove the checkpoint of the new pipeline, which has no "
                "output yet; then run `sparkonce migrate` again",
            )


def _old_query(said: str) -> OldQuery | None:
    try:
        return msgspec.json.decode(said, type=OldQuery)
    except msgspec.DecodeError:  # the start comes from an option: a word, or offsets
        return None


# --- sources --------------------------------------------------------------------------------------


def _refuse_two_places(old: Path, ends: Iterable[Mapping[str, int]]) -> None:
    """The sources of the new pipeline are found by their topics."""
    seen: dict[str, int] = {}
    for name, offset in (item for one in ends for item in one.items()):
        if seen.setdefault(name, offset) != offset:
            raise ConfigurationError(
                "Two sources of the query read one partition, and have come to different offsets.",
                where=f"{old}: {name} at {seen[name]} and {offset}",
                cause="the sources were asked for their ends one after the other, or have "
                "different options",
                option="start the query once with trigger(availableNow=True) while nothing is "
                "written to the topic, and migrate then",
            )


def _of_one_source(
    old: Path, ends: Iterable[Mapping[str, int]], source: KafkaSource
) -> Mapping[str, int]:
    """Return the offsets of all sources of the query for the one that reads the same topics."""
    merged = {name: offset for one in ends for name, offset in one.items()}
    topics = {split_key(name)[0] for name in merged}
    left = sorted(topic for topic in topics if not source.reads_topic(topic))
    new = sorted({*source.topics} - topics)
    some = source.assigned_names
    left += sorted(merged.keys() - some) if some and not left else []
    if left or new:
        raise ConfigurationError(
            "The job does not read what the query has read.",
            where=f"{old}: not read by the job: {', '.join(left) or '-'}; "
            f"new in the job: {', '.join(new) or '-'}",
            cause="a topic that is left out loses the records after the query; a new topic has no "
            "place in the checkpoint",
            option=f"subscribe={','.join(sorted(topics))}; later, a savepoint of the new pipeline "
            "allows other topics",
        )
    return merged


# --- errors ---------------------------------------------------------------------------------------


def _planned(progress: Progress) -> ConfigurationError:
    ranges = [f"{name} [{at}, {end})" for name, (at, end) in sorted(progress.in_doubt.items())]
    more = ", ..." if len(ranges) > _SHOWN else ""
    count = sum(end - at for at, end in progress.in_doubt.values())
    return ConfigurationError(
        f"Batch {progress.planned} was planned and has no commit: the sink of the query may have "
        "none of it, a part, or all of it.",
        where=f"{progress.place}: {count:,} offsets: {', '.join(ranges[:_SHOWN])}{more}",
        cause="the query was stopped or killed within the batch; or it still runs",
        option="best: start the query once more with trigger(availableNow=True), which finishes "
        f"the batch, and migrate then. --planned-batch {RUN_AGAIN}: the new pipeline reads the "
        "batch; what the old sink has of it is there twice. "
        f"--planned-batch {SKIP}: it does not; what the old sink lacks of it is lost",
    )


def _used(checkpoint: Path, where: str, cause: str) -> ConfigurationError:
    return ConfigurationError(
        "A migration needs an empty checkpoint.",
        where=f"{checkpoint}: {where}",
        cause=f"{cause}; a second start would read records twice or leave them out",
        option=f"checkpoint={checkpoint}: start the pipeline, or name another folder",
    )
