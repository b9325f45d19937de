"""A fingerprint of records: their number, and a sum of hashes that forgets their order.

What it proves: a replay that produces the same records, in any order, has the same fingerprint;
another set of records has another one, except by a chance of about 2**-64. A sum is used, not
XOR: equal records would cancel in pairs (seen: {a,b,c,c} and {a,b,d,d} had one XOR and one count).

Each field is hashed as 64-bit words times pseudo-random odd weights (multilinear hashing), twice
with other weights, then mixed; null differs from empty. The work is vectorised over the Arrow
buffers; benchmarks/fingerprint.py shows its share of the throughput.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]

_LANES: Final = 2
_MASK_128: Final = (1 << 128) - 1
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_COLUMN_SALT: Final = np.arange(6, dtype=np.uint64) * _GOLDEN
_NULL: Final = np.uint64(0xD6E8FEB86659FD93)
_TAIL_MASK: Final = np.array(
    [0xFFFFFFFFFFFFFFFF] + [(1 << (8 * n)) - 1 for n in range(1, 8)], dtype=np.uint64
)


class Fingerprint:
    """Accumulates over the batches of one transaction; made in the task."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Add a batch of the sink's schema (see connectors.records.SINK_SCHEMA).

        Args:
            batch: any of the columns key, value, headers, topic, partition.
            topic: the sink's topic option, which wins over a column.
        """
        rows = batch.num_rows
        if rows == 0:
            return
        lanes = [np.zeros(rows, dtype=np.uint64) for _ in range(_LANES)]
        for number, name in enumerate(("key", "value", "headers", "topic", "partition"), start=1):
            if name == "topic" and topic is not None:
                salt = np.uint64(int.from_bytes(hashlib.blake2b(topic.encode()).digest()[:8]))
                for lane in lanes:
                    np.add(lane, _mix(np.full(rows, salt)), out=lane)
            elif name in batch.schema.names:
                column = batch.column(name)
                for lane, words in zip(lanes, _hash_column(column), strict=True):
                    np.add(lane, _mix(words + _COLUMN_SALT[number]), out=lane)
        low, high = (_mix(lane) for lane in lanes)
        self._sum = (self._sum + (_total(high) << 64) + _total(low)) & _MASK_128
        self.count += rows

    def hex(self) -> str:
        """Return the sum as 32 hex digits."""
        return f"{self._sum:032x}"


def _hash_column(column: pa.Array) -> list[Words]:
    if pa.types.is_list(column.type):
        column = pa.array([_framed_headers(value) for value in column.to_pylist()], pa.binary())
    elif pa.types.is_integer(column.type):
        column = pc.cast(pc.cast(column, pa.string()), pa.binary())
    lanes = _hash_binary(column.cast(pa.binary()))
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        for lane in lanes:
            lane[null] = _NULL
    return lanes


def _framed_headers(headers: list[dict[str, object]] | None) -> bytes | None:
    if headers is None:
        return None
    parts = []
    for header in headers:
        key, value = str(header["key"]).encode(), header["value"]
        assert value is None or isinstance(value, bytes)
        parts.append(b"%d:%b" % (len(key), key))
        parts.append(b"-" if value is None else b"%d:%b" % (len(value), value))
    return b"".join(parts)


def _hash_binary(column: pa.Array) -> list[Words]:
    """Hash each value of a binary column into `_LANES` words."""
    _, offsets_buffer, data = column.buffers()
    rows = len(column)
    offsets: npt.NDArray[np.int32] = pa.Int32Array.from_buffers(
        pa.int32(), rows + 1, [None, offsets_buffer], offset=column.offset
    ).to_numpy()
    starts = offsets[:-1].astype(np.int64)
    lengths = (offsets[1:] - offsets[:-1]).astype(np.int64)
    if column.null_count:
        lengths = np.where(column.is_null().to_numpy(zero_copy_only=False), 0, lengths)
    word_counts = (lengths + 7) >> 3
    most = int(word_counts.max(initial=0))
    lanes = [_weight(lane, 0, 1)[0] * lengths.astype(np.uint64) for lane in range(_LANES)]
    if most == 0 or data is None:
        return lanes
    padded = np.zeros(int(offsets[-1] - offsets[0]) + 8, dtype=np.uint8)
    content = pa.UInt8Array.from_buffers(pa.uint8(), data.size, [None, data]).to_numpy()
    padded[:-8] = content[offsets[0] : offsets[-1]]
    words = np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))
    starts -= int(offsets[0])
    if most * rows <= 4 * int(word_counts.sum()) + 64:
        _add_by_position(lanes, words, starts, lengths, most)
    else:
        _add_by_record(lanes, words, starts, lengths, word_counts)
    return lanes


def _add_by_position(
    lanes: list[Words],
    words: Words,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    most: int,
) -> None:
    """Walk word by word through all records at once: for records of like length."""
    last = len(words) - 1
    for position in range(most):
        left = lengths - 8 * position
        chunk = words[np.minimum(starts + 8 * position, last)]
        if int(left.min()) < 8:
            chunk = chunk & np.where(left >= 8, _TAIL_MASK[0], _TAIL_MASK[np.clip(left, 0, 7)])
            chunk[left <= 0] = 0
        for number, lane in enumerate(lanes):
            np.add(lane, chunk * _weight(number, position + 1, 1)[0], out=lane)


def _add_by_record(
    lanes: list[Words],
    words: Words,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    word_counts: npt.NDArray[np.int64],
) -> None:
    """Walk record by record: for a batch in which one record is far longer than the rest."""
    for row in np.flatnonzero(word_counts):
        count = int(word_counts[row])
        chunk = words[starts[row] : starts[row] + 8 * count : 8].copy()
        chunk[-1] &= _TAIL_MASK[int(lengths[row]) & 7]
        for number, lane in enumerate(lanes):
            lane[row : row + 1] += (chunk * _weight(number, 1, count)).sum(dtype=np.uint64)


def _weight(lane: int, start: int, count: int) -> Words:
    """Return odd pseudo-random weights for word positions (splitmix64 of the position)."""
    positions = np.arange(start, start + count, dtype=np.uint64)
    salt = np.uint64(0xA0761D6478BD642F * (lane + 1) & 0xFFFFFFFFFFFFFFFF)
    return _mix((positions + np.uint64(1)) * _GOLDEN + salt) | np.uint64(1)


def _mix(words: Words) -> Words:
    """Spread every input bit over the word (the finaliser of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _total(words: Words) -> int:
    """Sum without overflow, exactly."""
    low = int((words & np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64))
    high = int((words >> np.uint64(32)).sum(dtype=np.uint64))
    return (high << 32) + low
