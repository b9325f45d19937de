"""The pauses of the embedded broker, and the slowest checkpoints beside them.

A Java virtual machine (JVM) stops all its threads at a *safepoint*: for a garbage collection, or to
replace compiled code. No request is answered then. So a checkpoint can be slow with no fault of its
own. The JVM writes each of these pauses to a log of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from connectors.bench.figures import PHASES, Line, total_ms

_FILES: Final = "broker-pauses-*.log*"  # the JVM begins another file after 20 MB
#: JDK 17: [1764392000123ms] Safepoint "G1CollectForAllocation", Time since last: ..., Total: 77 ns
_PAUSE: Final = re.compile(r'^\[(\d+)ms\] *Safepoint "([^"]+)",.* Total: *(\d+) ns')


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """A time in which no thread of a broker ran.

    Attributes:
        end_ns: its end, wall clock in ns; the JVM writes whole milliseconds.
        took_ns: how long it took.
        reason: the JVM's name of the operation.
    """

    end_ns: int
    took_ns: int
    reason: str

    def shared_ns(self, start_ns: int, end_ns: int) -> int:
        """Return how much of this pause lies between two moments."""
        return max(0, min(self.end_ns, end_ns) - max(self.end_ns - self.took_ns, start_ns))


def log_option(folder: Path) -> str:
    """Return the JVM option with which every broker writes its pauses to a file in the folder. The
    quotes are for a folder with a colon in its name.
    """
    return f'-Xlog:safepoint=info:file="{folder}/broker-pauses-%p.log":timemillis'


def read(folder: Path) -> list[Pause]:
    """Return the pauses that brokers with `log_option` have written to the folder so far."""
    found: list[Pause] = []
    for path in sorted(folder.glob(_FILES)):
        found += parse(path.read_text("utf-8", "replace").splitlines())
    return found


def parse(lines: Iterable[str]) -> list[Pause]:
    """Return the pauses in the lines of a log; other lines are left out."""
    matches = filter(None, map(_PAUSE.match, lines))
    return [
        Pause(int(ended) * 1_000_000, int(took), reason)
        for ended, reason, took in (match.groups() for match in matches)
    ]


def slowest(rows: Sequence[Line], most: int, pauses: Sequence[Pause] | None) -> list[Line]:
    """Return the slowest checkpoints, the slowest first.

    Args:
        rows: checkpoints, see `figures.checkpoints_of`.
        most: how many are returned.
        pauses: of the broker; None if nobody knows them.

    Returns:
        For each: `id`, `end_ns`, `records`, its phases in ms, `total_ms` (all phases), and, where
        the pauses are known, `broker_pause_ms`: how much of its time the broker stood still.
    """
    by_time = sorted(rows, key=total_ms, reverse=True)[:most]
    return [_told(row, pauses) for row in by_time]


def share(rows: Sequence[Line], pauses: Sequence[Pause]) -> float:
    """Return the part of the measured time in which a broker stood still: what a checkpoint has of
    it by chance. There is at least one checkpoint.
    """
    start_ns, end_ns = _start_ns(rows[0]), int(rows[-1]["end_ns"])
    stood_ns = sum(pause.shared_ns(start_ns, end_ns) for pause in pauses)
    return round(stood_ns / max(end_ns - start_ns, 1), 4)


def _told(row: Line, pauses: Sequence[Pause] | None) -> Line:
    phases: Line = {name: round(row[name], 2) for name in PHASES if name in row}
    told: Line = {"id": row["id"], "end_ns": row["end_ns"], "records": row["records"], **phases}
    told["total_ms"] = round(total_ms(row), 2)
    if pauses is not None:
        shared_ns = sum(pause.shared_ns(_start_ns(row), row["end_ns"]) for pause in pauses)
        told["broker_pause_ms"] = round(shared_ns / 1e6, 2)
    return told


def _start_ns(row: Line) -> int:
    return int(row["end_ns"] - total_ms(row) * 1e6)
