"""The worker's side of the source: exactly the offsets [start, end) of a partition, as Arrow.

Counting never ends a range: control records, aborted transactions and compaction leave gaps. A
range ends at the first message at or behind `end - 1`, or at the end of the partition. librdkafka
reports that end with the offset it has reached, trailing markers included.

Consumers live in a pool, as long as their process, and have no assignment between two ranges. Spark
moves partitions between workers, so most records that an idle consumer fetched ahead would be
useless. A new assignment costs 1.4 ms at the tail of a partition (measured).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from connectors.clients import client_errors
from connectors.clients.client_errors import ErrorWatch
from connectors.clients.client_log import log_settings
from connectors.clients.client_settings import librdkafka_settings, settings_checked
from connectors.kafka.source.message_columns import messages_to_batch
from connectors.kafka.source.offset_errors import while_missing
from connectors.kafka.source.offsets import OffsetRange
from connectors.options.kafka_source import KafkaSource
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import BrokerUnavailableError, DataLossError, MissingTopicError

logger = logging.getLogger(__name__)

#: Rows and bytes that fill one Arrow batch, whichever comes first.
BATCH_ROWS: Final = 16_384
BATCH_BYTES: Final = 16 * 1024 * 1024

#: Most messages taken from librdkafka in one call.
_CHUNK: Final = 8_192
#: One wait for data; a read fails after a silence of many such waits.
_WAIT_S: Final = 0.25
_IDLE_CONSUMERS: Final = 4
_WATERMARK_TIMEOUT_S: Final = 10.0
#: How often one range is asked for again at an offset that the topic holds.
_MOST_ASKED_AGAIN: Final = 10


def read_range(
    source: KafkaSource, wanted: OffsetRange, *, clock: Clock = SYSTEM_CLOCK
) -> Iterator[pa.RecordBatch]:
    """Yield every record of the range once, in order.

    It runs in a Spark worker, any number of times for one range (retries, replays), even at the
    same time: each call has a consumer of its own. It may yield no record at all.

    Raises:
        DataLossError: a part of the range is gone and `failOnDataLoss` is set.
        MissingTopicError: the topic was deleted, and `failOnDataLoss` is set.
        PhaseOneError: the topic was deleted, and the next run may find it again.
        AuthenticationError: the broker refused us.
        BrokerUnavailableError: no data for longer than `kafkaConsumer.pollTimeoutMs`.
    """
    if wanted.start >= wanted.end:
        return
    pooled = _POOL.take(source)
    try:
        yield from _Reading(pooled, source, wanted, clock).batches()
    except BaseException as error:
        # The consumer may be in the middle of the range, even if our caller just stops reading.
        pooled.consumer.close()
        if isinstance(error, MissingTopicError) and not source.fail_on_data_loss:
            raise while_missing(error.where, error.cause) from error
        raise
    _POOL.give(pooled)


class _PooledConsumer:
    """A consumer, what it reported about its brokers, and the settings it was made from."""

    def __init__(self, source: KafkaSource) -> None:
        self.key = _settings_key(source)
        self.trouble = ErrorWatch()
        with settings_checked(source.client_settings, "consumer"):
            self.consumer = Consumer({**consumer_settings(source), "error_cb": self.trouble})


class _ConsumerPool:
    """Idle consumers of this process, newest last; the oldest are closed beyond the bound."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._lock = threading.Lock()
        self._idle: list[_PooledConsumer] = []

    def take(self, source: KafkaSource) -> _PooledConsumer:
        """Return an idle consumer with these settings, or a new one."""
        key = _settings_key(source)
        with self._lock:
            for index in reversed(range(len(self._idle))):
                if self._idle[index].key == key:
                    return self._idle.pop(index)
        return _PooledConsumer(source)

    def give(self, pooled: _PooledConsumer) -> None:
        """Take back a consumer that has read its range to the end."""
        pooled.consumer.unassign()
        with self._lock:
            self._idle.append(pooled)
            surplus = self._idle[: -self._bound]
            del self._idle[: -self._bound]
        for old in surplus:
            old.consumer.close()

    def close(self) -> None:
        """Close all idle consumers (tests; workers are killed without a clean exit)."""
        with self._lock:
            idle, self._idle = self._idle, []
        for pooled in idle:
            pooled.consumer.close()


_POOL = _ConsumerPool(_IDLE_CONSUMERS)


def close_idle_consumers() -> None:
    """Close the cached consumers of this process."""
    _POOL.close()


def consumer_settings(source: KafkaSource) -> dict[str, Any]:
    """Return librdkafka's settings for reading ranges; ours win over the user's."""
    return {
        # Fetching must not pause for a second when enough is queued; memory stays bounded.
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 16_384,
        "fetch.queue.backoff.ms": 1,
        # A trailing marker delays the end of a range by this long; idle consumers fetch nothing.
        "fetch.wait.max.ms": 1,
        "check.crcs": True,
        **log_settings(),
        **librdkafka_settings(source.client_settings),
        **rack_here(source.client_rack_env),
        # librdkafka needs a group name; we never join the group and never commit under it.
        "group.id": "sparkonce-source",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": source.isolation_level,
    }


@functools.cache
def rack_here(variable: str | None) -> dict[str, str]:
    """Return `client.rack` as the environment of this process says it; none is a warning."""
    rack = os.environ.get(variable, "").strip() if variable else ""
    if variable and not rack:
        logger.warning(
            "the environment of this process has no %s (clientRackEnv): its reads go to the leader "
            "of each partition, whatever that costs",
            variable,
        )
    return {"client.rack": rack} if rack else {}


def _settings_key(source: KafkaSource) -> tuple[object, ...]:
    ours = (source.isolation_level, source.client_rack_env)
    return (ours, *sorted(source.client_settings.items()))


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic collector: it walks all messages again and again (0.5 us each)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Reading:
    """One pass over one range."""

    def __init__(
        self, pooled: _PooledConsumer, source: KafkaSource, wanted: OffsetRange, clock: Clock
    ) -> None:
        self._consumer = pooled.consumer
        self._trouble = pooled.trouble
        self._trouble.forget()
        self._source = source
        self._wanted = wanted
        self._clock = clock
        self._position = wanted.start
        self._at_end = False
        self._asked_again = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches until the position has reached the end of the range."""
        self._seek(self._wanted.start)
        while self._position < self._wanted.end:
            with collector_paused():
                batch = self._next_batch()
            if batch is not None:
                yield batch

    def _next_batch(self) -> pa.RecordBatch | None:
        """Fill one batch; return None if the rest of the range is a gap."""
        messages: list[Message] = []
        size = 0
        while self._position < self._wanted.end and len(messages) < BATCH_ROWS:
            chunk = self._next_chunk()
            messages += chunk
            size += sum(map(len, chunk))
            if size >= BATCH_BYTES:
                break
        if not messages:
            return None
        topic, partition = self._wanted.topic, self._wanted.partition
        return messages_to_batch(messages, topic, partition, headers=self._source.include_headers)

    def _seek(self, offset: int) -> None:
        wanted = self._wanted
        self._consumer.assign([TopicPartition(wanted.topic, wanted.partition, offset)])

    def _next_chunk(self) -> list[Message]:
        """Return the next data of the range, [] if it met only a gap or the end."""
        chunk = self._consume()
        if any(map(Message.error, chunk)):
            chunk = self._without_errors(chunk)
        elif chunk:
            assert chunk[0].offset() >= self._position, "librdkafka went back"
            self._position = chunk[-1].offset() + 1
        if not chunk:
            return []
        assert chunk[-1].topic() == self._wanted.topic
        assert chunk[-1].partition() == self._wanted.partition
        if chunk[-1].offset() >= self._wanted.end:
            chunk = [message for message in chunk if message.offset() < self._wanted.end]
        return chunk

    def _consume(self) -> list[Message]:
        """Take queued messages; if there are none, wait for one message only.

        `consume(n, timeout)` would wait for n messages or for the whole timeout.
        """
        # Records beyond the range are read only after a gap, and dropped.
        most = min(_CHUNK, self._wanted.end - self._position)
        silence = Deadline(self._source.poll_timeout_ms / 1000, self._clock)
        while True:
            chunk: list[Message] = self._consumer.consume(most, 0)
            if chunk:
                return chunk
            message = self._consumer.poll(_WAIT_S)
            if message is not None:
                return [message]
            if self._trouble.final is not None:
                raise client_errors.translate(
                    self._trouble.final, str(self._wanted), self._source.client_settings
                )
            if silence.expired():
                raise self._silent()

    def _silent(self) -> BrokerUnavailableError:
        waited = f"nothing came for {self._source.poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs)"
        cause = (
            "the reader is at the end: a transaction that is still open hides the other records"
            if self._at_end
            else self._trouble.describe()
        )
        return client_errors.unavailable(
            f"{self._wanted}, at offset {self._position}",
            f"{cause}; {waited}",
            self._source.bootstrap_servers,
        )

    def _without_errors(self, chunk: list[Message]) -> list[Message]:
        data: list[Message] = []
        lost_place = False
        for message in chunk:
            error = message.error()
            if error is None:
                data.append(message)
                self._position = message.offset() + 1
                lost_place = False
            elif self._is_of_another_range(message):
                continue
            elif client_errors.is_end_of_partition(error):
                self._position = max(self._position, message.offset())
                self._at_end = True
            elif client_errors.is_truncated(error):
                lost_place = self._truncated(error)
            else:
                raise client_errors.translate(
                    error, str(self._wanted), self._source.client_settings
                )
        if lost_place:
            self._seek(self._position)
        return data

    def _is_of_another_range(self, message: Message) -> bool:
        """Return whether an error does not concern the present range.

        librdkafka reports an out-of-range offset even after the partition was unassigned: it gives
        that error no version (rd_kafka_offset_reset, rd_kafka_op_version_outdated).
        """
        if client_errors.is_about_the_group(message.error()):
            return True
        place = message.topic(), message.partition()
        return place[0] is not None and place != (self._wanted.topic, self._wanted.partition)

    def _truncated(self, error: KafkaError) -> bool:
        """Handle a position outside the partition: stop, or continue after the hole. Return whether
        the consumer must be told where to go on.

        The error can be older than this range, and of a range that the same consumer has read of
        the same partition. Then the topic holds the position, and it is asked for again.
        """
        wanted = self._wanted
        if self._position >= wanted.end:
            return False  # it was read to its end, and the records fetched ahead are gone
        low, high = self._consumer.get_watermark_offsets(
            TopicPartition(wanted.topic, wanted.partition), timeout=_WATERMARK_TIMEOUT_S
        )
        if low <= self._position <= high:
            self._asked_again += 1
            if self._asked_again > _MOST_ASKED_AGAIN:
                where = f"{wanted}, at offset {self._position}; the topic holds [{low}, {high})"
                raise client_errors.unavailable(
                    where, f"out of range: {error.str()}", self._source.bootstrap_servers
                )
            return True
        if self._source.fail_on_data_loss:
            raise DataLossError(
                "Records that the pipeline still has to read are gone from the source topic.",
                where=f"{wanted}, at offset {self._position}; the topic holds [{low}, {high})",
                cause="retention or delete-records removed them, or the topic was created again",
                option="failOnDataLoss=true",
            )
        self._position = wanted.end if high < self._position else min(low, wanted.end)
        return self._position < wanted.end
