"""Reads some partitions for as long as a task lives: the continuous mode's side of the source.

`range_reader` reads exactly a range that the driver has planned. Here the task itself continues
from a position, and the driver makes the position at a barrier durable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from connectors.clients import client_errors
from connectors.clients.client_errors import ErrorWatch
from connectors.clients.client_settings import settings_checked
from connectors.kafka.source.message_columns import messages_to_batch, validity_bitmap
from connectors.kafka.source.offset_errors import GONE, there_again
from connectors.kafka.source.offsets import partition_key, split_key
from connectors.kafka.source.range_reader import collector_paused, consumer_settings
from connectors.options.kafka_source import KafkaSource
from transactions.errors import DataLossError, PhaseOneError

#: Most messages of one read. A barrier waits until one such batch is transformed and queued.
MOST_ROWS: Final = 4_096
#: A broker answers a fetch as soon as it has data; an idle fetch waits there this long.
_IDLE_FETCH_MS: Final = 100
_WATERMARK_TIMEOUT_S: Final = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What one read brought, of all partitions together: a function and a producer take as long for
    the rows of ten partitions in one batch as for those of one of them (measured).

    Attributes:
        positions: the next offset to read of each partition that moved, by ``topic-partition``;
            after a gap it is beyond the records in `batch`.
        batch: columns of SOURCE_SCHEMA (`connectors.records.message_schema`); the rows of each
            partition stand together and in order. None when only positions moved.
    """

    positions: Mapping[str, int]
    batch: pa.RecordBatch | None

    def without(self, names: Collection[str]) -> Read:
        """Return the rest without these partitions."""
        positions = {name: at for name, at in self.positions.items() if name not in names}
        if self.batch is None:
            return Read(positions=positions, batch=None)
        topics, numbers = (self.batch.column(name).to_pylist() for name in ("topic", "partition"))
        stays = [key in positions for key in map(partition_key, topics, numbers)]
        # From a buffer: see `message_columns`.
        mask = pa.Array.from_buffers(pa.bool_(), len(stays), [None, validity_bitmap(stays)])
        kept = self.batch.filter(mask)
        return Read(positions=positions, batch=kept if kept.num_rows else None)


class PartitionReader:
    """A consumer and its positions. In a task, on one thread.

    Attributes:
        lag: records that wait in the brokers, if the last read was a full one; 0 otherwise, since
            everything readable was read. It needs no request: it is as old as the last fetches, and
            includes the offsets of markers.

    Args:
        source: the options.
        offsets: the next offset to read, per ``topic-partition``.
    """

    def __init__(self, source: KafkaSource, offsets: Mapping[str, int]) -> None:
        self._source = source
        self._trouble = ErrorWatch()
        settings = {**consumer_settings(source), "fetch.wait.max.ms": _IDLE_FETCH_MS}
        with settings_checked(source.client_settings, "consumer"):
            self._consumer = self._make_consumer({**settings, "error_cb": self._trouble})
        self._positions: dict[str, int] = {}
        self._gone: set[str] = set()
        self.lag = 0
        self.add(offsets)

    def _make_consumer(self, settings: dict[str, Any]) -> Any:
        """Make the client; the native path has another one."""
        return Consumer(settings)

    def add(self, offsets: Mapping[str, int]) -> None:
        """Read these partitions too."""
        self._positions.update(offsets)
        if offsets:
            self._consumer.incremental_assign(
                [TopicPartition(*split_key(name), offset) for name, offset in offsets.items()]
            )

    def remove(self, names: Collection[str]) -> None:
        """Read these partitions no more; what was fetched of them is dropped."""
        for name in names:
            del self._positions[name]
        if names:
            self._consumer.incremental_unassign([TopicPartition(*split_key(one)) for one in names])

    def read(self, timeout_s: float) -> Read:
        """Return the records that came; without any, and nothing moved, after the timeout.

        Raises:
            DataLossError: the position is no longer in its partition and `failOnDataLoss` is set.
            MissingTopicError, AuthenticationError: see their classes.
        """
        with collector_paused():
            messages: list[Message] = self._consumer.consume(MOST_ROWS, 0)
            if not messages and (first := self._consumer.poll(timeout_s)) is not None:
                messages = [first, *self._consumer.consume(MOST_ROWS - 1, 0)]
            self._note_lag(len(messages))
            self._check_trouble()
            ends: dict[str, int] = {}
            if any(map(Message.error, messages)):
                messages = self._without_errors(messages, ends)
            return self._joined(messages, ends)

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._consumer.close()

    def _note_lag(self, rows: int) -> None:
        """Update `lag`. Call this before the positions move past these rows."""
        self.lag = 0
        if rows == MOST_ROWS:
            ends = (
                self._consumer.get_watermark_offsets(TopicPartition(*split_key(name)), cached=True)
                for name in self._positions
            )
            behind = zip(ends, self._positions.values(), strict=True)
            self.lag = max(0, sum(max(0, high - at) for (_, high), at in behind) - rows)

    def _check_trouble(self) -> None:
        final = self._trouble.final
        if final is not None and not self._may_come_back(final):
            where = ", ".join(sorted(self._positions))
            raise client_errors.translate(final, where, self._source.client_settings)
        if self._trouble.missing:
            told = self._trouble.missing
            topics = {split_key(name)[0] for name in self._positions}
            named = {one for one in topics if any(text.startswith(f"{one} [") for text in told)}
            self._gone |= named or topics

    def _joined(self, messages: list[Message], ends: Mapping[str, int]) -> Read:
        """Make one batch of the messages, which librdkafka returns in runs of one partition."""
        positions: dict[str, int] = {}
        batches: list[pa.RecordBatch] = []
        for topic, partition, mine in _by_partition(messages):
            name = partition_key(topic, partition)
            self._check_same(topic)
            assert mine[0].offset() >= self._positions[name], "librdkafka went back"
            positions[name] = mine[-1].offset() + 1
            headers = self._source.include_headers
            batches.append(messages_to_batch(mine, topic, partition, headers=headers))
        for name, end in ends.items():
            if end > positions.get(name, self._positions[name]):
                positions[name] = end
        joined = pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
        assert len(joined) <= 1, "a read too large for one batch"
        self._positions.update(positions)
        return Read(positions=positions, batch=joined[0] if joined else None)

    def _without_errors(self, messages: list[Message], ends: dict[str, int]) -> list[Message]:
        data = []
        for message in messages:
            error = message.error()
            if error is None:
                data.append(message)
            elif client_errors.is_about_the_group(error):
                continue
            elif client_errors.is_end_of_partition(error):
                self._check_same(message.topic())
                ends[partition_key(message.topic(), message.partition())] = message.offset()
            elif client_errors.is_truncated(error):
                self._truncated(partition_key(message.topic(), message.partition()), ends)
            elif self._may_come_back(error):
                self._gone.add(message.topic())
            else:
                where = f"{message.topic()}-{message.partition()}"
                raise client_errors.translate(error, where, self._source.client_settings)
        return data

    def _may_come_back(self, error: KafkaError) -> bool:
        """Return whether to wait for a deleted topic: a client reads on when it exists again."""
        return client_errors.is_missing(error) and not self._source.fail_on_data_loss

    def _check_same(self, topic: str) -> None:
        """Refuse messages of a topic that was missing meanwhile: it is likely another topic, and a
        client continues it at the old offset.
        """
        if topic in self._gone:
            raise there_again(topic)

    def _truncated(self, name: str, ends: dict[str, int]) -> None:
        """Handle a position outside the partition: stop, or continue after the hole."""
        place = TopicPartition(*split_key(name))
        low, high = self._consumer.get_watermark_offsets(place, timeout=_WATERMARK_TIMEOUT_S)
        where = f"{name}, at offset {self._positions[name]}; it holds [{low}, {high})"
        if self._source.fail_on_data_loss:
            raise DataLossError(
                "Records that the pipeline still has to read are gone from the source topic.",
                where=where,
                cause=GONE,
                option="failOnDataLoss=true",
            )
        if low <= self._positions[name]:
            # The driver knows which topic this is: the next run decides where the new topic begins.
            raise PhaseOneError(
                "A partition ends before the next record; the next run decides where to continue.",
                where=where,
                cause="the topic was created again, or lost its last records",
                option="failOnDataLoss=false",
            )
        ends[name] = low
        self._move_to(TopicPartition(place.topic, place.partition, low))

    def _move_to(self, place: TopicPartition) -> None:
        """Continue from there. After an error the fetcher refuses a seek ("erroneous state", seen).
        So its partition is unassigned and assigned again.
        """
        self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([place])


def _by_partition(messages: list[Message]) -> Iterator[tuple[str, int, list[Message]]]:
    """Group messages that come in any mixture of partitions; one partition is the usual case."""
    if not messages:
        return
    numbers = np.fromiter(map(Message.partition, messages), np.int32, len(messages))
    if (numbers == numbers[0]).all() and len(set(map(Message.topic, messages))) == 1:
        yield messages[0].topic(), int(numbers[0]), messages
        return
    groups: dict[tuple[str, int], list[Message]] = {}
    for message in messages:
        groups.setdefault((message.topic(), message.partition()), []).append(message)
    for (topic, partition), mine in groups.items():
        yield topic, partition, mine
