"""The content of a measured record: an id, the time of its production, then filler.

key = the id, 8 bytes; value = wall clock in ns, 8 bytes, then filler. The job replaces the last
byte of the filler. Ids below zero are probes: they show that a job runs, and do not count.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

KEY_BYTES: Final = 8
STAMP_BYTES: Final = 8
#: A stamp and the byte that the job replaces.
LEAST_VALUE_BYTES: Final = STAMP_BYTES + 1
#: The job writes this over the last byte: a count cannot see that a record is unchanged.
DONE: Final = b"T"

_LONG: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Shape:
    """How many partitions a measured topic has, and how long a value is, in bytes."""

    partitions: int = 2
    value_bytes: int = 100
    _filler: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the filler once."""
        assert self.value_bytes >= LEAST_VALUE_BYTES, "options check it with a text for people"
        object.__setattr__(self, "_filler", b"x" * (self.value_bytes - STAMP_BYTES))

    def key(self, number: int) -> bytes:
        """Return the key of an id."""
        return _LONG.pack(number)

    def value(self, produced_ns: int) -> bytes:
        """Return the value of a record that is produced at this time of the wall clock."""
        return _LONG.pack(produced_ns) + self._filler

    def partition(self, number: int) -> int:
        """Return the partition of a record; ids go to the partitions in turn."""
        return number % self.partitions


def number_of(key: bytes) -> int:
    """Return the id in a key."""
    return int.from_bytes(key, "big", signed=True)


def stamp_of(value: bytes) -> int:
    """Return the time in a value, ns of the wall clock."""
    return int.from_bytes(value[:STAMP_BYTES], "big")
