"""Turns librdkafka's messages into Arrow columns: whole arrays at once, by their addresses.

NumPy gets the process's address space as one array that owns nothing; an index into it is an
address. Only indexed places are ever touched: the records that librdkafka has handed out and that
are not yet given back.
"""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.kafka.source.message_columns import (
    headers_column,
    number_column,
    validity_bitmap,
    value_offsets,
)
from connectors.native import librdkafka
from connectors.records.message_schema import SOURCE_SCHEMA

Array = npt.NDArray[Any]

#: Below a process's first address, and above its last one (48 bits are used).
_FIRST, _LAST = 1 << 12, 1 << 48
#: Larger values are copied one by one; that overhead is nothing beside the copy.
_LARGEST_PIECE: Final = 1 << 14

#: rd_kafka_message_t and, behind it, what `rd_kafka_message_timestamp` reads (rdkafka_msg.h). That
#: part is private to librdkafka: we trust it only while that function returns the same.
_CONSUMED: Final = np.dtype(
    {
        "names": [*(librdkafka.MESSAGE.names or ()), "time_type", "time"],
        "formats": ["i4", "u8", "i4", "u8", "i8", "u8", "i8", "i8", "u8", "i4", "i8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64, 92, 96],
        "itemsize": 104,
    }
)
#: A time above this is no accident; other memory contents would give a smaller number.
_TELLING_MS: Final = 1 << 32


_TYPES: Final = {field.name: field.type for field in SOURCE_SCHEMA}


def read_messages(pointers: Array) -> Array:
    """Return copies of the fields of messages at these addresses."""
    found: Array = _space(_CONSUMED.itemsize, 8)[(pointers - _FIRST) >> 3]
    return found.view(_CONSUMED)


def times_of(messages: Array, pointers: Array) -> Array:
    """Return (type, ms since 1970) of each; one by one if the layout is not as expected."""
    found = np.stack([messages["time_type"].astype(np.int64), messages["time"]], axis=1)
    for row in (0, -1):
        told = _time(int(pointers[row]))
        if tuple(found[row].tolist()) != told or told[1] < _TELLING_MS:
            return np.array([_time(one) for one in pointers.tolist()], np.int64)
    return found


def columns_of(messages: Array, times: Array) -> dict[str, pa.Array]:
    """Return the columns of the source's schema, except `topic` and `headers`.

    Args:
        messages: from `read_messages`, none of them an error.
        times: from `times_of`, checked.
    """
    return {
        "key": bytes_column(messages["key"], messages["key_len"]),
        "value": bytes_column(messages["payload"], messages["len"]),
        "partition": number_column(messages["partition"].copy(), _TYPES["partition"]),
        "offset": number_column(messages["offset"].copy(), _TYPES["offset"]),
        "timestamp": number_column(times[:, 1] * 1000, _TYPES["timestamp"]),
        # librdkafka counts from "not available" = 0, Spark from -1.
        "timestampType": number_column((times[:, 0] - 1).astype(np.int32), _TYPES["timestampType"]),
    }


def headers_of(pointers: Array) -> pa.Array:
    """Return the column `headers`. Slow: one call per record, and one per header."""
    return headers_column([_headers(one) for one in pointers.tolist()])


def bytes_column(addresses: Array, lengths: Array) -> pa.Array:
    """Copy the bytes at these addresses into a column; an address of 0 is null."""
    filled = addresses != 0
    validity = None
    if not filled.all():
        lengths = np.where(filled, lengths, 0)
        validity = validity_bitmap(filled)
    ends = value_offsets(lengths)
    data = np.empty(int(ends[-1]), np.uint8)
    _copy(addresses.astype(np.int64), lengths, ends[:-1].astype(np.int64), data)
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _copy(sources: Array, lengths: Array, targets: Array, data: Array) -> None:
    """Copy each value to its place in `data`.

    Values of one length are copied as items of that size. Other values are copied by the largest
    power of two in their length: once from the front, once up to the end; the pieces overlap.
    """
    if not len(data):
        return
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest <= _LARGEST_PIECE:
        data.view(f"V{longest}")[:] = _space(longest, 1)[sources - _FIRST]
        return
    for number in np.flatnonzero(lengths > _LARGEST_PIECE):
        place = data.ctypes.data + int(targets[number])
        ctypes.memmove(place, int(sources[number]), int(lengths[number]))
    size = 1
    while size <= min(longest, _LARGEST_PIECE):
        of_size = np.flatnonzero((lengths >= size) & (lengths < 2 * size))
        of_size = of_size[lengths[of_size] <= _LARGEST_PIECE]
        if len(of_size):
            pieces = _space(size, 1)
            into = np.ndarray(len(data) - size + 1, f"V{size}", data, 0, (1,))
            source, target = sources[of_size] - _FIRST, targets[of_size]
            into[target] = pieces[source]
            rest = lengths[of_size] - size
            into[target + rest] = pieces[source + rest]
        size *= 2


@functools.lru_cache(maxsize=64)
def _space(size: int, step: int) -> Array:
    """Return the address space as items of `size` bytes, one at every `step` bytes."""
    interface = {
        "data": (_FIRST, True),  # read-only
        "shape": ((_LAST - _FIRST - size) // step,),
        "strides": (step,),
        "typestr": f"|V{size}",
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))


def _time(message: int) -> tuple[int, int]:
    kind = ctypes.c_int()
    time = librdkafka.library().rd_kafka_message_timestamp(message, ctypes.byref(kind))
    return kind.value, time


def _headers(message: int) -> list[tuple[str, bytes | None]]:
    lib = librdkafka.library()
    headers = ctypes.c_void_p()
    if lib.rd_kafka_message_headers(message, ctypes.byref(headers)):
        return []
    name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    found: list[tuple[str, bytes | None]] = []
    for number in range(lib.rd_kafka_header_cnt(headers)):
        librdkafka.check_code(
            lib.rd_kafka_header_get_all(
                headers, number, ctypes.byref(name), ctypes.byref(value), ctypes.byref(size)
            )
        )
        raw = None if value.value is None else ctypes.string_at(value.value, size.value)
        found.append(((name.value or b"").decode(), raw))
    return found
