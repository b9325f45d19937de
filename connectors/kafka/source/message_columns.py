"""Consumed messages as Arrow columns: the hottest code of the read side.

Each column takes one `map` over a C method and one bulk conversion. No Python statement runs per
record (about 0.5 us a record; a loop over attributes takes 2). Columns are built from buffers:
`pyarrow.array` of a list or a NumPy array imports pandas where it is installed. That delayed the
first batch of every new worker by 0.7 to 1 s (measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Message

from connectors.records.message_schema import (
    HEADERS_TYPE,
    SOURCE_SCHEMA,
    SOURCE_SCHEMA_WITH_HEADERS,
)
from transactions.errors import SparkOnceError

Int64s = npt.NDArray[Any]

_TYPE_AND_MILLISECONDS = np.dtype((np.int64, 2))
_LARGEST_MS = (2**63 - 1) // 1000


def messages_to_batch(
    messages: Sequence[Message], topic: str, partition: int, *, headers: bool
) -> pa.RecordBatch:
    """Build the rows of one partition.

    Args:
        messages: data of this partition, without error messages, at least one.
        topic: the topic of all messages.
        partition: the partition of all messages.
        headers: add the column `headers`.
    """
    count = len(messages)
    stamps: Int64s = np.fromiter(map(Message.timestamp, messages), _TYPE_AND_MILLISECONDS, count)
    milliseconds: Int64s = stamps[:, 1]
    offsets: Int64s = np.fromiter(map(Message.offset, messages), np.int64, count)
    check_times(milliseconds, offsets, f"{topic}-{partition}")
    fields = {field.name: field.type for field in SOURCE_SCHEMA}
    columns = [
        bytes_array(list(map(Message.key, messages)), pa.binary()),
        bytes_array(list(map(Message.value, messages)), pa.binary()),
        text_constant(topic, count),
        number_column(np.full(count, partition, np.int32), fields["partition"]),
        number_column(offsets, fields["offset"]),
        number_column(milliseconds * 1000, fields["timestamp"]),
        # librdkafka counts from "not available" = 0, Spark from -1.
        number_column((stamps[:, 0] - 1).astype(np.int32), fields["timestampType"]),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA)
    columns.append(headers_column([message.headers() or () for message in messages]))
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA_WITH_HEADERS)


def number_column(values: Int64s, kind: pa.DataType) -> pa.Array:
    """Use an array's bytes as an Arrow type of the same width, without a copy."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def bytes_array(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Build a column from buffers."""
    validity = None
    try:
        data = b"".join(values)  # type: ignore[arg-type]  # None is the rare case
        filled: Sequence[bytes] = values  # type: ignore[assignment]
    except TypeError:
        validity = validity_bitmap([value is not None for value in values])
        filled = [value or b"" for value in values]
        data = b"".join(filled)
    ends = value_offsets(np.fromiter(map(len, filled), np.int64, len(filled)))
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(filled), buffers)


def text_constant(text: str, count: int) -> pa.Array:
    """Make a column with the same text in every row."""
    encoded = text.encode()
    ends = value_offsets(np.full(count, len(encoded), np.int64))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(encoded * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def value_offsets(lengths: Int64s) -> Int64s:
    """Return Arrow's n + 1 offsets; a batch is far smaller than 2 GB, which is asserted."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    assert ends[-1] < 2**31, "a batch too large for 32-bit offsets"
    return ends.astype(np.int32)


def validity_bitmap(valid: Sequence[bool] | Int64s) -> pa.Buffer:
    """Pack the flags of non-null values into Arrow's bitmap."""
    return pa.py_buffer(np.packbits(np.array(valid, bool), bitorder="little"))


def headers_column(given: Sequence[Sequence[tuple[str, bytes | str | None]]]) -> pa.Array:
    """Follow Spark's rule: a record without headers has null, not an empty array."""
    flat = list(chain.from_iterable(given))
    names = bytes_array([name.encode() for name, _ in flat], pa.string())
    values = bytes_array([_as_bytes(value) for _, value in flat], pa.binary())
    entry = HEADERS_TYPE.value_type
    entries = pa.Array.from_buffers(entry, len(flat), [None], children=[names, values])
    ends = value_offsets(np.fromiter(map(len, given), np.int64, len(given)))
    buffers = [validity_bitmap([bool(each) for each in given]), pa.py_buffer(ends)]
    return pa.Array.from_buffers(HEADERS_TYPE, len(given), buffers, children=[entries])


def _as_bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def check_times(milliseconds: Int64s, offsets: Int64s, partition: str) -> None:
    """Refuse timestamps that would overflow the column.

    Raises:
        SparkOnceError: a record's timestamp is too far from 1970 for microseconds.
    """
    worst = int(np.abs(milliseconds).argmax())
    if abs(int(milliseconds[worst])) > _LARGEST_MS:
        raise SparkOnceError(
            "The timestamp of a record is out of range for a timestamp column.",
            where=f"{partition} offset {offsets[worst]}",
            cause=f"its producer wrote {milliseconds[worst]} ms since 1970",
            option="message.timestamp.before.max.ms of the topic",
        )
