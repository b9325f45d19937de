"""Reads a topic to its end with a plain client; never counts behind an open transaction.

An open transaction holds back the last stable offset. A read_committed reader stops there without
any error, and all records behind it look lost (or, worse, a loss looks like a slow reader). So
every read first asserts that both isolation levels end at the same offset (scenario S11).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

_POLL_S = 0.1
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client has no other name for it
#: Errors of a partition that is new or whose leader has just changed: not all brokers know it yet.
_MOVING = frozenset(
    {
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
_MOVING_S = 30.0


@dataclass(frozen=True, slots=True)
class Record:
    """One record as the broker returned it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def header(self, name: str) -> bytes | None:
        """Return the last header of that name, None if there is none."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


class OpenTransaction(AssertionError):  # noqa: N818 - a finding, named as reports name it
    """Readers of committed records stop before the end of a partition: nothing may be counted."""

    def __init__(self, topic: str, partition: int, committed_end: int, log_end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.committed_end = committed_end
        self.log_end = log_end
        super().__init__(
            f"open transaction on {topic}-{partition}: read_committed ends at {committed_end}, "
            f"the log at {log_end}"
        )


class IncompleteRead(AssertionError):  # noqa: N818 - a finding too
    """The reader got neither its end offset nor an answer of the broker in time."""


def read_committed(bootstrap: str, topic: str, *, timeout: float = 30.0) -> list[Record]:
    """Return every committed record of the topic, ordered by partition and offset.

    Raises:
        OpenTransaction: an undecided transaction still hides records after `timeout` seconds.
        IncompleteRead: the end was not reached within `timeout` seconds.
    """
    ends = assert_no_open_transaction(bootstrap, topic, timeout=timeout)
    return _read(bootstrap, topic, "read_committed", ends, timeout)


def read_uncommitted(bootstrap: str, topic: str, *, timeout: float = 30.0) -> list[Record]:
    """Return every record of the topic, including those of open and aborted transactions."""
    ends = _end_offsets(bootstrap, topic, IsolationLevel.READ_UNCOMMITTED)
    return _read(bootstrap, topic, "read_uncommitted", ends, timeout)


def assert_no_open_transaction(
    bootstrap: str, topic: str, *, timeout: float = 30.0
) -> dict[int, int]:
    """Wait until both isolation levels end at one offset in every partition; return the ends.

    The wait is for markers under way: they follow the end of a transaction by milliseconds.

    Raises:
        OpenTransaction: they still differ after `timeout` seconds.
    """
    give_up = time.monotonic() + timeout
    while True:
        # The log's end comes first: a marker between the two questions then only makes the second
        # answer larger, never equal by accident.
        log = _end_offsets(bootstrap, topic, IsolationLevel.READ_UNCOMMITTED)
        committed = _end_offsets(bootstrap, topic, IsolationLevel.READ_COMMITTED)
        held = [p for p in sorted(log) if committed[p] < log[p]]
        if not held:
            return log
        if time.monotonic() >= give_up:
            raise OpenTransaction(topic, held[0], committed[held[0]], log[held[0]])
        time.sleep(0.05)


@dataclass
class Follower:
    """A read_committed consumer that reads *during* a run (scenario K1), from the beginning.

    Use it as a context manager; `until` waits for a condition on the records seen so far, `drain`
    reads on to the end and returns all records, `drain_stable` does so while a transaction is open.
    """

    bootstrap: str
    topic: str
    records: list[Record] = field(default_factory=list)

    def __enter__(self) -> Follower:
        partitions = _partitions(self.bootstrap, self.topic)
        self._positions = dict.fromkeys(partitions, 0)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._follow, args=(partitions,), name=f"follower-{self.topic}", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def until(self, condition: Callable[[list[Record]], bool], *, timeout: float = 30.0) -> None:
        """Wait until the condition holds for the records seen so far."""
        give_up = time.monotonic() + timeout
        while not condition(self.records):
            self._check(give_up, "the condition never held")
            time.sleep(0.02)

    def drain(self, *, timeout: float = 30.0) -> list[Record]:
        """Read on to the end of the topic; return all records in the order they were seen."""
        give_up = time.monotonic() + timeout
        ends = assert_no_open_transaction(self.bootstrap, self.topic, timeout=timeout)
        return self._read_to(ends, give_up)

    def drain_stable(self, *, timeout: float = 30.0) -> list[Record]:
        """Read on to where the first open transaction begins now, or to the end; see `drain`."""
        give_up = time.monotonic() + timeout
        ends = _end_offsets(self.bootstrap, self.topic, IsolationLevel.READ_COMMITTED)
        return self._read_to(ends, give_up)

    def _read_to(self, ends: dict[int, int], give_up: float) -> list[Record]:
        while any(self._positions[p] < end for p, end in ends.items()):
            self._check(give_up, f"at {self._positions}, ends {ends}")
            time.sleep(0.02)
        return list(self.records)

    def check(self) -> None:
        """Raise if the reader has failed: what came since then is not in `records`.

        Raises:
            IncompleteRead: it has.
        """
        if self._failure is not None:
            raise IncompleteRead(
                f"follower of {self.topic} failed: {self._failure!r}"
            ) from self._failure

    def _check(self, give_up: float, what: str) -> None:
        self.check()
        if time.monotonic() >= give_up:
            raise IncompleteRead(f"follower of {self.topic}: {what}; {len(self.records)} seen")

    def _follow(self, partitions: list[int]) -> None:
        consumer = _consumer(self.bootstrap, "read_committed")
        try:
            consumer.assign([TopicPartition(self.topic, p, OFFSET_BEGINNING) for p in partitions])
            while not self._stop.is_set():
                for message in consumer.consume(5000, _POLL_S):
                    if _is_data(message):
                        self.records.append(_record(message))
                        self._positions[message.partition()] = message.offset() + 1
                    elif _is_end(message):
                        self._positions[message.partition()] = message.offset()
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            self._failure = error
        finally:
            consumer.close()


def _read(
    bootstrap: str, topic: str, isolation: str, ends: dict[int, int], timeout: float
) -> list[Record]:
    """Read each partition until a record or its end-of-partition event reaches the end offset."""
    records: list[Record] = []
    begins = _offsets(bootstrap, topic, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
    unfinished = {p for p, end in ends.items() if begins[p] < end}
    if not unfinished:
        return records
    consumer = _consumer(bootstrap, isolation)
    give_up = time.monotonic() + timeout
    try:
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in sorted(unfinished)])
        while unfinished:
            if time.monotonic() >= give_up:
                raise IncompleteRead(
                    f"{topic}: partitions {sorted(unfinished)} not read to {ends} in {timeout} s"
                )
            for message in consumer.consume(5000, _POLL_S):
                partition = message.partition()
                if _is_data(message):
                    if message.offset() < ends[partition]:
                        records.append(_record(message))
                    if message.offset() >= ends[partition] - 1:
                        unfinished.discard(partition)
                elif _is_end(message) and message.offset() >= ends[partition]:
                    # A control record can also be the end of a partition, and no message shows it.
                    unfinished.discard(partition)
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _is_data(message: Message) -> bool:
    """Return whether it is a record and not an event; raise an error that cannot heal."""
    error = message.error()
    if error is None or error.code() == _END:
        return error is None
    raise KafkaException(error)


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == _END


def _record(message: Message) -> Record:
    return Record(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "auditor",  # required by the client, never used: nothing is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "auto.offset.reset": "error",
        "log_level": 3,
    }
    return Consumer(settings)


def _end_offsets(bootstrap: str, topic: str, isolation: IsolationLevel) -> dict[int, int]:
    return _offsets(bootstrap, topic, OffsetSpec.latest(), isolation)


def _offsets(
    bootstrap: str, topic: str, spec: OffsetSpec, isolation: IsolationLevel
) -> dict[int, int]:
    give_up = time.monotonic() + _MOVING_S
    while True:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
        asked = {TopicPartition(topic, p): spec for p in _partitions(bootstrap, topic, admin)}
        answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=10.0)
        try:
            return {asked.partition: future.result().offset for asked, future in answers.items()}
        except KafkaException as error:
            if error.args[0].code() not in _MOVING or time.monotonic() >= give_up:
                raise
            time.sleep(0.1)


def _partitions(bootstrap: str, topic: str, admin: AdminClient | None = None) -> list[int]:
    admin = admin or AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    # The request asks for all topics: naming one could create it on the broker.
    topics = admin.list_topics(timeout=10.0).topics
    if topic not in topics:
        raise LookupError(f"there is no topic {topic}")
    return sorted(topics[topic].partitions)
