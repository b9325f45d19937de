"""Checks once per process that librdkafka's structs have the layouts the native path expects.

A client without brokers gets records by the calls of the native path, drops them, and reports each
as undelivered. So a message goes through the library and back, in memory, in 2 ms. The result is
read like consumed messages, and compared.

The order matters: a wrong number must reveal a wrong layout before a pointer of that layout is
followed.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException

from connectors.kafka.source.message_columns import bytes_array
from connectors.native import arrow_messages, consumed_columns, librdkafka
from connectors.native.consumed_columns import Array
from connectors.native.librdkafka import check_code, check_error

_TOPIC: Final = b"sparkonce-self-test"
_PARTITION: Final = 3
_OFFSET: Final = 0x0123_4567_89AB_CDEF
_TIME_MS: Final = 1_700_000_000_123
_TAG: Final = 0x0BAD_CAFE
_METADATA: Final = b"token"
_REPORTS: Final = 0x1  # RD_KAFKA_EVENT_DR
_PATIENCE_MS: Final = 1_000
_TEXT_BYTES: Final = 512

_KEYS: Final = (b"k", None, b"", b"key")
_VALUES: Final = (b"value", b"", None, b"\0" * 40)
_HEADERS: Final[tuple[list[tuple[str, bytes | None]], ...]] = (
    [("h", b"1"), ("h", None)],
    [("", b""), ("ü", b"\0")],
    [],
    [("x", b"y")],
)


class _DiffersError(Exception):
    """The result differs from what was given."""


def failure() -> str:
    """Return "" if every layout is as expected, else the wrong one, as half a line.

    Only if `librdkafka.available` returns "".
    """
    try:
        with _client() as client:
            _positions(client)
            _one_message(client)
            _batch(client)
            _described(client)
    except (_DiffersError, KafkaException, pa.ArrowException, ValueError, TypeError) as error:
        return f"its self-test failed: {error}"
    return ""


class _Client:
    """A producer without brokers; its delivery reports come as events."""

    def __init__(self) -> None:
        lib = self.lib = librdkafka.library()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = lib.rd_kafka_conf_new()
        lib.rd_kafka_conf_set(conf, b"log_level", b"0", text, _TEXT_BYTES)
        lib.rd_kafka_conf_set_events(conf, _REPORTS)
        self.address = lib.rd_kafka_new(librdkafka.PRODUCER, conf, text, _TEXT_BYTES)
        if not self.address:
            lib.rd_kafka_conf_destroy(conf)
            raise _DiffersError(text.value.decode("utf-8", "replace"))
        self.topic = lib.rd_kafka_topic_new(self.address, _TOPIC, None)
        self._reports = lib.rd_kafka_queue_get_main(self.address)

    def close(self) -> None:
        self.lib.rd_kafka_queue_destroy(self._reports)
        self.lib.rd_kafka_topic_destroy(self.topic)
        self.lib.rd_kafka_destroy(self.address)

    @contextlib.contextmanager
    def dropped(self, count: int) -> Iterator[Array]:
        """Drop queued records; yield the addresses of `count` reports, valid inside the block."""
        check_code(self.lib.rd_kafka_purge(self.address, librdkafka.PURGE_QUEUE))
        addresses = np.zeros(count, np.int64)
        event = self.lib.rd_kafka_queue_poll(self._reports, _PATIENCE_MS)
        try:
            found = event and self.lib.rd_kafka_event_message_array(
                event, addresses.ctypes.data, count
            )
            _same("reports", found or 0, count)
            yield addresses
        finally:
            self.lib.rd_kafka_event_destroy(event)


@contextlib.contextmanager
def _client() -> Iterator[_Client]:
    client = _Client()
    try:
        yield client
    finally:
        client.close()


def _positions(client: _Client) -> None:
    """rd_kafka_topic_partition_list_t: read what the library writes, then the other way."""
    lib = client.lib
    listed = lib.rd_kafka_topic_partition_list_new(1)
    copy = None
    try:
        lib.rd_kafka_topic_partition_list_add(listed, _TOPIC, _PARTITION)
        lib.rd_kafka_topic_partition_list_set_offset(listed, _TOPIC, _PARTITION, _OFFSET)
        position = _first(listed)
        _same("a position's numbers", (position.partition, position.offset), (_PARTITION, _OFFSET))
        _same("a position's metadata", (position.metadata, position.metadata_size), (None, 0))
        _same("a position's topic", position.topic, _TOPIC)
        position.metadata = lib.rd_kafka_mem_malloc(client.address, len(_METADATA))
        ctypes.memmove(position.metadata, _METADATA, len(_METADATA))
        position.metadata_size = len(_METADATA)
        copy = lib.rd_kafka_topic_partition_list_copy(listed)
        copied = _first(copy)
        _same("a copy's metadata", copied.metadata_size, len(_METADATA))
        _same("a copy's metadata", ctypes.string_at(copied.metadata, len(_METADATA)), _METADATA)
    finally:
        for one in filter(None, (listed, copy)):
            lib.rd_kafka_topic_partition_list_destroy(one)


def _first(listed: Any) -> Any:
    found = ctypes.cast(listed, ctypes.POINTER(librdkafka.PositionList)).contents
    _same("a list's count", found.count, 1)
    return ctypes.cast(found.elements, ctypes.POINTER(librdkafka.Position)).contents


def _one_message(client: _Client) -> None:
    """rd_kafka_message_t as the library writes it: its numbers are those of plain arguments."""
    value = ctypes.create_string_buffer(b"value")
    place = ctypes.addressof(value)  # not copied, not freed: the report has the same address
    check_code(
        client.lib.rd_kafka_produce(client.topic, _PARTITION, 0, place, 5, b"key", 3, _TAG)
        and client.lib.rd_kafka_last_error()
    )
    with client.dropped(1) as addresses:
        message = consumed_columns.read_messages(addresses)[0]
        names = ("rkt", "partition", "payload", "len", "key_len", "own")
        expected = (client.topic, _PARTITION, place, 5, 3, _TAG)
        _same("a message", tuple(int(message[name]) for name in names), expected)
        _same("a message's error", bool(message["err"]), True)
        report = ctypes.cast(int(addresses[0]), ctypes.POINTER(librdkafka.Message)).contents
        found = tuple(getattr(report, name) for name in ("rkt", "partition", "err"))
        _same("a report", found, (client.topic, _PARTITION, int(message["err"])))


def _batch(client: _Client) -> None:
    """rd_kafka_message_t as the library reads it: null values, empty values, bytes."""
    rows = arrow_messages.MessageRows(_rows())
    queued = client.lib.rd_kafka_produce_batch(
        client.topic, _PARTITION, librdkafka.COPY, rows.messages.ctypes.data, len(_KEYS)
    )
    _same("messages taken", queued, len(_KEYS))
    with client.dropped(len(_KEYS)) as addresses:
        _columns(consumed_columns.read_messages(addresses))


def _described(client: _Client) -> None:
    """rd_kafka_vu_t, and what calls read: headers, and the time behind the message."""
    rows = arrow_messages.MessageRows(_rows())
    topics, partitions, times = (
        np.full(len(_KEYS), one, np.int64) for one in (client.topic, _PARTITION, _TIME_MS)
    )
    arguments = arrow_messages.arguments_of(rows.messages, topics, partitions, times)
    for row, headers in zip(arguments, _HEADERS, strict=True):
        row["value"][-1] = _headers(client.lib, headers)
        check_error(
            client.lib.rd_kafka_produceva(client.address, row.ctypes.data, arguments.shape[1])
        )
    with client.dropped(len(_KEYS)) as addresses:
        messages = consumed_columns.read_messages(addresses)
        _columns(messages)
        # `rd_kafka_message_timestamp` ignores undelivered messages, but its field has the time.
        _same("times", messages["time"].tolist(), times.tolist())
        found = consumed_columns.headers_of(addresses).to_pylist()
        expected = [
            [{"key": key, "value": value} for key, value in one] or None for one in _HEADERS
        ]
        _same("headers", found, expected)


def _rows() -> pa.RecordBatch:
    """Build from buffers: `pa.array(list)` imports pandas, a second in each new worker (seen)."""
    columns = [bytes_array(_KEYS, pa.binary()), bytes_array(_VALUES, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def _headers(lib: Any, pairs: list[tuple[str, bytes | None]]) -> int:
    made: int = lib.rd_kafka_headers_new(len(pairs))
    for name, value in pairs:
        check_code(lib.rd_kafka_header_add(made, name.encode(), -1, value, len(value or b"")))
    return made


def _columns(messages: Array) -> None:
    times = np.stack([messages["time_type"].astype(np.int64), messages["time"]], axis=1)
    columns = consumed_columns.columns_of(messages, times)
    _same("keys", columns["key"].to_pylist(), list(_KEYS))
    _same("values", columns["value"].to_pylist(), list(_VALUES))
    _same("partitions", columns["partition"].to_pylist(), [_PARTITION] * len(_KEYS))


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise _DiffersError(f"{what}: {found!r} came back, {expected!r} was given")
