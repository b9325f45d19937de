"""A fingerprint of records: their number, and a sum of hashes that forgets their order.

What it proves: a replay that produces the same records, in any order, has the same fingerprint.
Other records have another fingerprint, except by a chance of about 2**-64. It is a sum, not an XOR,
because equal records would cancel in pairs (seen: {a,b,c,c} and {a,b,d,d} had one XOR and one
count).

Each field is hashed as 64-bit words times pseudo-random odd weights (multilinear hashing), twice
with other weights, then mixed; null differs from empty. The words of all records are one matrix, so
that most of the work is its product with the weights; benchmarks/fingerprint.py shows its share of
the throughput. A decision log holds these values, so they must not change.
"""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_LANES: Final = 2
_MASK_128: Final = (1 << 128) - 1
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_COLUMN_SALT: Final = np.arange(6, dtype=np.uint64) * _GOLDEN
_LANE_SALT: Final = np.array(
    [[0xA0761D6478BD642F * (lane + 1) & 0xFFFFFFFFFFFFFFFF] for lane in range(_LANES)], np.uint64
)
_NULL: Final = np.uint64(0xD6E8FEB86659FD93)
_TAIL_MASK: Final = np.array([(1 << (8 * n)) - 1 for n in range(8)], dtype=np.uint64)
#: Rows, and words of a matrix, that are hashed at a time. What fits into a processor's cache has
#: twice the speed, and fewer rows cost more in calls (measured).
_ROWS: Final = 1 << 11
_MATRIX_WORDS: Final = 1 << 15
#: Rows wait for each other while there are fewer than `_ROWS`, and all together are not larger than
#: this.
_WAITING_BYTES: Final = 1 << 18


class Fingerprint:
    """Accumulates over the batches of one transaction; made in the task.

    Small batches wait for each other: ten rows cost as much as five hundred, 0.14 ms (measured).

    Attributes:
        count: rows that were added.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0
        self._waiting: list[pa.RecordBatch] = []
        self._rows_waiting = 0
        self._bytes_waiting = 0
        self._topic: str | None = None

    def add(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Add a batch of the sink's schema (see connectors.records.message_schema.SINK_SCHEMA).

        Args:
            batch: any of the columns key, value, headers, topic, partition. Like all Arrow data,
                nobody changes it afterwards.
            topic: the sink's topic option, which wins over a column.
        """
        rows, size = batch.num_rows, batch.nbytes
        self.count += rows
        full = self._rows_waiting + rows > _ROWS or self._bytes_waiting + size > _WAITING_BYTES
        alike = not self._waiting or self._waiting[0].schema == batch.schema
        if full or topic != self._topic or not alike:
            self._add_waiting()
        if rows < _ROWS and size <= _WAITING_BYTES:
            self._waiting.append(batch)
            self._rows_waiting += rows
            self._bytes_waiting += size
            self._topic = topic
            return
        for begin in range(0, rows, _ROWS):
            self._add(batch.slice(begin, _ROWS), topic)

    def _add_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._rows_waiting = self._bytes_waiting = 0
        if len(waiting) > 1:
            waiting = pa.Table.from_batches(waiting).combine_chunks().to_batches()
        for batch in waiting:
            self._add(batch, self._topic)

    def _add(self, batch: pa.RecordBatch, topic: str | None) -> None:
        rows = batch.num_rows
        lanes = np.zeros((_LANES, rows), dtype=np.uint64)
        for number, name in enumerate(("key", "value", "headers", "topic", "partition"), start=1):
            if name == "topic" and topic is not None:
                lanes += _hash_topic(topic)
            elif name in batch.schema.names:
                lanes += _mix(_hash_column(batch.column(name)) + _COLUMN_SALT[number])
        low, high = (_total(lane) for lane in _mix(lanes))
        self._sum = (self._sum + (high << 64) + low) & _MASK_128

    def hex(self) -> str:
        """Return the sum as 32 hex digits."""
        self._add_waiting()
        return f"{self._sum:032x}"


class TopicFingerprint:
    """Accumulates the records of a sink whose topic option is known: see `Fingerprint`."""

    def __init__(self, topic: str | None) -> None:
        self._topic = topic
        self._sum = Fingerprint()

    @property
    def count(self) -> int:
        """Rows so far."""
        return self._sum.count

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of the sink's schema."""
        self._sum.add(batch, self._topic)

    def hex(self) -> str:
        """Return the sum as 32 hex digits."""
        return self._sum.hex()


class TextFingerprint(abc.ABC):
    """Accumulates rows, each as one text that holds all of it: see `Fingerprint`. A subclass frames
    them.
    """

    def __init__(self) -> None:
        self._sum = Fingerprint()

    @staticmethod
    @abc.abstractmethod
    def texts(batch: pa.RecordBatch) -> Iterable[pa.Array]:
        """Return the texts of the rows of a batch, in pieces. A decision log holds their sums, so
        they must not change.
        """

    @property
    def count(self) -> int:
        """Rows so far."""
        return self._sum.count

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        for texts in self.texts(batch):
            self.add_texts(texts)

    def add_texts(self, texts: pa.Array) -> None:
        """Add a piece of what `texts` gave."""
        self._sum.add(pa.record_batch([texts.cast(pa.binary())], names=["value"]), None)

    def hex(self) -> str:
        """Return the sum as 32 hex digits."""
        return self._sum.hex()


@functools.lru_cache(maxsize=64)
def _hash_topic(topic: str) -> Words:
    salt = int.from_bytes(hashlib.blake2b(topic.encode()).digest()[:8])
    return _mix(np.full((_LANES, 1), salt, np.uint64))


def _hash_column(column: pa.Array) -> Words:
    """Hash each value into `_LANES` words: a row for each lane."""
    if pa.types.is_list(column.type):
        column = pa.array([_framed_headers(value) for value in column.to_pylist()], pa.binary())
    elif pa.types.is_integer(column.type):
        column = pc.cast(pc.cast(column, pa.string()), pa.binary())
    column = column.cast(pa.binary())
    if not column.null_count:
        return _hash_binary(column, None)
    null = column.is_null().to_numpy(zero_copy_only=False)
    lanes = _hash_binary(column, null)
    lanes[:, null] = _NULL
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


def _hash_binary(column: pa.Array, null: npt.NDArray[np.bool_] | None) -> Words:
    _, offsets_buffer, data = column.buffers()
    rows = len(column)
    ends = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + rows + 1]
    first, last = int(ends[0]), int(ends[-1])
    starts = ends[:-1].astype(np.int64) - first
    lengths: Numbers = np.diff(ends).astype(np.int64)
    if null is not None:
        lengths[null] = 0
    lanes: Words = lengths.astype(np.uint64) * _weights(0, 1)
    if data is None or first == last:
        return lanes
    whole = lengths >> 3
    # After each byte there are as many words as a matrix is wide.
    width = min(int(whole.max()) + 1, _MATRIX_WORDS)
    padded = np.empty(last - first + 8 * width, dtype=np.uint8)
    padded[: last - first] = np.frombuffer(data, np.uint8)[first:last]
    padded[last - first :] = 0
    for chosen, begin, matrix in _matrices(padded, starts, whole):
        lanes[:, chosen] += _weights(begin + 1, matrix.shape[1]) @ matrix.T
    left = lengths & 7
    if left.any():
        word_at_each_byte = np.ndarray((len(padded) - 7,), "<u8", padded, 0, (1,))
        tails = word_at_each_byte[starts + 8 * whole]
        tails &= _TAIL_MASK[left]
        weights = _weights_at(whole + 1)
        weights *= tails
        lanes += weights
    return lanes


def _matrices(
    padded: npt.NDArray[np.uint8], starts: Numbers, counts: Numbers
) -> Iterator[tuple[Numbers | slice, int, Words]]:
    """Yield (rows, position of the first word, whole words). Each record is a row, filled up with
    zeros to the longest.

    Records in one matrix differ in length by less than a factor of two. So a record of a megabyte
    among thousands of ten bytes costs no more than its own length: it comes alone, piece by piece.
    """
    size, most = 1, int(counts.max())
    while size <= most:
        of_size = np.flatnonzero((counts >= size) & (counts < 2 * size))
        for begin in range(0, len(of_size), _rows_of(2 * size)):
            part = slice(begin, begin + _rows_of(2 * size))
            chosen = part if len(of_size) == len(counts) else of_size[part]
            mine = counts[chosen]
            least, longest = int(mine.min()), int(mine.max())
            for word in range(0, longest, _MATRIX_WORDS):
                width = min(longest - word, _MATRIX_WORDS)
                matrix = _words(padded, starts[chosen] + 8 * word, width)
                if least < longest:
                    matrix[:, least:][np.arange(least, longest) >= mine[:, None]] = 0
                yield chosen, word, matrix
        size *= 2


def _words(padded: npt.NDArray[np.uint8], starts: Numbers, count: int) -> Words:
    """Return `count` words from each start on; a copy in one piece, at the speed of memory."""
    pieces = np.ndarray((len(padded) - 8 * count + 1,), f"V{8 * count}", padded, 0, (1,))
    return pieces[starts].view("<u8").reshape(len(starts), count)


def _rows_of(words: int) -> int:
    return max(1, _MATRIX_WORDS // words)


def _weights(begin: int, count: int) -> Words:
    """Return the odd pseudo-random weights of word positions: a row for each lane."""
    if begin + count <= _MATRIX_WORDS:
        return _first_weights((begin + count).bit_length())[:, begin : begin + count]
    return _made_weights(np.arange(begin, begin + count))


def _weights_at(positions: Numbers) -> Words:
    most = int(positions.max())
    if most < _MATRIX_WORDS:
        return np.take(_first_weights(most.bit_length()), positions, axis=1)
    return _made_weights(positions)


@functools.lru_cache(maxsize=32)
def _first_weights(bits: int) -> Words:
    """Return the weights of the first 2**bits positions: most records need only these."""
    return _made_weights(np.arange(1 << bits))


def _made_weights(positions: Numbers) -> Words:
    """Return splitmix64 of the positions."""
    seeds = (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return _mix(seeds + _LANE_SALT) | np.uint64(1)


def _mix(words: Words) -> Words:
    """Spread every input bit over the word (the finaliser of splitmix64)."""
    mixed = words >> np.uint64(30)
    mixed ^= words
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _total(words: Words) -> int:
    """Sum without overflow, exactly."""
    low = int((words & np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64))
    high = int((words >> np.uint64(32)).sum(dtype=np.uint64))
    return (high << 32) + low
