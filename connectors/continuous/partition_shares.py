"""Which subtask reads which partitions, and from where: the shares of the source's ListState.

A partition moves in two barriers. The first one takes it from its subtask, which acknowledges the
position; all that it has written of the partition is at the target then. The second one gives it to
another subtask, which begins at that position. So nothing is read twice, and what the new subtask
writes of a partition stands behind what the old one wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from types import MappingProxyType

from transactions.list_state import offsets_of, offsets_state


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a barrier changes.

    Attributes:
        partitioning: the partitions of each subtask up to the barrier; healing must read them
            again.
        readers: the subtasks that have partitions, or get some: the others have nothing to say.
        added: what each subtask reads from the barrier on, and from where.
        removed: what each subtask reads up to the barrier.
    """

    partitioning: Mapping[str, str]
    readers: Set[int]
    added: Mapping[int, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    removed: Mapping[int, tuple[str, ...]] = dataclasses.field(default_factory=dict)


class PartitionShares:
    """The partitions of a running stage. Lives on the driver.

    Attributes:
        offsets: next offset to read of every partition; the caller notes here what was
            acknowledged.

    Args:
        offsets: next offset to read of every partition.
        parallelism: number of subtasks.
        resting: offsets of partitions that nobody reads now; the decisions keep them.
    """

    def __init__(
        self,
        offsets: Mapping[str, int],
        parallelism: int,
        *,
        resting: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        parts = offsets_state(offsets).even_split(parallelism)
        self._starts = [offsets_of(part) for part in parts]
        self._shares = [set(start) for start in self._starts]
        self._active = parallelism
        #: The last barrier took them from a subtask.
        self._moving: set[str] = set()
        self.offsets = {**offsets, **resting}

    def start_of(self, subtask: int) -> Mapping[str, int]:
        """Return what a subtask reads at the start of the stage, and from where."""
        return dict(self._starts[subtask])

    @property
    def active(self) -> int:
        """Return how many subtasks read, or will when all partitions have moved."""
        return min(self._active, sum(map(len, self._shares)) + len(self._moving))

    @property
    def is_moving(self) -> bool:
        """Return whether the next barrier has partitions to give that nobody reads now."""
        return bool(self._moving)

    def change(self, found: Mapping[str, int], active: int) -> Change:
        """Return what the next barrier changes. If it changes anything, the barrier must be sent.

        Args:
            found: partitions that exist, and where those begin that are new.
            active: how many subtasks should read; the first ones do.
        """
        partitioning = {str(n): ",".join(sorted(share)) for n, share in enumerate(self._shares)}
        readers = {n for n, share in enumerate(self._shares) if share}
        new = {name: at for name, at in found.items() if name not in self.offsets}
        self.offsets.update(new)
        arriving, self._moving = {*new, *self._moving}, set()
        removed = {} if arriving else self._take(max(1, min(active, len(self._shares))))
        added = self._give(arriving)
        return Change(
            partitioning=partitioning,
            readers=readers | added.keys(),
            added=added,
            removed=removed,
        )

    def _give(self, arriving: Set[str]) -> dict[int, dict[str, int]]:
        """Deal partitions out, each to the active subtask that has the fewest."""
        given: dict[int, dict[str, int]] = {}
        for name in sorted(arriving):
            subtask = min(range(self._active), key=lambda n: len(self._shares[n]))
            self._shares[subtask].add(name)
            given.setdefault(subtask, {})[name] = self.offsets[name]
        return given

    def _take(self, active: int) -> dict[int, tuple[str, ...]]:
        """Take partitions from subtasks, so that the active ones have an even share once all that
        was taken is dealt out; none if they have it. No more partitions move than that needs.
        """
        if active == self._active:
            return {}
        self._active = active
        least, more = divmod(sum(map(len, self._shares)), active)
        largest = sorted(range(active), key=lambda n: -len(self._shares[n]))
        most = {n: least + (place < more) for place, n in enumerate(largest)}
        taken: dict[int, tuple[str, ...]] = {}
        for subtask, share in enumerate(self._shares):
            leaving = tuple(sorted(share)[most.get(subtask, 0) :])
            if leaving:
                taken[subtask] = leaving
                share.difference_update(leaving)
                self._moving.update(leaving)
        return taken
