"""A committable's knowledge of its file: the name that it will get, and its size."""

from __future__ import annotations

import dataclasses
from typing import Self

from transactions.committable import Committable


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedFile:
    """The file of a prepared transaction.

    `Committable.marker_partition` holds it as ``<name>:<bytes>``: a file under that name proves the
    commit.

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
        """Parse it from a committable; on the driver."""
        name, _, size = committable.marker_partition.rpartition(":")
        return cls(name, int(size))


def final_name(checkpoint_id: int, subtask: int, unique: str, suffix: str) -> str:
    """Return the name under which readers see a file; names sort by checkpoint."""
    return f"part-{checkpoint_id:010d}-{subtask:05d}-{unique}{suffix}"


def unique_of(name: str) -> str:
    """Return the part of a final name that only its own transaction's id contains."""
    return name.rpartition("-")[2].partition(".")[0]
