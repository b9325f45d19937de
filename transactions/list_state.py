"""ListState: operator state as a list of elements that a restart may hand out in another way.

A source keeps its partition offsets here. After a restart with another parallelism the elements
are dealt out again: *even split* gives each element to exactly one subtask, *union* gives every
element to every subtask. (Flink: `ListState` and `UnionListState` of the operator state store.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class ListState(Generic[T]):
    """An immutable list of state elements, in a stable order.

    Attributes:
        elements: the elements of all subtasks together.
    """

    elements: tuple[T, ...] = ()

    def __iter__(self) -> Iterator[T]:
        """Walk the elements in their stable order."""
        return iter(self.elements)

    def __len__(self) -> int:
        """Return the number of elements."""
        return len(self.elements)

    def even_split(self, parallelism: int) -> tuple[ListState[T], ...]:
        """Deal the elements out: each to exactly one subtask, sizes differ by one at most.

        Called on the driver before each checkpoint, with the parallelism of that checkpoint.
        The classic mistake is to rely on *which* subtask gets an element: only the union of all
        parts is promised.

        Raises:
            ValueError: parallelism is below 1.
        """
        if parallelism < 1:
            raise ValueError(f"parallelism must be at least 1, not {parallelism}")
        size, larger = divmod(len(self.elements), parallelism)
        parts = []
        start = 0
        for subtask in range(parallelism):
            end = start + size + (1 if subtask < larger else 0)
            parts.append(ListState(self.elements[start:end]))
            start = end
        return tuple(parts)

    def union(self, parallelism: int) -> tuple[ListState[T], ...]:
        """Hand every element to every subtask; each picks what is its own.

        Raises:
            ValueError: parallelism is below 1.
        """
        if parallelism < 1:
            raise ValueError(f"parallelism must be at least 1, not {parallelism}")
        return (self,) * parallelism

    @classmethod
    def merge(cls, parts: Iterable[ListState[T]]) -> ListState[T]:
        """Put the parts of an even split together again."""
        return cls(tuple(element for part in parts for element in part))


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class PartitionOffset:
    """One element of a source's ListState: the next offset to read of one partition.

    Attributes:
        partition: ``topic-partition``; the number stands after the last dash.
        offset: the next offset to read.
    """

    partition: str
    offset: int


def offsets_state(offsets: Mapping[str, int]) -> ListState[PartitionOffset]:
    """Return the offsets as ListState, in the stable order of their partitions."""
    return ListState(tuple(PartitionOffset(name, offsets[name]) for name in sorted(offsets)))


def offsets_of(state: ListState[PartitionOffset]) -> dict[str, int]:
    """Return a part of the state as a mapping from partition to next offset."""
    return {element.partition: element.offset for element in state}
