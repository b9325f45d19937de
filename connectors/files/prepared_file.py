"""What a committable remembers about its file: the name that it will get, and its size."""

from __future__ import annotations

import dataclasses
from typing import Self

from transactions.committable import Committable


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedFile:
    """The file of a prepared transaction.

    It stands in `Committable.marker_partition`, as ``<name>:<bytes>``: the file under that name is
    the mark that proves the commit.

    Attributes:
        name: the final name, in the target folder.
        size: bytes.
    """

    name: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}:{self.size}"

    @classmethod
    def of(cls, committable: Committable) -> Self:
        """Read it back; on the driver."""
        name, _, size = committable.marker_partition.rpartition(":")
        return cls(name, int(size))


def final_name(checkpoint_id: int, subtask: int, unique: str, suffix: str) -> str:
    """Return the name under which readers see a file; sorted by name is sorted by checkpoint."""
    return f"part-{checkpoint_id:010d}-{subtask:05d}-{unique}{suffix}"


def unique_of(name: str) -> str:
    """Return what a final name shares with the id of its transaction, and with no other's."""
    return name.rpartition("-")[2].partition(".")[0]
