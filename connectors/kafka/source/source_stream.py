"""What a stream reads, batch by batch: offsets in Spark's form, always of the same topics.

A topic that was deleted and made anew is another topic of the same name. Its offsets begin again,
and once it has grown past the old ones, only Kafka's topic id shows the difference. The decision
log keeps the ids with which a pipeline began. Offsets contain an id only for a topic that was made
anew since then, if the pipeline went on with `failOnDataLoss=false`. So offsets look like those of
Spark's own source, and still identify the topic for each batch and for its replay.

A query without a driver has no decision log, so its offsets contain all ids. Those that an older
version wrote have none: then the next batch keeps the ids that are seen first. Spark stores the end
of a batch before it runs the batch, but never the place where a query begins: it asks for that
again after a crash in batch 0, and `latest` has moved meanwhile. So the end of the first batch
contains its start as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from connectors.kafka.source.batch_ranges import limit_offsets
from connectors.kafka.source.batch_wait import BatchWait
from connectors.kafka.source.offset_errors import data_loss
from connectors.kafka.source.offsets import (
    INITIAL_OFFSETS,
    OffsetRange,
    flatten,
    nest,
    split_key,
    topic_ids_in,
)
from connectors.kafka.source.resting import read_now
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.read_place import LATEST
from transactions.errors import ConfigurationError, MissingTopicError, PhaseOneError

_MADE_ANEW: Final = "the topic was deleted and created again: it is another topic of the same name"

Nested = dict[str, Any]


class SourceStream:
    """Plans the batches of one source; lives as long as the query, in the driver or beside it.

    Args:
        planner: sends the questions to the brokers.
        start: where the source begins, from the decision log. Without it, `initial` determines it,
            the end of the first batch keeps it, and the first ids that are seen count; the end of
            each batch keeps them.
    """

    def __init__(self, planner: SourcePlanner, start: str = "") -> None:
        decided = orjson.loads(start or "{}")
        self._planner = planner
        self._has_pattern = planner.source.subscribe_pattern is not None
        self._wait = BatchWait(planner.source)
        offsets = flatten(decided)
        # A pattern may have begun with no topic at all.
        is_decided = bool(offsets) or (bool(start) and self._has_pattern)
        self._is_decided = is_decided
        self._has_driver = bool(start)
        #: The log does not know the ids of topics that a pattern finds later.
        self._keeps_ids = self._has_pattern or not self._has_driver
        self._initial = offsets if is_decided else None
        self._known = topic_ids_in(decided)
        self._ceiling: dict[str, int] | None = None
        self._ceiling_ids: Mapping[str, str] = {}
        self._planned: Nested = {}

    def initial(self) -> Nested:
        """Return where a new query begins: the same place at every call.

        Raises:
            SparkOnceError: see `SourcePlanner.starting_offsets`.
        """
        if self._initial is None:
            self._initial = self._planner.starting_offsets(LATEST)
            self._ids_now()
        initial = nest(self._initial, self.ids_in({}))
        return initial if self._is_decided else {**initial, INITIAL_OFFSETS: initial}

    def latest(self) -> Nested | None:
        """Return the latest offsets, for people; None while a topic is missing.

        What that means is for `next_end` to say: it looks again which topics exist, and knows the
        offsets that are lost with one.
        """
        try:
            return nest(self._planner.latest_offsets())
        except MissingTopicError:
            return None

    def stop_at_latest(self) -> None:
        """Never go beyond the offsets that exist now (Trigger.AvailableNow)."""
        self._ceiling = self._planner.next_end({})
        self._ceiling_ids = dict(self._ids_now())

    def go_on(self, start: Nested) -> Nested:
        """Return where to continue after `start`: at `start` itself. Only the partitions of a topic
        that was made anew are left out: they begin at 0, as any partition that comes later.

        Raises:
            DataLossError: a topic was made anew, and `failOnDataLoss` is set.
        """
        was, now = self._ids(start), self._ids_now()
        anew = {topic: found for topic, found in now.items() if was.get(topic, found) != found}
        if not anew:
            return start
        flat = flatten(start)
        begin = {key: at for key, at in flat.items() if split_key(key)[0] not in anew}
        self._planner.lost(_told(anew, was), flat, begin, cause=_MADE_ANEW)
        return nest(begin, {**topic_ids_in(start), **anew})

    def next_end(self, start: Nested, limit: int | None = None) -> Nested:
        """Return the end of the next batch, which begins at `start`; if equal, no batch is started.

        Args:
            start: the end of the batch before.
            limit: most offsets to take, None for all existing ones.

        Raises:
            MissingTopicError, DataLossError: see `SourcePlanner.next_end` and `go_on`.
            ConfigurationError: `start` is of another source.
        """
        self._refuse_other_topics(start)
        begin = self.go_on(start)
        if self._ceiling is not None:
            now = self._ids_now()
            then = self._ceiling_ids
            anew = {topic: now[topic] for topic in now if then.get(topic, now[topic]) != now[topic]}
            if anew:
                option = "trigger=availableNow (in any case)"
                where = _told(anew, self._ceiling_ids)
                raise data_loss(where, flatten(start), self._ceiling, option, _MADE_ANEW)
            # A pattern misses what a broker does not list yet: that ends at what exists now.
            if missed := flatten(begin).keys() - self._ceiling.keys():
                ends = self._planner.next_end({})
                self._ceiling |= {key: ends[key] for key in missed & ends.keys()}
        lacks_ids = self._lacks_ids(start)
        if lacks_ids and begin is not start:
            # A replay must know both ids. So this batch keeps the old one, and has no records.
            return self._ends_at(start, flatten(start), self.ids_in(start))
        flat, ids = flatten(begin), self.ids_in(begin)
        end = self._planner.next_end(flat, self._ceiling)
        # A run that reads to a ceiling would take a batch that waits for its end. Ids do not wait:
        # until they are kept, a topic that is made anew is not seen after a restart.
        if self._ceiling is None and self._wait.holds_back(flat, end) and not lacks_ids:
            return start
        if limit is not None:
            end = limit_offsets(flat, end, limit)
        return self._ends_at(start, end, ids)

    def _ends_at(self, start: Nested, end: Mapping[str, int], ids: Mapping[str, str]) -> Nested:
        self._planned = nest(end, ids)
        # Spark compares text: if nothing is new, the end of the first batch comes back as it was.
        if _is_initial(start) or (INITIAL_OFFSETS in start and end == flatten(start)):
            self._planned[INITIAL_OFFSETS] = start[INITIAL_OFFSETS]
        return self._planned

    def ids_in(self, start: Nested) -> dict[str, str]:
        """Return the topic ids that the offsets after `start` contain: those in `start`. Without a
        driver or with a pattern these are the ids of all topics: a log knows only those of the
        start.
        """
        known = self._known if self._keeps_ids else {}
        return {**known, **topic_ids_in(start)}

    def plan(self, start: Nested, end: Nested) -> list[OffsetRange]:
        """Return the ranges of a batch, none for equal offsets (then no broker is asked).

        Raises:
            DataLossError: see `SourcePlanner.plan`; or the offsets are of a topic that is gone.
            ConfigurationError: `start` is of another source; or nobody knows where batch 0 begins.
        """
        self._refuse_other_topics(start)
        if _is_initial(start):
            if INITIAL_OFFSETS not in end:
                raise _unknown_start(end)
            start = end[INITIAL_OFFSETS]
        will = self._ids(end)
        was = {**({} if self._has_driver else will), **self._ids(start)}  # see `_lacks_ids`
        begin = {key: at for key, at in flatten(start).items() if _same(key, was, will)}
        last = flatten(end)
        if all(at == begin.get(key, 0) for key, at in last.items()):
            return []
        self._refuse_left_out(begin, last)
        now = self._ids_now()
        gone = {topic: now[topic] for topic in now if will.get(topic, now[topic]) != now[topic]}
        if gone:
            self._planner.lost(_told(gone, will), begin, last, cause=_MADE_ANEW)
            last = {key: at for key, at in last.items() if split_key(key)[0] not in gone}
        return self._planner.plan(begin, last, again=end != self._planned)

    def partitions(self, start: Nested) -> list[str]:
        """Return all existing partitions of the topics that `start` is of. A topic that is missing
        while reading goes on has none: it may come back.

        Raises:
            MissingTopicError: a topic was deleted, and `failOnDataLoss` is set.
            DataLossError, PhaseOneError: a topic was made anew; the latter if a next run may go on.
        """
        found = self._planner.partitions_there()
        # A pattern asks for no topic by its name, so a deleted one is only missing.
        source, missing = self._planner.source, flatten(start).keys() - {*found}
        if gone := read_now(source, missing):
            self._planner.lost(f"no longer there: {', '.join(sorted(gone))}", flatten(start), {})
        if self.go_on(start) != start:
            raise PhaseOneError(
                "A topic was deleted and created again while it was read; the next run begins with "
                "the new topic.",
                where=", ".join(found),
                cause=_MADE_ANEW,
                option="failOnDataLoss=false",
            )
        return found

    def _refuse_left_out(self, begin: Mapping[str, int], end: Mapping[str, int]) -> None:
        """Refuse records of a partition that is not read any more: an older run, which was fenced
        meanwhile, has planned them. They would count as read, and nobody would have written them.
        """
        source = self._planner.source
        moved = {key for key, at in end.items() if at > begin.get(key, 0)}
        if planned := moved - read_now(source, moved):
            raise PhaseOneError(
                "A batch was planned that reads a partition which the pipeline has left out.",
                where=", ".join(sorted(planned)),
                cause="an older run of the pipeline, which reads it, planned the batch before it "
                "noticed that it was fenced; the next start plans again",
                option=f"reads {', '.join(source.reads)}",
            )

    def _refuse_other_topics(self, start: Nested) -> None:
        """Refuse offsets of another source: Spark gives them to the sources of a query by place.
        With `failOnDataLoss=false` all of this source would be read from its beginning.
        """
        source = self._planner.source
        topics = {split_key(key)[0] for key in flatten(start)}
        if topics and not any(map(source.reads_topic, topics)):
            raise ConfigurationError(
                "The checkpoint has the offsets of another source.",
                where=f"offsets of {', '.join(sorted(topics))}; this source reads "
                f"{', '.join(source.reads)}",
                cause="the sources of the query have changed places, or their topics were changed",
                option="subscribe, assign, subscribePattern: the same sources in the same order, "
                "or another checkpoint",
            )

    def _lacks_ids(self, offsets: Nested) -> bool:
        """Return whether an older version wrote these offsets, for a query without a driver: their
        topics have ids, and the offsets do not contain them. They are of the first ids seen.
        """
        topics = {split_key(key)[0] for key in flatten(offsets)} & self._known.keys()
        return not self._has_driver and not topics <= topic_ids_in(offsets).keys()

    def _ids(self, offsets: Nested) -> dict[str, str]:
        return {**self._known, **topic_ids_in(offsets)}

    def _ids_now(self) -> Mapping[str, str]:
        now = self._planner.topic_ids()
        self._known = {**now, **self._known}
        return now


def _is_initial(offsets: Nested) -> bool:
    """Return whether a first batch begins here; after a first batch without records this is true
    once more, and does no harm.
    """
    return INITIAL_OFFSETS in offsets and flatten(offsets) == flatten(offsets[INITIAL_OFFSETS])


def _unknown_start(end: Nested) -> ConfigurationError:
    """Another source has planned batch 0: Spark's own keeps its start in a file that is not for us.
    What `latest` finds now lies behind records of that batch, which would be left out in silence.
    """
    return ConfigurationError(
        "The first batch of this checkpoint does not say where it begins.",
        where=f"batch 0, planned up to {', '.join(f'{k}: {n}' for k, n in flatten(end).items())}",
        cause="another source has planned it, such as Spark's own, and did not finish it",
        option="format: start the query once more with its old source and sink and "
        "trigger(availableNow=True), then change both; or take another checkpoint",
    )


def _same(key: str, was: Mapping[str, str], will: Mapping[str, str]) -> bool:
    topic, _ = split_key(key)
    return was.get(topic) == will.get(topic)


def _told(anew: Mapping[str, str], was: Mapping[str, str]) -> str:
    ids = (f"{topic} has the id {anew[topic]}, it had {was.get(topic, '-')}" for topic in anew)
    return ", ".join(sorted(ids))
