"""The ids that no task may use again, kept while a task could still try them.

Every task gets this list, so it may not grow for ever. A rule of the workers bounds it: after
`MOST_IDLE_CHECKPOINTS` without use, a worker drops a producer with its id, whatever the driver says
of it. The last transaction on a retired id belongs to the checkpoint that retired it or to an
earlier one. That many checkpoints later no worker would take its producer any more, so the list can
forget the id.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: A branch idle for longer pays for a new producer (some 10 ms) when records come again.
MOST_IDLE_CHECKPOINTS: Final = 64


class RetiredIds:
    """Ids, each with the checkpoint that retired it. Lives on the driver, for one run."""

    def __init__(self) -> None:
        self._retired: dict[str, int] = {}
        self._newest = -1

    def reached(self, checkpoint_ids: Iterable[int]) -> None:
        """Note that these checkpoints are being committed, and forget old ids."""
        self._newest = max(self._newest, *checkpoint_ids, -1)
        oldest = self._newest - MOST_IDLE_CHECKPOINTS
        self._retired = {name: at for name, at in self._retired.items() if at > oldest}

    def add(self, transactional_ids: Iterable[str]) -> None:
        """Retire ids; tasks of the next checkpoint may already be running."""
        self._retired.update(dict.fromkeys(transactional_ids, self._newest + 1))

    def all(self) -> frozenset[str]:
        """Return the ids that a task could still try to use."""
        return frozenset(self._retired)
