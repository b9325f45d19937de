"""A consumer that turns librdkafka's fetched records into Arrow batches without Python objects.

Positions come from the records and from the partition ends that librdkafka reports, trailing
markers included; they are never counted. An error waits until the records that were read before it
are handed out; what stands behind it in its partition is not.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, TopicPartition

from connectors.clients.client_errors import END_OF_PARTITION
from connectors.kafka.source.message_columns import check_times, text_constant
from connectors.kafka.source.offsets import split_key
from connectors.native import librdkafka
from connectors.native.client_handle import ClientHandle
from connectors.native.consumed_columns import (
    Array,
    columns_of,
    headers_of,
    read_messages,
    times_of,
)
from connectors.native.librdkafka import check_code, check_error
from connectors.records.message_schema import SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS


class Moved(NamedTuple):
    """How far one partition was read.

    Attributes:
        topic: its topic.
        partition: its number.
        first: the offset of its first record; `next_offset` if it has none.
        next_offset: the next offset to read: after the last record, or after a gap at the end.
    """

    topic: str
    partition: int
    first: int
    next_offset: int


class Polled(NamedTuple):
    """What came.

    Attributes:
        batch: the columns of SOURCE_SCHEMA; the rows of each partition stand together and in order.
            Without rows when only positions moved.
        moved: one for each partition that has rows or moved.
    """

    batch: pa.RecordBatch
    moved: Sequence[Moved]


def before_errors(messages: Array) -> Array:
    """Return which messages may be handed out: all that are no error, and stand behind no error of
    their partition. librdkafka reports a record that it cannot read, and goes on behind it: the
    position must not.

    Args:
        messages: of librdkafka.MESSAGE, in the order in which they came; an end of a partition is
            no error.
    """
    failed = (messages["err"] != 0) & (messages["err"] != END_OF_PARTITION)
    sound: Array = ~failed
    for at in np.flatnonzero(failed):
        behind = messages[at:]
        same = (behind["rkt"] == messages["rkt"][at]) & (
            behind["partition"] == messages["partition"][at]
        )
        sound[at:] &= ~same
    return sound


class PartitionFailedError(Exception):
    """librdkafka reported an error in place of a record. Catch it, or stop reading.

    Attributes:
        topic: where; "" if the error concerns the whole consumer.
        partition: where; -1 likewise.
        error: librdkafka's error.
    """

    def __init__(self, topic: str, partition: int, error: KafkaError) -> None:
        super().__init__(topic, partition, error)
        self.topic = topic
        self.partition = partition
        self.error = error


class NativeConsumer:
    """An rd_kafka_t that consumes. Not thread-safe. Only where librdkafka.available() is "".

    Args:
        settings: as for confluent-kafka's Consumer, including `error_cb`.
        headers: fill the column `headers`.
    """

    def __init__(self, settings: Mapping[str, Any], *, headers: bool = False) -> None:
        self._lib = librdkafka.library()
        self._handle = ClientHandle(librdkafka.CONSUMER, settings)
        self._queue = self._handle.consumer_queue()
        self._schema = SOURCE_SCHEMA_WITH_HEADERS if headers else SOURCE_SCHEMA
        self._columns = self._schema.names
        # Not from lists: those import pandas if it is installed.
        nothing = [pa.nulls(0, field.type) for field in self._schema]
        self._empty = pa.RecordBatch.from_arrays(nothing, schema=self._schema)
        self._headers = headers
        self._failures: deque[PartitionFailedError] = deque()

    def assign(self, offsets: Mapping[str, int]) -> None:
        """Read these partitions (``topic-partition``) from these offsets, and no others."""
        positions = [TopicPartition(*split_key(name), offset) for name, offset in offsets.items()]
        self._with(positions, lambda given: check_code(self._lib.rd_kafka_assign(*given)))

    def incremental_assign(self, positions: Sequence[TopicPartition]) -> None:
        """Read these partitions too."""
        call = self._lib.rd_kafka_incremental_assign
        self._with(positions, lambda given: check_error(call(*given)))

    def incremental_unassign(self, positions: Sequence[TopicPartition]) -> None:
        """Stop reading these partitions; their fetched records are dropped."""
        call = self._lib.rd_kafka_incremental_unassign
        self._with(positions, lambda given: check_error(call(*given)))

    def get_watermark_offsets(
        self, place: TopicPartition, timeout: float = 0.0, *, cached: bool = False
    ) -> tuple[int, int]:
        """Return a partition's first offset, and the one after its last.

        Args:
            place: the partition.
            timeout: how long its leader may take, in seconds.
            cached: use the last fetch instead of asking; below 0 if there was none.
        """
        low, high = ctypes.c_int64(), ctypes.c_int64()
        where = (self._handle.address, place.topic.encode(), place.partition)
        both = (ctypes.byref(low), ctypes.byref(high))
        if cached:
            check_code(self._lib.rd_kafka_get_watermark_offsets(*where, *both))
        else:
            wait_ms = int(timeout * 1000)
            check_code(self._lib.rd_kafka_query_watermark_offsets(*where, *both, wait_ms))
        return low.value, high.value

    def poll_batch(self, max_rows: int, timeout_s: float) -> Polled:
        """Return the records that came; nothing moved if none came in time.

        Raises:
            PartitionFailedError: see the class. Other partitions can be read on.
            SparkOnceError: a record's timestamp does not fit into the column.
        """
        if self._failures:
            raise self._failures.popleft()
        pointers = np.zeros(max_rows, np.int64)
        try:
            count = self._fill(pointers, timeout_s)
            self._handle.check()
            polled = self._polled(pointers[:count]) if count else Polled(self._empty, ())
        finally:  # even after an interrupt: a client with records out cannot be closed
            librdkafka.destroy_messages(pointers[pointers != 0].tolist())
        if not polled.moved and self._failures:
            raise self._failures.popleft()
        return polled

    def close(self) -> None:
        """Close the connections to the brokers."""
        if self._handle.address:
            self._lib.rd_kafka_consumer_close(self._handle.address)
        self._handle.close()

    def _fill(self, pointers: Array, timeout_s: float) -> int:
        """Take queued records; if there are none, wait for one (librdkafka would wait for all)."""
        count = self._take(pointers, 0)
        if count or timeout_s <= 0:
            return count
        first = pointers[:1]
        count = self._handle.in_slices(
            lambda wait_ms: self._take(first, wait_ms), timeout_s, done=bool
        )
        return count + self._take(pointers[1:], 0) if count else 0

    def _take(self, into: Array, wait_ms: int) -> int:
        count: int = self._lib.rd_kafka_consume_batch_queue(
            self._queue, wait_ms, into.ctypes.data, len(into)
        )
        into[max(0, count) :] = 0  # where it took records back, their addresses can still stand
        if count < 0:
            check_code(self._lib.rd_kafka_last_error())
        return max(0, count)

    def _polled(self, pointers: Array) -> Polled:
        messages = read_messages(pointers)
        ends: dict[tuple[str, int], int] = {}
        if (messages["err"] != 0).any():
            sound = before_errors(messages)
            is_end = messages["err"] == END_OF_PARTITION
            self._note_errors(messages[(messages["err"] != 0) & ~is_end])
            self._note_ends(messages[sound & is_end], ends)
            messages, pointers = messages[sound & ~is_end], pointers[sound & ~is_end]
        batch = self._empty
        moved: list[Moved] = []
        if len(messages):
            batch, moved = self._batch(messages, pointers, ends)
        moved += [Moved(*place, first=end, next_offset=end) for place, end in ends.items()]
        return Polled(batch, moved)

    def _batch(
        self, messages: Array, pointers: Array, ends: dict[tuple[str, int], int]
    ) -> tuple[pa.RecordBatch, list[Moved]]:
        """Build one batch, sorted by partition, and say where it ends in each of them."""
        codes = messages["rkt"].astype(np.int64) * 31 + messages["partition"]
        if (codes != codes[0]).any():
            order = np.lexsort((messages["partition"], messages["rkt"]))  # a stable sort
            messages, pointers = messages[order], pointers[order]
        times = times_of(messages, pointers)
        check_times(times[:, 1], messages["offset"], "one of the partitions read")
        columns = columns_of(messages, times)
        if self._headers:
            columns["headers"] = headers_of(pointers)
        changes = np.flatnonzero(
            (np.diff(messages["rkt"]) != 0) | (np.diff(messages["partition"]) != 0)
        )
        bounds = [0, *(changes + 1).tolist(), len(messages)]
        moved: list[Moved] = []
        topics: list[pa.Array] = []
        for start, end in pairwise(bounds):
            topic = self._topic(int(messages["rkt"][start]))
            partition = int(messages["partition"][start])
            offsets = messages["offset"][start:end]
            assert (np.diff(offsets) > 0).all(), "librdkafka went back"
            behind = max(int(offsets[-1]) + 1, ends.pop((topic, partition), 0))
            moved.append(Moved(topic, partition, first=int(offsets[0]), next_offset=behind))
            topics.append(text_constant(topic, end - start))
        columns["topic"] = topics[0] if len(topics) == 1 else pa.concat_arrays(topics)
        batch = pa.RecordBatch.from_arrays(
            [columns[name] for name in self._columns], schema=self._schema
        )
        return batch, moved

    def _note_ends(self, messages: Array, ends: dict[tuple[str, int], int]) -> None:
        for message in messages:
            place = self._topic(int(message["rkt"])), int(message["partition"])
            ends[place] = int(message["offset"])

    def _note_errors(self, messages: Array) -> None:
        for message in messages:
            rkt, code = int(message["rkt"]), int(message["err"])
            topic = self._topic(rkt) if rkt else ""
            partition = int(message["partition"]) if rkt else -1
            size = int(message["len"])
            text = ctypes.string_at(int(message["payload"]), size) if message["payload"] else b""
            error = KafkaError(code, text.decode("utf-8", "replace") or None)
            self._failures.append(PartitionFailedError(topic, partition, error))

    def _topic(self, rkt: int) -> str:
        name: bytes = self._lib.rd_kafka_topic_name(rkt)
        return name.decode()

    def _with(self, positions: Sequence[TopicPartition], call: Any) -> None:
        """Call with the handle and a list of positions, then free the list."""
        listed = self._lib.rd_kafka_topic_partition_list_new(len(positions))
        try:
            for one in positions:
                added = self._lib.rd_kafka_topic_partition_list_add(
                    listed, one.topic.encode(), one.partition
                )
                added.contents.offset = one.offset
            call((self._handle.address, listed))
        finally:
            self._lib.rd_kafka_topic_partition_list_destroy(listed)
