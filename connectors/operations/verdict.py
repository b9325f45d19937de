"""What a proof found, by the names that its table shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LOST_TAIL = "lost at the tail"
LOST_MIDDLE = "lost in the middle"
DUPLICATED = "duplicated"
FOREIGN = "foreign"
OUT_OF_ORDER = "out of order"
ORDER_UNKNOWN = "order not provable: the identity repeats"
REPEATED = "identity repeats"
NO_IDENTITY = "without identity"
OPEN_TRANSACTION = "open transaction"
#: No fault of the output: these records cannot be compared by this identity.
UNCOMPARED = frozenset({ORDER_UNKNOWN, REPEATED, NO_IDENTITY})


@dataclass(frozen=True, slots=True)
class Example:
    """One record of an anomaly: where it is (output), and where it came from (input)."""

    output: str
    source: str

    def __str__(self) -> str:
        """Return the places that are known."""
        if self.output and self.source:
            return f"{self.output} (from {self.source})"
        return self.output or self.source


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the proof found; `ok` says whether it holds.

    Attributes:
        records_in: committed records of the input that must be in the output.
        records_out: committed records of the output.
        records_late: those of the input that came while the proof ran; they may be in the output.
        missing_allowed: whether the user declared that losses are on purpose.
        anomalies: count by name, only what is not 0.
        examples: the first records of each name.
        still_growing: partitions that grew during the proof: the pipeline was not at rest.
        held_back: partitions of the input with records behind an open transaction; these records do
            not count, no reader of committed records has them.
        removed: partitions whose first records that would count are gone (retention).
        compacted: topics whose older records of a key may be gone, on either side.
        searched: False when equal sums alone were the proof.
    """

    records_in: int
    records_out: int
    records_late: int = 0
    missing_allowed: bool = False
    anomalies: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)
    still_growing: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    compacted: tuple[str, ...] = ()
    searched: bool = False

    @property
    def failures(self) -> dict[str, int]:
        """Return the anomalies that break the proof."""
        allowed = (LOST_TAIL, LOST_MIDDLE) if self.missing_allowed else ()
        return {name: n for name, n in self.anomalies.items() if name not in allowed}

    @property
    def ok(self) -> bool:
        """Return whether every input record is in the output exactly once."""
        return not self.failures

    @property
    def may_change(self) -> bool:
        """Return whether a later look may be better: records are missing, and the topics move.

        Time heals nothing else: what is in the output stays there.
        """
        wrong = self.failures.keys() - UNCOMPARED
        moves = bool(self.records_late or self.still_growing)
        return moves and bool(wrong) and wrong <= {LOST_TAIL, LOST_MIDDLE}

    @property
    def uncompared(self) -> bool:
        """Return whether all that fails the proof is records that cannot be compared."""
        return bool(self.failures) and self.failures.keys() <= UNCOMPARED

    @property
    def empty(self) -> bool:
        """Return whether nothing was compared: then `ok` proves nothing.

        An empty output is that, too, if the pipeline may drop records: its name may be wrong.
        """
        return not (self.records_out or self.failures)
