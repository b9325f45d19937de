"""How far a query on Spark's own Kafka source has come, read from its checkpoint. It only reads.

    offsets/N   where batch N ends; written before the batch runs
    commits/N   batch N is done; written after it

Reading goes on at the end of the newest batch in ``commits``. A newer batch in ``offsets`` is only
*planned*: its sink may have written nothing of it, a part, or all of it. The checkpoint does not
say which. (The formats: Spark's `OffsetSeqLog`. v1 has a line for each source, v2 has
``name:offsets``; ``-`` means that a source has read nothing.)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

from connectors.kafka.source.offsets import INITIAL_OFFSETS, TOPIC_IDS, flatten
from transactions.checkpoint_location import BOUND_TO
from transactions.errors import ConfigurationError

_VERSIONS: Final = ("v1", "v2")
_NOTHING_READ: Final = "-"
_STATE_IDS: Final = '"stateUniqueIds"'
_BY_HAND: Final = (
    "give the new pipeline a startingOffsets or a startingTimestamp of your own; what the old "
    "query has read after that place is read twice"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a query has come.

    Attributes:
        place: its checkpoint.
        done: the newest batch in ``commits``.
        planned: the newest batch in ``offsets``: `done`, or the next one.
        ends: per source of the query, where batch `done` ends, as ``topic-partition: offset``.
        planned_ends: the same for batch `planned`.
    """

    place: Path
    done: int
    planned: int
    ends: tuple[Mapping[str, int], ...]
    planned_ends: tuple[Mapping[str, int], ...]

    @property
    def in_doubt(self) -> Mapping[str, tuple[int, int]]:
        """The offsets of a planned batch that is not done, per partition: first one and end."""
        found: dict[str, tuple[int, int]] = {}
        for begin, end in zip(self.ends, self.planned_ends, strict=True):
            # A partition that came later is read from its first offset.
            found |= {
                name: (begin.get(name, 0), last)
                for name, last in end.items()
                if last != begin.get(name, 0)
            }
        return found


def newest_batches(place: Path) -> tuple[int, int]:
    """Return the newest batch that is done and the newest one that is planned, -1 for none."""
    return max(batches_of(place / "commits"), default=-1), max(
        batches_of(place / "offsets"), default=-1
    )


def read_progress(place: Path) -> Progress:
    """Read how far a query has come.

    Raises:
        ConfigurationError: the folder is not such a checkpoint, or it has something that cannot be
            translated: state, another source, a batch that does not show.
    """
    _refuse_other_folders(place)
    _refuse_state(place)
    done, planned = newest_batches(place)
    if done < 0:
        raise ConfigurationError(
            "The query has not finished a batch yet.",
            where=f"{place}: no file in commits",
            cause="it was never started, or it was stopped within its first batch",
            option="start the query once with trigger(availableNow=True), which finishes a batch; "
            "or start the new pipeline with the startingOffsets of the query",
        )
    _refuse_gaps(place, done, planned)
    _refuse_real_time(place, done)
    ends = _ends(place, done)
    planned_ends = ends if planned == done else _ends(place, planned)
    if len(ends) != len(planned_ends):
        raise _torn(
            f"{place}/offsets/{planned}", "it has another number of sources than the batch before"
        )
    return Progress(place=place, done=done, planned=planned, ends=ends, planned_ends=planned_ends)


def batches_of(folder: Path) -> list[int]:
    """Return the batches of one of Spark's logs; a file that is being written has another name."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [int(name) for name in names if name.isdecimal()]


# --- what is refused ------------------------------------------------------------------------------


def _refuse_other_folders(place: Path) -> None:
    if (place / BOUND_TO).exists() or (place.parent / BOUND_TO).exists():
        raise ConfigurationError(
            "The checkpoint belongs to a pipeline of sparkonce.",
            where=str(place),
            cause="only the checkpoint of a query on Spark's own Kafka source needs a migration",
            option="sparkonce savepoint take, and sparkonce run --from-savepoint",
        )
    if not (place / "offsets").is_dir():
        raise ConfigurationError(
            "There is no checkpoint of a Spark query here.",
            where=f"{place}: no folder offsets",
            cause="the path is wrong; the query has never started; or the checkpoint lies in an "
            "object store or HDFS",
            option="CHECKPOINT: the checkpointLocation of the query; copy a remote one to a local "
            "folder first",
        )


def _refuse_state(place: Path) -> None:
    state = place / "state"
    if not os.path.lexists(state):
        return
    if not any(files for _, _, files in os.walk(state, onerror=_unread_state, followlinks=True)):
        return
    raise ConfigurationError(
        "The query keeps state, and state cannot be translated.",
        where=str(state),
        cause="an aggregation, a join of streams, dropDuplicates or a stateful function; Spark "
        "finds its state by the place of the operator in the plan of that query only",
        option="start the new pipeline with a checkpoint of its own and a startingTimestamp before "
        "the oldest open window, so that it builds the state again; write to a new topic, and "
        "move its readers there when the state is complete",
    )


def _unread_state(error: OSError) -> None:
    raise ConfigurationError(
        "The state of the query cannot be read.",
        where=str(error.filename),
        cause=f"{error.strerror}; nobody knows whether the query keeps state, which would be lost",
        option="CHECKPOINT: a folder that the user of this command may read as a whole",
    ) from error


def _refuse_gaps(place: Path, done: int, planned: int) -> None:
    """Spark writes each batch down, but for asynchronous progress tracking. With that, batches may
    have run of which the checkpoint knows nothing.
    """
    offsets, commits = batches_of(place / "offsets"), batches_of(place / "commits")
    if done not in offsets:
        raise _torn(f"{place}/offsets/{done}", "the file is missing, and commits has the batch")
    before = done - 1
    gap = any(min(found) < before and before not in found for found in (offsets, commits))
    if not gap and planned in (done, done + 1):
        return
    raise ConfigurationError(
        "The checkpoint does not have every batch of its query.",
        where=f"{place}: newest commit {done}, newest plan {planned}"
        + (f", nothing of batch {before}" if gap else ""),
        cause="the query uses asyncProgressTrackingEnabled, or files were deleted or not copied: "
        "batches after the newest commit may have been written",
        option="asyncProgressTrackingCheckpointIntervalMs=0 until the query has finished two "
        "batches; then start it once with asyncProgressTrackingEnabled=false, and migrate",
    )


def _refuse_real_time(place: Path, done: int) -> None:
    """In real-time mode Spark writes offsets/N after batch N, so a batch that was stopped does not
    show. Its commits have the format v2 without ids of state (seen with Spark 4.3.0); other queries
    have v1, or v2 with them.
    """
    where = f"{place}/commits/{done}"
    version, *facts = _text(where).split("\n")
    if version not in _VERSIONS:
        raise _torn(where, "it is not complete")
    if version == "v2" and _STATE_IDS not in "".join(facts):
        raise ConfigurationError(
            "The query ran in Spark's real-time mode.",
            where=where,
            cause="its records go to the sink before anything of their batch is in the checkpoint; "
            "how far the sink has come does not show",
            option="start the query once with trigger(availableNow=True) in place of "
            "trigger(realTime=...), and migrate then; what the sink has of the last batch is "
            "there twice",
        )


def _torn(where: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        "A file of the checkpoint cannot be used.",
        where=where,
        cause=f"{why}: a power cut, a full disk, or an incomplete copy",
        option=f"start the query once: if it reads the checkpoint, migrate then; else {_BY_HAND}",
    )


# --- one file -------------------------------------------------------------------------------------


def _ends(place: Path, batch: int) -> tuple[Mapping[str, int], ...]:
    where = f"{place}/offsets/{batch}"
    return ends_in(_text(where), where)


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _torn(path, str(error)) from error


def offsets_of_batch(place: Path, batch: int) -> tuple[str, ...]:
    """Return where a batch ends, per source in the order of the plan, as Spark wrote it; ""
    if a source has read nothing yet. The sources can be of any kind.

    Raises:
        ConfigurationError: the file is missing, torn, or of a newer format.
    """
    ends = offsets_by_source(place, batch).values()
    return tuple("" if one == _NOTHING_READ else one for one in ends)


def offsets_by_source(place: Path, batch: int) -> Mapping[str, str]:
    """Return where a batch ends, as Spark wrote it, by the names that the sources have in the
    checkpoint: their places, where the query gives no names. In the order of the plan.

    Raises:
        ConfigurationError: see `offsets_of_batch`.
    """
    where = f"{place}/offsets/{batch}"
    return _sources_in(_text(where), where)


def ends_in(text: str, where: str) -> tuple[Mapping[str, int], ...]:
    """Return where a batch ends, per source in the order of the plan.

    Args:
        text: a file of ``offsets``.
        where: its path, for errors.

    Raises:
        ConfigurationError: see `read_progress`.
    """
    sources = _sources_in(text, where)
    return tuple(
        _end(one, f"{where}, source {number}") for number, one in enumerate(sources.values())
    )


def _sources_in(text: str, where: str) -> dict[str, str]:
    version, *lines = text.split("\n")
    if version not in _VERSIONS and version.strip():
        raise ConfigurationError(
            f"The checkpoint has the format {version[:20]!r}; this version reads v1 and v2.",
            where=where,
            cause="a newer Spark has written it, or it is no checkpoint of Spark",
            option=f"upgrade sparkonce; or {_BY_HAND}",
        )
    if len(lines) < 2:
        raise _torn(where, "it is not complete")
    facts, *sources = lines
    if not facts.strip():
        raise ConfigurationError(
            "The query ran in Spark's continuous processing.",
            where=f"{where}: {' '.join(sources)[:300]}",
            cause="records of an epoch go to the sink before the epoch is in the checkpoint; how "
            "far the sink has come does not show",
            option="startingOffsets: give these offsets to the new pipeline; what the old sink has "
            "of later epochs is there twice",
        )
    if version == "v2":
        return _in_order(sources, where)
    return {str(number): one for number, one in enumerate(sources)}


def _in_order(sources: list[str], where: str) -> dict[str, str]:
    """Return the offsets of the format v2 by the names of their sources: Spark writes them in any
    order. A source without a name has its place as one.
    """
    named = {}
    for line in sources:
        name, colon, offsets = line.partition(":")
        if not colon:
            raise _torn(where, "a source has no name")
        named[name] = offsets
    order = sorted(named, key=lambda one: (len(one) if one.isdecimal() else 0, one))
    return {name: named[name] for name in order}


def _end(text: str, where: str) -> Mapping[str, int]:
    if text == _NOTHING_READ:
        raise ConfigurationError(
            "A source of the query has read nothing yet, so it has no place to go on.",
            where=where,
            cause="the query was stopped before the source gave its first offsets",
            option="start the query once with trigger(availableNow=True), and migrate then",
        )
    try:
        nested = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _torn(where, f"it is not JSON ({error})") from error
    try:
        found = flatten(nested)
    except ConfigurationError as error:
        raise ConfigurationError(
            "The query has a source that is not Spark's Kafka source.",
            where=f"{where}: {text[:200]}",
            cause=f"only offsets of Kafka can be translated ({error.cause})",
            option=f"write a pipeline for the Kafka source alone; {_BY_HAND}",
        ) from error
    if {TOPIC_IDS, INITIAL_OFFSETS} & nested.keys():
        raise ConfigurationError(
            "The query reads with the source kafka-exactly-once, not with Spark's own.",
            where=where,
            cause="its offsets hold topic ids or initial offsets, which Spark's own do not",
            option='format("kafka-exactly-once"): keep the query, or give the new pipeline '
            "its offsets as startingOffsets",
        )
    return found
