"""The driver's side of the source: which offsets a batch reads. No Spark in here.

One batch takes three steps: `starting_offsets` (new pipelines only) -> `next_end` (the existing
records) -> `plan` (the ranges, one Spark task each).

All offsets are the flat ``{"topic-partition": offset}``. A partition that appears later starts at 0
and never at "its earliest offset now": a replay must plan the same range as the first try.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

from confluent_kafka import TopicCollection, Uuid
from confluent_kafka.admin import AclOperation, AdminClient, OffsetSpec, TopicDescription

from connectors.kafka.source import batch_ranges, offset_errors, offsets
from connectors.kafka.source.listed_offsets import listed_offsets
from connectors.kafka.source.offsets import OffsetRange, partition_key
from connectors.kafka.source.resting import read_now
from connectors.kafka.source.source_questions import SourceQuestions
from connectors.kafka.source.starting_group import committed_offsets, nothing_committed
from connectors.options.kafka_source import KafkaSource
from connectors.options.read_place import EARLIEST, ERROR, LATEST, Place
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import MissingTopicError

Answer = TypeVar("Answer")

#: How long we trust a list of partitions; a new partition is seen after this time at most.
METADATA_AGE_S: Final = 1.0
#: How long the leader of a described partition may not know it.
_NEW_LEADER_S: Final = 10.0
_NEW_LEADER_PAUSE_S: Final = 0.1
_GOING_BACK: Final = "the topic lost its last records or was created again"
#: Topics that a pattern never means, as in a Java consumer (`exclude.internal.topics`).
_KAFKAS_OWN: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)
#: The answer of a broker that knows no topic ids.
_NO_ID: Final = str(Uuid(0, 0))

logger = logging.getLogger(__name__)


class SourcePlanner:
    """Plans the batches of one source; lives as long as the query, in the driver or beside it.

    It connects at the first question, so making one is free. One question costs one round trip to
    the brokers (1.1 ms measured), for any number of partitions.
    """

    def __init__(self, source: KafkaSource, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.source = source
        self._clock = clock
        self._questions = SourceQuestions(source, clock)
        self._partitions: list[str] = []
        self._topic_ids: dict[str, str] = {}
        self._told: set[str] = set()
        self._partitions_until: Deadline | None = None

    def starting_offsets(self, default: str = LATEST) -> dict[str, int]:
        """Return where a new pipeline begins, with no -1 and -2 left in it.

        Args:
            default: the value if the user gave no `startingOffsets`.

        Raises:
            MissingTopicError: a topic does not exist.
            ConfigurationError: the JSON does not name exactly the existing partitions.
            DataLossError: an offset of the JSON is not in its partition.
            ConfigurationError: a partition has no record of the time or later, and the
                strategy is error.
        """
        place = self.source.start or Place("startingOffsets", default)
        return self._resolve(place, self._wanted(place))

    def latest_offsets(self, isolation: str | None = None) -> dict[str, int]:
        """Return the end of every partition: with read_committed its last stable offset.

        Args:
            isolation: replaces the source's own level.
        """
        level = isolation or self.source.isolation_level
        return self._list(self.partitions(), OffsetSpec.latest(), level)

    def earliest_offsets(self) -> dict[str, int]:
        """Return the first offset that every partition still holds."""
        return self._list(self.partitions(), OffsetSpec.earliest(), "read_uncommitted")

    def next_end(
        self,
        start: Mapping[str, int],
        ceiling: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Return what exists for the next batch, which begins at `start`; if equal, nothing is new.

        Args:
            start: the end of the batch before.
            ceiling: offsets that no batch may pass (Trigger.AvailableNow); a later run reads
                partitions that are not in it.

        Raises:
            MissingTopicError: a topic was deleted and `failOnDataLoss` is set.
            DataLossError: a partition ends before `start` and `failOnDataLoss` is set.
        """
        latest = self._known_latest(start)
        if ceiling is not None:
            offset_errors.refuse_lower_than(ceiling, latest)
            latest = {key: min(end, ceiling[key]) for key, end in latest.items() if key in ceiling}
        # A deleted partition keeps its offset: if it is made anew, it counts as truncated.
        latest = {**start, **latest}
        self._refuse_going_back(start, latest)
        return latest

    def plan(
        self, start: Mapping[str, int], end: Mapping[str, int], *, again: bool = False
    ) -> list[OffsetRange]:
        """Return the ranges of a batch, none for equal offsets (then no broker is asked).

        Args:
            start: where it begins.
            end: where it ends.
            again: an earlier run planned it; if what is missing counted, no start would get on.

        Raises:
            DataLossError: a range begins before what its partition still holds, or ends before it
                begins, and `failOnDataLoss` is set.
            MissingTopicError: a topic was deleted, and `failOnDataLoss` is set.
            PhaseOneError: a topic was deleted, and the next run may find it again.
        """
        back = [key for key, last in end.items() if last < start.get(key, 0)]
        if back:
            names = ", ".join(f"{key} ends at {end[key]}" for key in sorted(back))
            self.lost(f"{names}, before the batch begins", start, end, cause=_GOING_BACK)
        ranges = batch_ranges.plan_ranges(start, end)
        if not ranges:
            return []
        ranges, gone = batch_ranges.of_partitions(ranges, self.partitions_there())
        if gone and not (again or self.source.fail_on_data_loss):
            raise offset_errors.while_missing(gone, "the topic was deleted")
        if gone:
            self.lost(f"no longer there: {gone}", start, end)
        try:
            keys = [each.key for each in ranges]
            earliest = self._list(keys, OffsetSpec.earliest(), "read_uncommitted")
        except MissingTopicError as error:
            self._missing(error)
            raise offset_errors.while_missing(error.where, error.cause) from error
        for each in ranges:
            if each.start < earliest[each.key]:
                self.lost(f"{each}; the partition begins at {earliest[each.key]}", start, end)
        left = batch_ranges.not_before(earliest, ranges)
        most = self.source.max_records_per_partition
        return batch_ranges.split_ranges(left, self.source.min_partitions, most)

    def plan_batch(self) -> list[OffsetRange]:
        """Return the ranges of a batch read: from `startingOffsets` to `endingOffsets`, once.

        Raises:
            ConfigurationError: the read of a partition would begin after its end.
            SparkOnceError: see `starting_offsets` and `plan`.
        """
        start = self.starting_offsets(EARLIEST)
        place = self.source.end or Place("endingOffsets", LATEST)
        wanted = self._wanted(place)
        end = self._resolve(place, wanted)
        for key, last in end.items():
            if start.get(key, 0) <= last:
                continue
            if wanted[key] != offsets.LATEST:
                raise offset_errors.backwards(key, start[key], last, self.source)
            end[key] = start[key]  # an open transaction is at its end: nothing is readable yet
        return self.plan(start, end)

    def cluster_id(self) -> str:
        """Return the id of the source's cluster; "" if the brokers do not tell it."""
        found = self._questions.ask(
            "the cluster's id",
            lambda admin, timeout: {"": admin.describe_cluster(request_timeout=timeout)},
        )
        return found[""].cluster_id or ""

    def partitions(self) -> list[str]:
        """Return all partitions of the topics, as "topic-partition"; cached for a second."""
        if self._partitions_until is None or self._partitions_until.expired():
            described = self._described()
            self._partitions = self._read(described)
            self._check_assigned(self._partitions)
            self._topic_ids = _ids_of(described)
            self._partitions_until = Deadline(METADATA_AGE_S, self._clock)
        return self._partitions

    def topic_ids(self) -> Mapping[str, str]:
        """Return Kafka's topic ids, if the broker gives them; cached for a second.

        A deleted topic has no id; the other methods report the deletion.
        """
        try:
            self.partitions()
        except MissingTopicError:
            self._topic_ids = _ids_of(self._what_is_left())
        return self._topic_ids

    def rights(self) -> dict[str, list[AclOperation]]:
        """Return what we may do with each topic that is read, as far as its brokers tell it."""
        topics = sorted({offsets.split_key(key)[0] for key in self.partitions()})
        described = self._describe(topics, include_authorized_operations=True) if topics else {}
        told = {topic: each.authorized_operations for topic, each in described.items()}
        return {topic: rights for topic, rights in told.items() if rights}

    def partitions_there(self) -> list[str]:
        """Return the partitions of the topics that exist; one that is missing may come back.

        Raises:
            MissingTopicError: a topic was deleted, and `failOnDataLoss` is set.
        """
        try:
            return self.partitions()
        except MissingTopicError as error:
            self._missing(error)
            return self._read(self._what_is_left())

    def _read(self, described: Mapping[str, TopicDescription]) -> list[str]:
        """Return the partitions that are read: of whole topics all, and those of `assign`."""
        some = self.source.assigned
        return [
            partition_key(topic, partition.id)
            for topic, description in described.items()
            for partition in description.partitions
            if not some or partition.id in some[topic]
        ]

    def _check_assigned(self, there: Sequence[str]) -> None:
        if gone := self.source.assigned_names - {*there}:
            raise MissingTopicError(
                "A partition to read does not exist.",
                where=", ".join(sorted(gone)),
                cause="the topic has fewer partitions, or it was made anew with fewer",
                option=f"assign={self.source.assign}",
            )

    def _described(self) -> Mapping[str, TopicDescription]:
        if self.source.subscribe_pattern is None:
            return self._describe(self.source.topics)
        matching = self._matching()
        try:
            return self._describe(matching) if matching else {}
        except MissingTopicError:  # it was deleted since it was listed
            return self._what_is_left()

    def _matching(self) -> list[str]:
        """Return the existing topics whose names the pattern matches, but for Kafka's own."""

        def names(admin: AdminClient, timeout: float) -> dict[str, Future[list[str]]]:
            found: Future[list[str]] = Future()
            found.set_result([*admin.list_topics(timeout=timeout).topics])
            return {"": found}

        where = f"subscribePattern={self.source.subscribe_pattern}"
        everything = self._questions.ask(where, names)[""]
        return sorted({*filter(self.source.reads_topic, everything)} - _KAFKAS_OWN)

    def _what_is_left(self) -> Mapping[str, TopicDescription]:
        """Describe each existing topic; in one request for all, a missing topic is an error."""
        left: dict[str, TopicDescription] = {}
        for topic in self.source.topics or self._matching():
            with contextlib.suppress(MissingTopicError):
                left |= self._describe([topic])
        return left

    def _describe(self, topics: Sequence[str], **asked: bool) -> Mapping[str, TopicDescription]:
        return self._questions.ask(
            ", ".join(topics),
            lambda admin, timeout: admin.describe_topics(
                TopicCollection(list(topics)), request_timeout=timeout, **asked
            ),
        )

    def _known_latest(self, start: Mapping[str, int]) -> dict[str, int]:
        try:
            latest = self.latest_offsets()
        except MissingTopicError:
            # The list of partitions may be a second old: refresh it before raising.
            self._partitions_until = None
            there = self.partitions_there()  # for others a client waits for a leader
            latest = self._list(there, OffsetSpec.latest(), self.source.isolation_level)
        gone = read_now(self.source, start.keys() - latest.keys())
        if gone:
            self.lost(f"no longer there: {', '.join(sorted(gone))}", start, latest)
        return latest

    def _refuse_going_back(self, start: Mapping[str, int], latest: dict[str, int]) -> None:
        """Handle an end before the start: an open transaction there, or a new topic."""
        back = [key for key, end in latest.items() if end < start.get(key, 0)]
        if not back:
            return
        high = self._list(back, OffsetSpec.latest(), "read_uncommitted")
        for key in back:
            if high[key] >= start[key]:
                latest[key] = start[key]
            else:
                self.lost(f"{key} ends at {high[key]}", start, latest)

    def _wanted(self, place: Place) -> dict[str, int]:
        """Return the offset that a user wants in each partition, with -1 and -2 still in it."""
        there = self.partitions()
        if place.is_group:
            return self._in_group(place, there)
        if not place.is_offsets:
            return self._at_times(place, there)
        if not place.is_json:
            word = offsets.EARLIEST if place.said == EARLIEST else offsets.LATEST
            return dict.fromkeys(there, word)
        wanted = offsets.parse_wanted(place.said, there)
        if set(there) != set(wanted):
            raise offset_errors.other_partitions(place, wanted, there)
        return wanted

    def _in_group(self, place: Place, there: Sequence[str]) -> dict[str, int]:
        """Return the offsets of a group, and the fallback's where the group has none."""
        committed = committed_offsets(self.source, place.said, there, self._questions.deadline())
        wanted = {key: committed[key] for key in there if key in committed}
        if missing := set(there) - set(wanted):
            fallback = self.source.start_without_group
            if fallback is None:
                raise nothing_committed(place, missing)
            wanted = {**self._wanted(fallback), **wanted}
        return wanted

    def _at_times(self, place: Place, there: Sequence[str]) -> dict[str, int]:
        """Return the first offset of a time or later, latest where there is none."""
        if place.is_json:
            times = offsets.parse_offsets(place.said)
            if set(there) != set(times):
                raise offset_errors.other_partitions(place, times, there)
        else:
            times = dict.fromkeys(there, int(place.said))
        # An open transaction does not move the place where a read begins; it may hide the end.
        level = self.source.isolation_level if place.is_end else "read_uncommitted"
        found = self._first_since(times, level)
        unmatched = [key for key, at in found.items() if at < 0]
        if unmatched and place.unmatched == ERROR:
            raise offset_errors.no_record_since(place, {key: times[key] for key in unmatched})
        return {key: at if at >= 0 else offsets.LATEST for key, at in found.items()}

    def _resolve(self, place: Place, wanted: Mapping[str, int]) -> dict[str, int]:
        """Put offsets in the place of -1 and -2; check the others against what exists."""
        words = set(wanted.values())
        if words <= {offsets.EARLIEST}:
            return self._list(wanted, OffsetSpec.earliest(), "read_uncommitted")
        latest = self._list(wanted, OffsetSpec.latest(), self.source.isolation_level)
        if words <= {offsets.LATEST}:
            return latest
        low = self._list(wanted, OffsetSpec.earliest(), "read_uncommitted")
        high = self._list(wanted, OffsetSpec.latest(), "read_uncommitted")
        resolved: dict[str, int] = {}
        for key, offset in wanted.items():
            if offset in (offsets.EARLIEST, offsets.LATEST):
                resolved[key] = low[key] if offset == offsets.EARLIEST else latest[key]
                continue
            if not low[key] <= offset <= high[key]:
                self.lost(f"{place.option}: {key} holds [{low[key]}, {high[key]})", wanted, high)
            resolved[key] = min(max(offset, low[key]), high[key])
        return resolved

    def _list(self, keys: Iterable[str], spec: OffsetSpec, isolation: str) -> dict[str, int]:
        """Send one ListOffsets for all partitions."""
        return self._offsets_of(dict.fromkeys(keys, spec), isolation)

    def _first_since(self, times: Mapping[str, int], isolation: str) -> dict[str, int]:
        """Return the first offset of a time or later in each partition, -1 where there is none."""
        specs = {key: OffsetSpec.for_timestamp(time) for key, time in times.items()}
        return self._offsets_of(specs, isolation)

    def _offsets_of(self, specs: Mapping[str, OffsetSpec], isolation: str) -> dict[str, int]:
        """Ask again while brokers describe the partitions, but a leader does not know them: the
        news of a new partition reaches its leader later than other brokers.
        """
        deadline = Deadline(_NEW_LEADER_S, self._clock)
        while True:
            try:
                return listed_offsets(self._questions, specs, isolation)
            except MissingTopicError:
                topics = sorted({offsets.split_key(key)[0] for key in specs})
                if deadline.expired() or not {*specs} <= {*self._read(self._describe(topics))}:
                    raise
                deadline.pause(_NEW_LEADER_PAUSE_S)

    def lost(
        self,
        where: str,
        start: Mapping[str, int],
        end: Mapping[str, int],
        *,
        cause: str = offset_errors.GONE,
    ) -> None:
        """Raise, or log once and continue with the existing records, as `failOnDataLoss` says.

        Raises:
            DataLossError: it is set.
        """
        if self.source.fail_on_data_loss:
            raise offset_errors.data_loss(where, start, end, "failOnDataLoss=true", cause)
        self._say_once(where, cause)

    def _missing(self, error: MissingTopicError) -> None:
        """Raise it, or log once and continue without the topic, as `failOnDataLoss` says.

        Raises:
            MissingTopicError: it is set.
        """
        if self.source.fail_on_data_loss:
            raise error
        self._say_once(error.where, error.cause)

    def _say_once(self, where: str, cause: str) -> None:
        if where not in self._told:
            self._told.add(where)
            logger.warning("failOnDataLoss=false, reading continues: %s (%s)", where, cause)


def _ids_of(described: Mapping[str, TopicDescription]) -> dict[str, str]:
    found = {topic: str(each.topic_id) for topic, each in described.items()}
    return {topic: name for topic, name in found.items() if name != _NO_ID}
