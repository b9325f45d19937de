"""When the demo kills its driver: the point in the protocol, and the share of loaded input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connectors.options.table import CONTINUOUS, MICRO_BATCH

_IN_PHASE_1: Final = ("committables_collected", "SIGKILL in phase 1: prepared, nothing decided")
_DECIDED: Final = ("decision_durable", "SIGKILL between decision and commit")
#: If less loading time is left, there may be no input for a checkpoint in which to kill.
_CERTAIN_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Kill:
    """The point at which the driver freezes; the demo then kills it and its child processes.

    Attributes:
        point: see `transactions.crash_points`.
        text: the text for the viewer.
        checkpoint: number of the checkpoint; None for the next one when the kill is due.
        loaded: least share of the input that must be loaded.
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
        """Return whether the kill belongs into the next checkpoint.

        A run must do some work first. But another checkpoint is certain only while there is input:
        input that is still to load or, for the second kill, input that the first kill left
        undecided.

        Args:
            loaded: share of the input that is loaded.
            loading_s: time for loading the whole input.
            checkpoints: number of checkpoints in the present run.
        """
        late = (1.0 - loaded) * loading_s < _CERTAIN_S
        seen = loaded >= self.loaded and checkpoints > 0
        return self.checkpoint is not None or late or seen


#: Micro-batch mode has few checkpoints, and their number is known. Continuous mode has many, and
#: their number depends on the machine.
PLANS: Final[Mapping[str, tuple[Kill, ...]]] = {
    MICRO_BATCH: (Kill(*_IN_PHASE_1, checkpoint=3), Kill(*_DECIDED, checkpoint=7)),
    CONTINUOUS: (Kill(*_IN_PHASE_1, loaded=0.2), Kill(*_DECIDED, loaded=0.65)),
}
