"""The events of the demo with their times, and the numbers that come from them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class Kind(enum.Enum):
    """The meaning of a mark on the timeline."""

    START = "start"
    KILL = "kill"
    RESTART = "restart"
    READY = "ready"
    RECOVERED = "recovered"
    LOADED = "loaded"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, in seconds since the demo began."""

    at: float
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """The number of acknowledged input records and of visible output records."""

    at: float
    loaded: int
    visible: int


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """A finished checkpoint, as the job reported it."""

    at: float
    checkpoint_id: int
    records: int
    transactions: int
    replayed: bool
    commit_ms: float


@dataclass
class History:
    """The supervisor writes it; the screen, the picture and the final table read it."""

    total: int
    samples: list[Sample] = field(default_factory=list)
    checkpoints: list[CheckpointLine] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    loaded: int = 0
    visible: int = 0
    recommitted: int = 0

    def sample(self, at: float) -> None:
        """Store the present counts."""
        self.samples.append(Sample(at, self.loaded, self.visible))

    def mark(self, at: float, kind: Kind, text: str) -> None:
        """Store a mark."""
        self.marks.append(Mark(at, kind, text))

    def checkpoint(self, at: float, message: dict[str, Any]) -> None:
        """Store a checkpoint that the job reported."""
        self.recommitted += message["recommitted"]
        self.checkpoints.append(
            CheckpointLine(
                at=at,
                checkpoint_id=message["id"],
                records=message["records"],
                transactions=message["transactions"],
                replayed=message["replayed"],
                commit_ms=message["commit_ms"],
            )
        )

    def of(self, kind: Kind) -> list[Mark]:
        """Return the marks of a kind."""
        return [mark for mark in self.marks if mark.kind is kind]

    @property
    def outages(self) -> list[tuple[float, float]]:
        """Return every pause, from a kill to the next finished checkpoint."""
        ends = [line.at for line in self.checkpoints] + [self.samples[-1].at]
        return [(kill.at, min(e for e in ends if e >= kill.at)) for kill in self.of(Kind.KILL)]

    @property
    def max_lag(self) -> int:
        """Return the maximum number of records that were loaded but not visible."""
        return max((one.loaded - one.visible for one in self.samples), default=0)

    @property
    def records_per_second(self) -> float:
        """Return the rate from the first record loaded to the last one visible."""
        loading = [one.at for one in self.samples if one.loaded]
        done = [one.at for one in self.samples if one.visible == self.visible]
        seconds = done[0] - loading[0] if loading and done else 0.0
        return self.visible / seconds if seconds > 0 else 0.0

    @property
    def peak_per_second(self) -> float:
        """Return the best rate of one second; it shows how fast the job catches up."""
        best, first = 0.0, 0
        for last, one in enumerate(self.samples):
            while first + 1 < last and one.at - self.samples[first + 1].at >= 1.0:
                first += 1
            seconds = one.at - self.samples[first].at
            if seconds >= 1.0:
                best = max(best, (one.visible - self.samples[first].visible) / seconds)
        return best

    def commit_ms(self, percent: float) -> float:
        """Return a percentile of the commit latency of all checkpoints that were not replayed."""
        values = sorted(line.commit_ms for line in self.checkpoints if not line.replayed)
        if not values:
            return 0.0
        return values[min(len(values) - 1, int(len(values) * percent / 100.0))]
