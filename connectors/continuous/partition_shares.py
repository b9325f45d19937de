"""Which subtask reads which partitions, and from where: the shares of the source's ListState."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from transactions.list_state import offsets_of, offsets_state


class PartitionShares:
    """The partitions of a running stage. Lives on the driver.

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
        self._shares = [offsets_of(part) for part in parts]
        self.offsets = {**offsets, **resting}

    def start_of(self, subtask: int) -> Mapping[str, int]:
        """Return what a subtask reads, and from where."""
        return dict(self._shares[subtask])

    def names(self) -> dict[str, str]:
        """Return the partitions of each subtask: healing must read them again."""
        return {str(n): ",".join(sorted(share)) for n, share in enumerate(self._shares)}

    def add(self, partitions: Mapping[str, int]) -> dict[int, dict[str, int]]:
        """Deal new partitions out, each to the subtask that has the fewest.

        Returns:
            What each subtask gets.
        """
        given: dict[int, dict[str, int]] = {}
        for name in sorted(set(partitions) - set(self.offsets)):
            subtask = min(range(len(self._shares)), key=lambda n: len(self._shares[n]))
            self._shares[subtask][name] = partitions[name]
            given.setdefault(subtask, {})[name] = partitions[name]
            self.offsets[name] = partitions[name]
        return given
