"""Reads topics between fixed offsets with a plain consumer; memory does not grow with the topics.

`sparkonce verify` does not use the connector's own range reader: a proof that shares code with what
it proves would share its faults.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from connectors.clients.client_errors import (
    is_about_the_group,
    is_missing,
    is_passing,
    is_refused,
    silence_in,
    translate,
)
from connectors.clients.client_log import log_settings
from connectors.clients.client_settings import admin_client, librdkafka_settings, settings_checked
from connectors.operations.identity_search import ROW, Rows
from connectors.operations.record_identity import Identify
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import (
    BrokerUnavailableError,
    DataLossError,
    MissingTopicError,
    SparkOnceError,
)

_BATCH: Final = 10_000
_POLL_S: Final = 0.1
_ASK_S: Final = 15.0
_OVERRIDES: Final[Mapping[str, Any]] = {
    "group.id": "sparkonce-verify",  # the client needs one; nothing is ever committed to it
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 32_768,
    "fetch.queue.backoff.ms": 5,
}
_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - confluent-kafka's public names begin so
_NO_OFFSET: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class Range:
    """One partition, from its first offset to the end that was fixed.

    Of the input, the records from the offset `late` on need not have come out yet.
    """

    topic: str
    partition: int
    begin: int
    end: int
    late: int = 2**63 - 1

    @property
    def name(self) -> str:
        """Return ``topic-partition``."""
        return f"{self.topic}-{self.partition}"


class TopicEnds:
    """Asks a cluster where topics begin and end.

    Args:
        kafka: client settings in Java naming.
        clock: time source.
    """

    def __init__(self, kafka: Mapping[str, str], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._where = kafka.get("bootstrap.servers", "")
        self._clock = clock
        self._kafka = kafka
        self._last_error: KafkaError | None = None
        self._admin = admin_client(kafka, error_cb=self._remember)

    def committed(self, topics: Sequence[str], deadline: Deadline) -> list[Range]:
        """Return every partition up to its last stable offset, sorted.

        Raises:
            MissingTopicError: a topic does not exist.
            BrokerUnavailableError: no answer before the deadline.
            AuthenticationError: the broker refused us.
        """
        partitions = self._partitions(topics, deadline)
        begins = self._ask(partitions, OffsetSpec.earliest(), committed=False, deadline=deadline)
        ends = self._ask(partitions, OffsetSpec.latest(), committed=True, deadline=deadline)
        return [Range(t, p, begins[t, p], max(begins[t, p], ends[t, p])) for t, p in partitions]

    def log_ends(self, topics: Sequence[str], deadline: Deadline) -> dict[str, int]:
        """Return the end of the log of each ``topic-partition``, undecided records included."""
        partitions = self._partitions(topics, deadline)
        ends = self._ask(partitions, OffsetSpec.latest(), committed=False, deadline=deadline)
        return {f"{topic}-{partition}": end for (topic, partition), end in ends.items()}

    def compacted(self, topics: Sequence[str], deadline: Deadline) -> list[str]:
        """Name the topics that are compacted, as far as the cluster tells it."""
        asked = self._admin.describe_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics],
            request_timeout=_ask_seconds(deadline),
        )
        found = []
        for resource, answer in asked.items():
            # It only explains: a user without the right to see it has the same verdict.
            with contextlib.suppress(KafkaException):
                policy = answer.result().get("cleanup.policy")
                if policy is not None and "compact" in policy.value:
                    found.append(resource.name)
        return found

    def _partitions(self, topics: Sequence[str], deadline: Deadline) -> list[tuple[str, int]]:
        try:
            # All topics are asked for: naming one could create it on the broker.
            known = self._admin.list_topics(timeout=_ask_seconds(deadline)).topics
        except KafkaException as error:
            raise self._reason(error) from error
        for topic in topics:
            if topic not in known:
                raise MissingTopicError(
                    f"The topic {topic!r} does not exist.",
                    where=self._where,
                    cause="a wrong name, another cluster, or no right to see it",
                    option=f"--input/--output={topic}",
                )
        return [(topic, p) for topic in topics for p in sorted(known[topic].partitions)]

    def _ask(
        self,
        partitions: Sequence[tuple[str, int]],
        spec: OffsetSpec,
        *,
        committed: bool,
        deadline: Deadline,
    ) -> dict[tuple[str, int], int]:
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        broker_said: KafkaException | None = None
        while True:
            answers = self._admin.list_offsets(
                {TopicPartition(*partition): spec for partition in partitions},
                isolation_level=level,
                request_timeout=_ask_seconds(deadline),
            )
            try:
                found = {(t.topic, t.partition): f.result().offset for t, f in answers.items()}
                if silent := silence_in(found.values()):
                    raise KafkaException(silent)  # noqa: TRY301 - one way to ask again
                return found
            except KafkaException as failure:
                error = failure.args[0]
                # The partition was listed just now: its leader will learn that it leads it.
                again = is_passing(error) or is_missing(error)
                if error.code() != KafkaError._TIMED_OUT:  # noqa: SLF001
                    broker_said = failure
                if deadline.expired() or not again:
                    raise self._reason(broker_said or failure) from failure
                deadline.pause(_POLL_S)
                # The old client can keep the leaders that it knows.
                self._admin = admin_client(self._kafka, error_cb=self._remember)

    def _reason(self, error: KafkaException) -> SparkOnceError:
        self._admin.poll(0)  # a refusal of credentials comes by callback; the call only times out
        return translate(self._last_error or error.args[0], self._where, self._kafka)

    def _remember(self, error: KafkaError) -> None:
        # Later connection errors say less than the refusal that caused them.
        if self._last_error is None or not is_refused(self._last_error):
            self._last_error = error


def held_back(ranges: Sequence[Range], log_ends: Mapping[str, int]) -> list[str]:
    """Name the partitions where an open transaction hides some of what was in the log.

    Args:
        ranges: what a reader of committed records sees.
        log_ends: read before the ranges: what is stable past them was decided.
    """
    return [
        f"{one.name}: readers stop at {one.end}, the log ends at {log_ends[one.name]}"
        for one in ranges
        if one.end < log_ends.get(one.name, 0)
    ]


@dataclass
class Scanned:
    """What a scan counted beside the rows that it gave."""

    records: int = 0
    late: int = 0
    unidentified: int = 0
    examples: tuple[str, ...] = ()


def scan(
    kafka: Mapping[str, str],
    ranges: Sequence[Range],
    identify: Identify,
    *,
    side: int,
    counted: Scanned,
    patience: float,
    on_progress: Callable[[int], None],
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[Rows]:
    """Yield the committed records of all ranges as rows; a row's partition indexes `ranges`.

    Args:
        kafka: client settings in Java naming.
        ranges: what to read; each is read to its end exactly.
        identify: finds a record's identity.
        side: INPUT or OUTPUT, written into every row.
        counted: filled while the rows are taken.
        patience: seconds without any progress before giving up.
        on_progress: called with the number of offsets newly passed.
        clock: time source.

    Raises:
        BrokerUnavailableError: no progress for `patience` seconds.
        DataLossError: retention removed records that were still to be read.
    """
    reading = {(r.topic, r.partition): index for index, r in enumerate(ranges) if r.begin < r.end}
    position = [item.begin for item in ranges]
    with settings_checked(kafka, "consumer"):
        consumer = Consumer(log_settings() | librdkafka_settings(kafka) | dict(_OVERRIDES))
    try:
        consumer.assign([TopicPartition(t, p, position[i]) for (t, p), i in reading.items()])
        deadline = Deadline(patience, clock)
        while reading:
            before = sum(position)
            messages = consumer.consume(_BATCH, _POLL_S)
            taken = [m for m in messages if _advance(m, reading, position, ranges, kafka)]
            if taken:
                yield _rows(taken, ranges, identify, side, counted)
            ended = [key for key, index in reading.items() if position[index] >= ranges[index].end]
            for key in ended:
                del reading[key]
                consumer.incremental_unassign([TopicPartition(*key)])
            passed = sum(position) - before
            if passed:
                on_progress(passed)
                deadline = Deadline(patience, clock)
            elif deadline.expired():
                raise _stuck(ranges[next(iter(reading.values()))], position, ranges, patience)
    finally:
        consumer.close()


def _advance(
    message: Any,
    reading: Mapping[tuple[str, int], int],
    position: list[int],
    ranges: Sequence[Range],
    kafka: Mapping[str, str],
) -> bool:
    """Move the position over a message or the end of a partition; return whether it is a record."""
    error = message.error()
    if error is not None and error.code() != _EOF:
        if error.code() in _NO_OFFSET:
            raise DataLossError(
                "Records were removed while they were being verified.",
                where=f"{message.topic()}-{message.partition()}",
                cause="retention or a deletion removed records before the reader reached them",
                option="retention.ms of the topic",
            )
        if is_about_the_group(error):
            return False
        if is_passing(error):
            return False  # the client tries again; patience bounds it
        raise translate(error, kafka.get("bootstrap.servers", ""), kafka)
    index = reading.get((message.topic(), message.partition()))
    if index is None:
        return False
    end = ranges[index].end
    if error is not None:
        # The end of a partition also counts control records, which no message shows.
        position[index] = max(position[index], min(end, message.offset()))
        return False
    position[index] = min(end, message.offset() + 1)
    return bool(message.offset() < end)


def _rows(
    messages: list[Any], ranges: Sequence[Range], identify: Identify, side: int, counted: Scanned
) -> Rows:
    index = {(item.topic, item.partition): number for number, item in enumerate(ranges)}
    hashes, partitions, offsets = [], [], []
    blake2b = hashlib.blake2b
    for message in messages:
        identity = identify(message)
        if identity is None:
            counted.unidentified += 1
            if len(counted.examples) < 10:
                place = f"{message.topic()}-{message.partition()}@{message.offset()}"
                counted.examples = (*counted.examples, place)
            continue
        hashes.append(blake2b(identity, digest_size=16).digest())
        partitions.append(index[message.topic(), message.partition()])
        offsets.append(message.offset())
    counted.records += len(messages)
    rows = np.empty(len(hashes), dtype=ROW)
    halves = np.frombuffer(b"".join(hashes), dtype="<u8").reshape(-1, 2)
    rows["high"], rows["low"] = halves[:, 0], halves[:, 1]
    rows["offset"], rows["partition"], rows["side"] = offsets, partitions, side
    rows["late"] = rows["offset"] >= np.array([one.late for one in ranges])[rows["partition"]]
    counted.late += int(rows["late"].sum())
    return rows


def _ask_seconds(deadline: Deadline) -> float:
    return max(0.1, min(_ASK_S, deadline.remaining()))


def _stuck(
    item: Range, position: list[int], ranges: Sequence[Range], patience: float
) -> BrokerUnavailableError:
    at = position[ranges.index(item)]
    return BrokerUnavailableError(
        f"No record arrived for {patience:g} s.",
        where=f"{item.name}, at offset {at} of {item.end}",
        cause="the leader of the partition is down, or the connection is too slow",
        option=f"--timeout={patience:g}",
    )
