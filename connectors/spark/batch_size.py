"""How many offsets the next micro-batch takes, so that a checkpoint lasts as long as is wanted.

What a batch costs beside its records is always the same, and a record waits in its batch for all
the others; so the size trades throughput against latency, and against how much is written again
after a crash. It adapts to what batches took, whatever made them slow: the function, the broker, a
partition that is ten times as hot as the others.

The source plans batches in a process of its own, which Spark has started: the size travels in a
file of the checkpoint folder. It is no state. A batch that was planned has its end in Spark's
offsets/N, and without the file the next one begins small.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Final

from transactions.errors import ConfigurationError

#: Option of the data source, not for users: the file.
SIZE_FILE_OPTION: Final = "sparkonce.batchsizefile"
FILE_NAME: Final = "batch-size"

_FIRST: Final = 10_000
#: Below, a batch costs little more than its planning, and less would only be slower.
_LEAST: Final = 1_000
#: One slow batch (a collection, a broker that moved) shall not cost ten small ones.
_SHRINK: Final = 0.25
_GROW: Final = 2.0
#: A batch that holds less than this of what it might says nothing about a larger one.
_FULL: Final = 0.9


@dataclasses.dataclass(slots=True)
class BatchSize:
    """The most offsets of a batch, over all partitions of a source. On the driver.

    Attributes:
        target_s: how long a checkpoint shall take, from its first task to its last commit.
        folder: of the checkpoint.
        size: offsets.
    """

    target_s: float
    folder: Path
    size: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Go on with the size of the run before.

        Raises:
            ConfigurationError: the target is no time.
        """
        if not self.target_s > 0:
            raise ConfigurationError(
                "The target of a checkpoint's duration must be more than 0.",
                where="the streaming driver",
                cause="it is a time in seconds",
                option=f"target_checkpoint_s={self.target_s:g}",
            )
        self.size = read_size(self.file)

    @property
    def file(self) -> Path:
        """Where the source reads it."""
        return self.folder / FILE_NAME

    def after(self, offsets: int, took_s: float) -> None:
        """Take note of a batch that was made from the beginning.

        Args:
            offsets: how many it covered.
            took_s: how long its checkpoint took.
        """
        wanted = self.size * min(max(self.target_s / took_s, _SHRINK), _GROW)
        if wanted < self.size or offsets >= _FULL * self.size:
            self.size = max(_LEAST, round(wanted))
            self._write()

    def _write(self) -> None:
        """Replace the file as a whole. It is a hint, and no reason to fail a batch that is
        committed: an older driver may replace it at the same moment, and a crash may lose it.
        """
        new = self.file.with_name(f".{FILE_NAME}.new")
        with contextlib.suppress(OSError):
            new.write_text(str(self.size), "ascii")
            new.replace(self.file)


def read_size(file: Path) -> int:
    """Return what the driver wrote last; what a pipeline begins with, before it has. On the driver,
    and in the source's process.
    """
    with contextlib.suppress(OSError, ValueError):
        return max(1, int(file.read_text("ascii")))
    return _FIRST
