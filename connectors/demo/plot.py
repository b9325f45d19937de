"""When the demo kills its driver: at which point of the protocol, and how far the input is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connectors.options.table import CONTINUOUS, MICRO_BATCH

_IN_PHASE_1: Final = ("committables_collected", "SIGKILL in phase 1: prepared, nothing decided")
_DECIDED: Final = ("decision_durable", "SIGKILL between decision and commit")
#: With less than this of loading left a kill may find no more input to make a checkpoint of.
_CERTAIN_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Kill:
    """Where the driver freezes, to be killed there with everything it started.

    Attributes:
        point: see `transactions.crash_points`.
        text: what the viewer reads.
        checkpoint: in which one; None: in the next one when it is due.
        loaded: share of the input that is loaded then, at least.
    """

    point: str
    text: str
    checkpoint: int | None = None
    loaded: float = 0.0

    @property
    def crash_at(self) -> str:
        """The value of SPARKONCE_CRASH_AT."""
        return self.point if self.checkpoint is None else f"{self.point}@{self.checkpoint}"

    def is_due(self, loaded: float, loading_s: float, checkpoints: int) -> bool:
        """Tell whether the next checkpoint is the one.

        A run shall show some work first. But a checkpoint comes for certain only while there is
        input left: what is loaded yet, or, for the second kill, what the first one left undecided.

        Args:
            loaded: share of the input that is loaded.
            loading_s: how long loading all of it takes.
            checkpoints: of the present run.
        """
        late = (1.0 - loaded) * loading_s < _CERTAIN_S
        seen = loaded >= self.loaded and checkpoints > 0
        return self.checkpoint is not None or late or seen


#: Checkpoints of micro-batches are few and their number is known; those of the continuous mode are
#: many, and how many is a matter of the machine.
PLANS: Final[Mapping[str, tuple[Kill, ...]]] = {
    MICRO_BATCH: (Kill(*_IN_PHASE_1, checkpoint=3), Kill(*_DECIDED, checkpoint=7)),
    CONTINUOUS: (Kill(*_IN_PHASE_1, loaded=0.2), Kill(*_DECIDED, loaded=0.65)),
}
