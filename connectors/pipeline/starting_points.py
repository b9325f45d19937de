"""Where the sources of a pipeline begin: it is looked up once, and written into the decision log.

`latest` is a new place at every look, and `earliest` moves with retention. The engine asks for the
start more than once, and again after a crash. So the start is a decision, made before anything
reads. On the driver, at its start, in both modes.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson

from connectors.kafka.source.offsets import (
    TOPIC_IDS,
    format_offsets,
    merged_offsets,
    parse_offsets,
    split_key,
    topic_ids_in,
)
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.kafka_source import KafkaSource
from connectors.options.read_place import LATEST
from connectors.pipeline.migration import check_stopped
from transactions.decision_log import DecisionLog
from transactions.errors import IdentityMismatchError
from transactions.log_entries import Start
from transactions.log_state import LogState

logger = logging.getLogger(__name__)

_SHOWN: Final = 300
_NOTHING: Mapping[str, int] = {}


def decide_start(
    log: DecisionLog,
    sources: Sequence[KafkaSource],
    *,
    begun: bool,
    planned: Mapping[str, int] = _NOTHING,
    planner_of: Callable[[KafkaSource], SourcePlanner] = SourcePlanner,
) -> tuple[str, ...]:
    """Return where each source begins, with the ids of its topics, as the log keeps it.

    It looks up what the log does not know yet, and appends that before it returns.

    Args:
        log: of this run.
        sources: in the order in which the driver reads them.
        begun: a checkpoint of this pipeline is finished. Its sources go on from there, and only the
            ids of topics can be missing (the log is of an older version).
        planned: where the first checkpoint ends, if an older version has planned it; the checkpoint
            begins there at the latest.
        planner_of: asks the brokers of a source.

    Raises:
        IdentityMismatchError: the start of other sources was decided.
        ConfigurationError: see `connectors.pipeline.migration.check_stopped`.
        SparkOnceError: see `SourcePlanner.starting_offsets` and `DecisionLog.begin`.
    """
    if log.state.decision is None:
        check_stopped(log.state.asked)
    texts, asked = [], []
    for number, source in enumerate(sources):
        decided, said = _decided(log.state, number, source, begun)
        offsets, ids = parse_offsets(decided), topic_ids_in(orjson.loads(decided))
        # A pattern may have begun with no topic at all.
        missing = not begun and not offsets and not (said and source.subscribe_pattern)
        # A migration knows no ids: Spark's own source has none.
        begun_with = set() if begun else {split_key(name)[0] for name in offsets}
        if missing or not ids.keys() >= {*source.topics, *begun_with}:
            planner = planner_of(source)
            if missing:
                there = planner.starting_offsets()
                offsets = {key: min(at, planned.get(key, at)) for key, at in there.items()}
                said = LATEST if source.start is None else source.start.told
            decided = format_offsets(offsets, {**planner.topic_ids(), **ids})
        _tell_unused(source, said, offsets)
        texts.append(decided)
        asked.append(said)
    if tuple(texts) != log.state.start:
        log.begin(Start(sources=tuple(texts), asked=tuple(asked)))
    return tuple(texts)


def _tell_unused(source: KafkaSource, said: str, offsets: Mapping[str, int]) -> None:
    """Log that the start was changed after it was decided, if it was."""
    now = source.start
    if not said or now is None or _plain(now.told) == _plain(said):
        return
    logger.warning(
        "%s is not used for %s: the decision log says that the reading began at "
        "%s%s. To start again, use another checkpoint, with another app_id or --accept-duplicates",
        now,
        ",".join(source.reads),
        said,
        f" ({format_offsets(offsets)[:_SHOWN]})" if offsets else "",
    )


def _plain(said: str) -> object:
    try:
        return orjson.loads(said)
    except orjson.JSONDecodeError:  # a word, or text that was not checked yet
        return said


def _decided(log: LogState, number: int, source: KafkaSource, begun: bool) -> tuple[str, str]:
    """Return what the log says of a source (at its place, or at another place with the same
    topics), and the option that it came from, "" if that is not known. Topics that were left out
    meanwhile stay in it: the ids tell whether they were made anew when they come back.
    """
    topics, start = set(source.topics), log.start
    rest = _in_decision(log) - topics if begun else set()
    pattern = source.subscribe_pattern is not None
    some = source.assigned_names
    known = list(itertools.zip_longest(start, log.asked, fillvalue=""))
    for text, said in (*known[number : number + 1], *known):
        nested = orjson.loads(text)
        named = (nested.keys() - {TOPIC_IDS}) | topic_ids_in(nested).keys()
        same = topics == named - rest
        if pattern or (same and (not some or parse_offsets(text).keys() <= some)):
            return text, said
    if start and not begun:
        raise IdentityMismatchError(
            "The sources of the pipeline have changed since its start.",
            where=f"began with {', '.join(start)[:500]}",
            cause="the topics were divided differently between the sources, and the first "
            "checkpoint is not finished",
            option=f"assign={source.assign}" if some else f"subscribe={','.join(source.topics)}",
        )
    # Topics have changed; what is known of those that stay, or rest, is kept.
    ids: dict[str, str] = {}
    began: dict[str, int] = {}
    for text in (*start[number : number + 1], *start):
        found = topic_ids_in(orjson.loads(text))
        ids = {**{topic: found[topic] for topic in found.keys() & (topics | rest)}, **ids}
        offsets = parse_offsets(text).items()
        began = {k: at for k, at in offsets if split_key(k)[0] in topics | rest} | began
    return format_offsets(began, ids), ""


def _in_decision(log: LogState) -> set[str]:
    """Return the topics whose offsets the last decision has."""
    ends = () if log.decision is None else log.decision.end_offsets
    return {split_key(name)[0] for name in merged_offsets(ends)}
