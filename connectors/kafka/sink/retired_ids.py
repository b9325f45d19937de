"""The ids that no task may use again, for as long as a task could try.

They travel with every task, so they may not grow for ever. What bounds them is a rule of the
workers: a producer that was not used for `MOST_IDLE_CHECKPOINTS` is dropped with its id, whatever
the driver says of it. The last transaction on a retired id is of the checkpoint that retired it or
of one before; that many checkpoints later no worker would take its producer any more, and nobody
has to be told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: A branch without records for so long pays for a new producer (some 10 ms) when they come.
MOST_IDLE_CHECKPOINTS: Final = 64


class RetiredIds:
    """Ids with the checkpoint after which they were retired. Lives on the driver, for one run."""

    def __init__(self) -> None:
        self._retired: dict[str, int] = {}
        self._newest = -1

    def reached(self, checkpoint_ids: Iterable[int]) -> None:
        """Note that these checkpoints are being committed, and forget what is old enough."""
        self._newest = max(self._newest, *checkpoint_ids, -1)
        oldest = self._newest - MOST_IDLE_CHECKPOINTS
        self._retired = {name: at for name, at in self._retired.items() if at > oldest}

    def add(self, transactional_ids: Iterable[str]) -> None:
        """Retire ids; tasks of the next checkpoint may run already."""
        self._retired.update(dict.fromkeys(transactional_ids, self._newest + 1))

    def all(self) -> frozenset[str]:
        """Return those that a task could still try to use."""
        return frozenset(self._retired)
