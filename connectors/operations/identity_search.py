"""Compares two bags of identities that may be larger than memory; numpy only, no Kafka.

Two steps. `BagSum` is a count and a sum of 128-bit hashes: equal sums prove equal bags (except for
a chance of about 2**-128) in constant memory, for any identities. If the sums differ, `Search`
finds the records that make the difference: it spills the hashes into bucket files by their first
bits, and compares bucket with bucket, so one bucket is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.void]

#: One record: its identity's hash in two halves, its place, and whether it is a late one: a record
#: of the input that need not have come out yet.
ROW: Final = np.dtype(
    [
        ("high", "<u8"),
        ("low", "<u8"),
        ("offset", "<i8"),
        ("partition", "<u4"),
        ("side", "<u2"),
        ("late", "<u2"),
    ]
)
#: A matched pair of records, input and output.
PAIR: Final = np.dtype([("source", "<i8"), ("offset", "<i8")])

INPUT: Final = 0
OUTPUT: Final = 1

_ROWS_PER_BUCKET: Final = 500_000
_MOST_BUCKETS: Final = 1024
_RANGE_BITS: Final = 22
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)


class BagSum:
    """Number of identities, and the sum of their hashes modulo 2^128."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, rows: Rows) -> None:
        """Add rows; their order does not matter."""
        self.count += len(rows)
        total = _sum64(rows["low"]) + (_sum64(rows["high"]) << 64)
        self._sum = (self._sum + total) % (1 << 128)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BagSum):
            return NotImplemented
        return (self.count, self._sum) == (other.count, other._sum)

    def __hash__(self) -> int:
        return hash((self.count, self._sum))


@dataclass
class Findings:
    """What `Search` found: numbers, and the first records of each kind.

    Examples are pairs (partition, offset) of the output and of the input; one of them may be None.
    """

    limit: int
    lost_at_tail: int = 0
    lost_in_middle: int = 0
    duplicated: int = 0
    foreign: int = 0
    out_of_order: int = 0
    order_unknown: int = 0
    repeated: int = 0
    examples: dict[str, list[tuple[Place | None, Place | None]]] = field(default_factory=dict)

    def note(self, name: str, output: Place | None, source: Place | None) -> None:
        """Keep an example, if there are not yet enough of its kind."""
        if self.wants(name):
            self.examples.setdefault(name, []).append((output, source))

    def wants(self, name: str) -> bool:
        """Return whether another example of this kind is kept."""
        return len(self.examples.get(name, ())) < self.limit


Place = tuple[int, int]
"""Index of a topic partition, and an offset in it."""


class Search:
    """Names the records that make two bags differ.

    Args:
        folder: an empty folder for the spilled hashes, 32 bytes a record.
        records: about how many records come, on both sides together; it sets the number of buckets.
        ordered: also compare the order within each pair of input and output partition.
        examples: how many records to keep of each kind.
        unique: each input record must have an identity of its own; those that have not are counted.
            If an identity repeats, a loss and a duplicate of it leave the bags equal.
    """

    def __init__(
        self, folder: Path, *, records: int, ordered: bool, examples: int, unique: bool = False
    ) -> None:
        self._folder = folder
        self._ordered = ordered
        self._unique = unique
        self._buckets = min(_MOST_BUCKETS, max(1, -(-records // _ROWS_PER_BUCKET)))
        self._findings = Findings(examples)
        self._last_seen: dict[int, int] = {}  # input partition -> last offset that arrived
        self._pairs: set[tuple[int, int, int]] = set()

    def add(self, rows: Rows) -> None:
        """Spill rows of either side."""
        bucket = rows["high"] % np.uint64(self._buckets)
        order = np.argsort(bucket, kind="stable")
        bounds = np.searchsorted(bucket[order], np.arange(self._buckets + 1))
        for number in range(self._buckets):
            part = rows[order[bounds[number] : bounds[number + 1]]]
            if len(part):
                _append(self._folder / f"bucket-{number}", part)

    def finish(self, tick: Callable[[int, int], None] = lambda _done, _all: None) -> Findings:
        """Compare all buckets and return what was found.

        Args:
            tick: called with the number of buckets done and of all.
        """
        for number in range(self._buckets):
            path = self._folder / f"bucket-{number}"
            if path.exists():
                self._compare(np.fromfile(path, dtype=ROW))
                path.unlink()
            tick(number + 1, self._buckets)
        self._split_losses()
        self._check_order()
        return self._findings

    def _compare(self, rows: Rows) -> None:
        keys = ("offset", "partition", "late", "side", "low", "high")
        rows = rows[np.lexsort([rows[key] for key in keys])]
        starts, group = _groups(rows)
        is_out = rows["side"] == OUTPUT
        outs = np.add.reduceat(is_out, starts, dtype=np.int64)
        ins = np.add.reduceat(~is_out, starts, dtype=np.int64)
        # Input rows come first in a group, so a row's rank on its side follows from its place. The
        # late ones are the last of them, so that what came out is taken for what must come out.
        rank = np.arange(len(rows)) - starts[group] - np.where(is_out, ins[group], 0)
        excess = rank >= np.minimum(ins, outs)[group]
        arrived = rows[~excess & ~is_out]
        for partition in np.unique(arrived["partition"]):
            latest = arrived["offset"][arrived["partition"] == partition].max()
            before = self._last_seen.get(int(partition), -1)
            self._last_seen[int(partition)] = max(before, int(latest))
        lost = rows[excess & ~is_out & (rows["late"] == 0)]
        if len(lost):
            _append(self._folder / "lost", lost)
        self._note_extra(rows, np.flatnonzero(excess & is_out), ins[group], starts[group])
        if self._unique:
            self._note_repeated(rows, starts[ins > 1], int(ins[ins > 1].sum()))
        if self._ordered:
            self._pair(rows, starts, ins, outs)

    def _note_extra(
        self,
        rows: Rows,
        extra: npt.NDArray[np.int64],
        inputs: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
    ) -> None:
        foreign = extra[inputs[extra] == 0]
        again = extra[inputs[extra] > 0]
        self._findings.foreign += len(foreign)
        self._findings.duplicated += len(again)
        for at in foreign[: self._findings.limit]:
            self._findings.note("foreign", _place(rows[at]), None)
        for at in again[: self._findings.limit]:
            self._findings.note("duplicated", _place(rows[at]), _place(rows[starts[at]]))

    def _note_repeated(self, rows: Rows, first: npt.NDArray[np.int64], records: int) -> None:
        self._findings.repeated += records
        for at in first[: self._findings.limit]:  # the second record of a group repeats the first
            self._findings.note("identity repeats", None, _place(rows[at + 1]))

    def _pair(
        self,
        rows: Rows,
        starts: npt.NDArray[np.int64],
        ins: npt.NDArray[np.int64],
        outs: npt.NDArray[np.int64],
    ) -> None:
        """Spill the matched pairs, by input partition, output partition and range of offsets."""
        if not self._unique:
            self._findings.order_unknown += int(ins[ins > 1].sum())
        first = starts[(ins == 1) & (outs > 0)]
        sources, outputs = rows[first], rows[first + 1]
        ranges = outputs["offset"] >> _RANGE_BITS
        routes = np.stack([sources["partition"], outputs["partition"], ranges], axis=1)
        for route in np.unique(routes, axis=0):
            chosen = np.all(routes == route, axis=1)
            pairs = np.empty(int(chosen.sum()), dtype=PAIR)
            pairs["source"] = sources["offset"][chosen]
            pairs["offset"] = outputs["offset"][chosen]
            name = (int(route[0]), int(route[1]), int(route[2]))
            self._pairs.add(name)
            _append(self._pair_path(name), pairs)

    def _check_order(self) -> None:
        """Check that in each output partition the offsets of each input partition only rise."""
        latest: dict[tuple[int, int], int] = {}
        for name in sorted(self._pairs):
            source, output, _ = name
            path = self._pair_path(name)
            pairs = np.fromfile(path, dtype=PAIR)
            path.unlink()
            pairs = pairs[np.argsort(pairs["offset"])]
            before = np.full(len(pairs), latest.get((source, output), -1))
            running = np.maximum(np.maximum.accumulate(pairs["source"]), before)
            late = np.flatnonzero(pairs["source"] < running)
            latest[source, output] = int(running[-1])
            self._findings.out_of_order += len(late)
            for at in late[: self._findings.limit]:
                places = (output, int(pairs["offset"][at])), (source, int(pairs["source"][at]))
                self._findings.note("out of order", *places)

    def _split_losses(self) -> None:
        """Split the losses: a loss after the last arrival of its input partition is one at the
        tail.
        """
        for rows in _chunks(self._folder / "lost"):
            known = np.array([self._last_seen.get(int(p), -1) for p in rows["partition"]])
            tail = rows["offset"] > known
            self._findings.lost_at_tail += int(tail.sum())
            self._findings.lost_in_middle += int((~tail).sum())
            for name, kind in (("lost at the tail", tail), ("lost in the middle", ~tail)):
                for row in rows[kind][: self._findings.limit]:
                    self._findings.note(name, None, _place(row))

    def _pair_path(self, name: tuple[int, int, int]) -> Path:
        return self._folder / "pairs-{}-{}-{}".format(*name)


def _groups(rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where each identity starts in sorted rows, and the group number of every row."""
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (rows["high"][1:] != rows["high"][:-1]) | (rows["low"][1:] != rows["low"][:-1])
    return np.flatnonzero(new), np.cumsum(new) - 1


def _place(row: np.void) -> Place:
    return int(row["partition"]), int(row["offset"])


def _append(path: Path, rows: Rows) -> None:
    with path.open("ab") as file:
        file.write(rows.tobytes())


def _chunks(path: Path) -> Iterator[Rows]:
    if path.exists():
        with path.open("rb") as file:
            while len(rows := np.fromfile(file, dtype=ROW, count=_ROWS_PER_BUCKET)):
                yield rows


def _sum64(values: npt.NDArray[np.uint64]) -> int:
    """Sum exactly: the halves of 2^32 values fit into 64 bits."""
    high = int((values >> np.uint64(32)).sum(dtype=np.uint64))
    return (high << 32) + int((values & _LOW_HALF).sum(dtype=np.uint64))
