"""An Arrow batch's rows as librdkafka's messages: pointers into the batch, not copies.

An Arrow column of bytes consists of a bitmap of non-null values, n + 1 offsets and the bytes. So
one addition gives the addresses of all values at once. Kafka distinguishes NULL from empty: a null
row has no address, an empty row has an address that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.native import librdkafka
from connectors.native.librdkafka import ANY_PARTITION, MESSAGE

Array = npt.NDArray[Any]

#: The address of an empty value whose column has no bytes at all.
_NOWHERE: Final = np.zeros(8, np.uint8)


class MessageRows:
    """The messages of a batch. Valid as long as this object, which keeps their memory alive.

    Attributes:
        messages: array of librdkafka.MESSAGE, one per row; `payload`, `key` and lengths are set.

    Args:
        batch: columns `value` and optionally `key`, of bytes or text.

    Raises:
        TypeError: a column has another type.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.messages: Array = np.zeros(batch.num_rows, MESSAGE)
        self._columns = [self._point("value", "payload", "len", batch)]
        if "key" in batch.schema.names:
            self._columns.append(self._point("key", "key", "key_len", batch))

    def _point(self, name: str, to: str, size: str, batch: pa.RecordBatch) -> pa.Array:
        column = as_bytes(batch.column(name), name)
        if not pa.types.is_null(column.type):
            self.messages[to], self.messages[size] = addresses_of(column)
        return column


def as_bytes(column: pa.Array, name: str) -> pa.Array:
    """Return the column as offsets and bytes.

    Raises:
        TypeError: its values are neither bytes nor text.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if any(test(kind) for test in (pa.types.is_binary, pa.types.is_string, pa.types.is_null)):
        return column
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return column
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    raise TypeError(f"the column {name} holds {kind}, not bytes or text")


def addresses_of(column: pa.Array) -> tuple[Array, Array]:
    """Return the address and the length of each value; 0 and 0 for null."""
    large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    validity, offsets, data = column.buffers()
    rows = len(column)
    ends = np.frombuffer(offsets, np.int64 if large else np.int32)
    ends = ends[column.offset : column.offset + rows + 1].astype(np.int64)
    base = data.address if data is not None and data.size else _NOWHERE.ctypes.data
    lengths = np.diff(ends)
    addresses = ends[:-1] + base
    if column.null_count:
        null = ~_bits(validity, column.offset, rows)
        addresses[null] = 0
        lengths[null] = 0
    return addresses, lengths


def _bits(bitmap: pa.Buffer, offset: int, count: int) -> Array:
    first, last = offset // 8, (offset + count + 7) // 8
    packed = np.frombuffer(bitmap, np.uint8)[first:last]
    bits = np.unpackbits(packed, bitorder="little")
    return bits[offset - first * 8 :][:count].astype(bool)


def topics_of(batch: pa.RecordBatch, topic: str | None) -> tuple[list[str], Array]:
    """Return the topic names, and for each row the index of its topic; each row has one."""
    if topic is not None:
        return [topic], np.zeros(batch.num_rows, np.int64)
    coded = batch.column("topic").cast(pa.string()).dictionary_encode()
    return coded.dictionary.to_pylist(), numbers(coded.indices, 0)


def partitions_of(batch: pa.RecordBatch) -> Array:
    """Return each row's partition, ANY_PARTITION if it is null."""
    if "partition" not in batch.schema.names:
        return np.full(batch.num_rows, ANY_PARTITION, np.int64)
    return numbers(batch.column("partition"), ANY_PARTITION)


def times_of(batch: pa.RecordBatch) -> Array:
    """Return each row's time in ms since 1970, 0 if it is null (librdkafka then uses its own)."""
    if "timestamp" not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int64)
    column = batch.column("timestamp")
    return numbers(column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()), 0)


def numbers(column: pa.Array, instead_of_null: int) -> Array:
    """Return an integer column without `to_numpy`, which imports pandas if it can."""
    if pa.types.is_null(column.type):
        return np.full(len(column), instead_of_null, np.int64)
    column = column.cast(pa.int64())
    validity, data = column.buffers()
    found = np.frombuffer(data, np.int64)[column.offset : column.offset + len(column)].copy()
    if column.null_count:
        found[~_bits(validity, column.offset, len(column))] = instead_of_null
    return found


def arguments_of(messages: Array, topics: Array, partitions: Array, times: Array) -> Array:
    """Return the arguments of rd_kafka_produceva, seven per row; the last is for headers."""
    kinds = (
        (librdkafka.TOPIC_HANDLE, topics, 0),
        (librdkafka.PARTITION, partitions, 0),
        (librdkafka.VALUE, messages["payload"], messages["len"]),
        (librdkafka.KEY, messages["key"], messages["key_len"]),
        (librdkafka.FLAGS, librdkafka.COPY, 0),
        (librdkafka.TIMESTAMP, times, 0),
        (librdkafka.HEADERS, 0, 0),
    )
    arguments = np.zeros((len(messages), len(kinds)), librdkafka.ARGUMENT)
    for place, (kind, value, size) in enumerate(kinds):
        arguments[:, place]["kind"] = kind
        arguments[:, place]["value"] = value
        arguments[:, place]["size"] = size
    return arguments


def groups(topics: Array, partitions: Array) -> Iterator[tuple[int, int, Array | slice]]:
    """Yield (topic, partition, rows) so that each partition gets its rows in order.

    Rows of one topic and partition form a group. If some rows name a partition and others leave it
    to their key, any two may meet in one partition. Then the order of all rows is kept, and a group
    ends where topic or partition changes.
    """
    rows = len(partitions)
    codes = topics * (1 << 33) + partitions
    order: Array = np.arange(rows)
    changes = np.flatnonzero(np.diff(codes))
    if not len(changes):
        yield int(topics[0]), int(partitions[0]), slice(None)
        return
    left_to_key = partitions == ANY_PARTITION
    if left_to_key.all() or not left_to_key.any():
        order = np.argsort(codes, kind="stable")
        changes = np.flatnonzero(np.diff(codes[order]))
    for start, end in zip([0, *(changes + 1)], [*(changes + 1), rows], strict=True):
        first = order[start]
        yield int(topics[first]), int(partitions[first]), order[start:end]
