"""The demo's independent readers: read_committed consumers that know nothing about the job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from connectors.clients.client_errors import is_end_of_partition
from connectors.clients.client_log import log_settings
from connectors.clients.client_settings import librdkafka_settings
from connectors.operations.bounded_scan import TopicEnds, held_back
from connectors.wire.coordinator_wire import CoordinatorWire
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import BrokerUnavailableError

_PATIENCE_S: Final = 60.0
_MARKERS_S: Final = 10.0
_POLL_S: Final = 0.1
_BATCH: Final = 10_000


class VisibleCounter:
    """Counts the records that a read_committed consumer of the topic sees while the job runs."""

    def __init__(self, bootstrap: str, topic: str, *, on_records: Callable[[int], None]) -> None:
        self._on_records = on_records
        self._stopping = threading.Event()
        self._consumer = _consumer(bootstrap)
        partitions = self._consumer.list_topics(topic, _PATIENCE_S).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        self._thread = threading.Thread(target=self._count, name="visible", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop counting."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _count(self) -> None:
        while not self._stopping.is_set():
            # A short wait and a small batch, because the demo shows when records become visible.
            messages = self._consumer.consume(2_000, 0.05)
            seen = sum(message.error() is None for message in messages)
            if seen:
                self._on_records(seen)


def read_committed(
    bootstrap: str, topic: str, clock: Clock = SYSTEM_CLOCK
) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of every committed record, each partition in its own order.

    Raises:
        BrokerUnavailableError: no record arrived for a minute.
    """
    kafka = {"bootstrap.servers": bootstrap}
    ranges = TopicEnds(kafka).committed([topic], Deadline(_PATIENCE_S, clock))
    unread = {item.partition: item.end for item in ranges if item.begin < item.end}
    starts = {item.partition: item.begin for item in ranges}
    consumer = _consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, p, starts[p]) for p in unread])
        deadline = Deadline(_PATIENCE_S, clock)
        while unread:
            messages = consumer.consume(_BATCH, _POLL_S)
            for message in messages:
                error = message.error()
                if error is not None and not is_end_of_partition(error):
                    raise KafkaException(error)
                if error is None:
                    yield message.key(), message.value()
                elif message.offset() >= unread.get(message.partition(), 0):
                    unread.pop(message.partition(), None)
            if messages:
                deadline = Deadline(_PATIENCE_S, clock)
            elif deadline.expired():
                raise BrokerUnavailableError("No record arrived for a minute.", where=topic)
    finally:
        consumer.close()


def hidden_partitions(
    bootstrap: str, topics: Sequence[str], clock: Clock = SYSTEM_CLOCK
) -> list[str]:
    """Name the partitions with an open transaction: their last stable offset is not their end."""
    ends = TopicEnds({"bootstrap.servers": bootstrap})
    deadline = Deadline(_MARKERS_S, clock)
    while True:
        log_ends = ends.log_ends(topics, deadline)
        hidden = held_back(ends.committed(topics, deadline), log_ends)
        # The markers of the last commit are written some milliseconds after its answer.
        if not hidden or deadline.expired():
            return hidden
        deadline.pause(_POLL_S)


def open_transactions(
    bootstrap: str, application_id: str, clock: Clock = SYSTEM_CLOCK
) -> list[str]:
    """Name every transaction of the application that is still open at a coordinator."""
    deadline = Deadline(_MARKERS_S, clock)
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as wire:
        while True:
            found = wire.list_open(application_id, None, deadline)
            if not found or deadline.expired():
                return [f"{one.transactional_id} is {one.state}" for one in found]
            deadline.pause(_POLL_S)


def _consumer(bootstrap: str) -> Any:
    settings = librdkafka_settings({"bootstrap.servers": bootstrap})
    return Consumer(
        log_settings()
        | settings
        | {
            "group.id": "sparkonce-demo-reader",  # the client needs one; nothing is committed to it
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
    )
