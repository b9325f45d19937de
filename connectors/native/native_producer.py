"""Producers that hand batches to librdkafka as pointers, not as objects.

Only the way to queue a row is different from `TransactionalProducer` or `PlainProducer`: the
protocol, the errors and the counting of refused records are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from connectors.kafka.sink.plain_producer import PlainProducer
from connectors.kafka.sink.record_producer import RecordProducer
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.native import arrow_messages
from connectors.native.arrow_messages import Array, MessageRows
from connectors.native.producer_client import ProducerClient
from transactions.clock import Deadline

#: How many rows' arguments are written at once: half a megabyte.
_DESCRIBED_ROWS: Final = 1024

Headers = Sequence[tuple[str, bytes | str | None]]


class NativeQueueing(RecordProducer):
    """See `RecordProducer`. Only if `librdkafka.available()` returns ""."""

    def _make_client(self, settings: dict[str, Any]) -> ProducerClient:
        return ProducerClient(settings)

    def _queue(self, batch: pa.RecordBatch, topic: str | None, deadline: Deadline) -> None:
        if batch.num_rows == 0:
            return
        rows = MessageRows(batch)
        topics, topic_of_row = arrow_messages.topics_of(batch, topic)
        partitions = arrow_messages.partitions_of(batch)
        if _is_given(batch, "headers") or _is_given(batch, "timestamp"):
            handles = np.array([self._producer.topic(name) for name in topics], np.int64)
            self._produce_described(batch, rows, handles[topic_of_row], partitions, deadline)
            return
        for number, partition, members in arrow_messages.groups(topic_of_row, partitions):
            handle = self._producer.topic(topics[number])
            self._produce_group(handle, partition, rows.messages[members], deadline)

    def _produce_group(
        self, topic: int, partition: int, messages: Array, deadline: Deadline
    ) -> None:
        queued = self._producer.produce_messages(topic, partition, messages)
        while queued < len(messages):
            self._make_room(deadline)
            queued += self._producer.produce_messages(topic, partition, messages[queued:])

    def _produce_described(
        self,
        batch: pa.RecordBatch,
        rows: MessageRows,
        topics: Array,
        partitions: Array,
        deadline: Deadline,
    ) -> None:
        """Queue rows with headers or a time: one call for each, in order."""
        times = arrow_messages.times_of(batch)
        headers = _headers_of(batch)
        for start in range(0, batch.num_rows, _DESCRIBED_ROWS):
            part = slice(start, start + _DESCRIBED_ROWS)
            arguments = arrow_messages.arguments_of(
                rows.messages[part], topics[part], partitions[part], times[part]
            )
            first, step = arguments.ctypes.data, arguments.strides[0]
            addresses = range(first, first + step * len(arguments), step)
            if headers is None:
                self._produce_rows(addresses, arguments.shape[1] - 1, deadline)
                continue
            for row, address, given in zip(arguments, addresses, headers[part], strict=True):
                self._produce_with_headers(row, address, given, deadline)

    def _produce_rows(self, rows: range, count: int, deadline: Deadline) -> None:
        queued = self._producer.produce_described(rows, count)
        while queued < len(rows):
            self._make_room(deadline)
            queued += self._producer.produce_described(rows[queued:], count)

    def _produce_with_headers(
        self, row: Array, address: int, headers: Headers, deadline: Deadline
    ) -> None:
        """Queue one row. Headers are the last argument; a row without headers is shorter."""
        given = self._producer.headers(headers) if headers else 0
        row["value"][-1] = given
        try:
            self._produce_rows(range(address, address + 1), len(row) - (not given), deadline)
        except Exception:
            self._producer.drop_headers(given)
            raise


class NativeTransactionalProducer(NativeQueueing, TransactionalProducer):
    """See `TransactionalProducer`."""


class NativePlainProducer(NativeQueueing, PlainProducer):
    """See `PlainProducer`."""


def _is_given(batch: pa.RecordBatch, name: str) -> bool:
    return name in batch.schema.names and batch.column(name).null_count < batch.num_rows


def _headers_of(batch: pa.RecordBatch) -> list[Headers] | None:
    if not _is_given(batch, "headers"):
        return None
    return [
        [(header["key"], header["value"]) for header in row or ()]
        for row in batch.column("headers").to_pylist()
    ]
