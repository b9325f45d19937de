"""How many offsets the next micro-batch takes, so that a checkpoint takes the wanted time.

A batch has a fixed cost beside its records, and each record waits for all others of its batch. So
the size trades throughput against latency, and against the amount that a crash makes us write
again. The size follows the duration of the batches, whatever makes them slow: the function, the
broker, or a partition that is ten times as hot as the others.

The source plans batches in a process of its own, which Spark has started. So the driver passes the
size in a file of the checkpoint folder. The file is not state: a planned batch has its end in
Spark's offsets/N, and without the file the next batch is small.
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
#: A smaller batch costs little less than its planning; it would only be slower.
_LEAST: Final = 1_000
#: One slow batch (a collection, a broker that moved) must not cause ten small ones.
_SHRINK: Final = 0.25
_GROW: Final = 2.0
#: A batch that is less full than this says nothing about a larger batch.
_FULL: Final = 0.9


@dataclasses.dataclass(slots=True)
class BatchSize:
    """The most offsets of a batch, over all partitions of a source. Lives on the driver.

    Attributes:
        target_s: how long a checkpoint should take, from its first task to its last commit.
        folder: the checkpoint folder.
        size: the number of offsets.
    """

    target_s: float
    folder: Path
    size: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Continue with the size of the run before.

        Raises:
            ConfigurationError: the target is not more than 0.
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
        """The file from which the source reads the size."""
        return self.folder / FILE_NAME

    def after(self, offsets: int, took_s: float) -> None:
        """Adapt the size to a batch that was not a replay.

        Args:
            offsets: how many it covered.
            took_s: how long its checkpoint took.
        """
        wanted = self.size * min(max(self.target_s / took_s, _SHRINK), _GROW)
        if wanted < self.size or offsets >= _FULL * self.size:
            self.size = max(_LEAST, round(wanted))
            self._write()

    def _write(self) -> None:
        """Replace the whole file. An error must not fail a committed batch: the file is a hint.
        An older driver may replace it at the same moment, and a crash may lose it.
        """
        new = self.file.with_name(f".{FILE_NAME}.new")
        with contextlib.suppress(OSError):
            new.write_text(str(self.size), "ascii")
            new.replace(self.file)


def read_size(file: Path) -> int:
    """Return the size that the driver wrote last, or the first size if it wrote none. Called on
    the driver, and in the source's process.
    """
    with contextlib.suppress(OSError, ValueError):
        return max(1, int(file.read_text("ascii")))
    return _FIRST
