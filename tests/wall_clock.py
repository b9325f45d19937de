"""The wall clock of a child process and of its children: `wall_clock.c`, compiled and preloaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.preloaded import library

SOURCE = Path(__file__).with_suffix(".c")
DAY_S = 86_400


class WallClock:
    """A clock that can be set while processes look at it.

    Args:
        folder: where the library and the file with the time lie.
    """

    def __init__(self, folder: Path) -> None:
        self._library = library(SOURCE, folder)
        self._file = folder / "seconds-ahead"
        self.set_ahead(0)

    def set_ahead(self, seconds: int) -> None:
        """Set it so far ahead, or back; processes see it within a tenth of a second."""
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._file)

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a process that looks at this clock."""
        return {"LD_PRELOAD": str(self._library), "SPARKONCE_WALL_CLOCK": str(self._file)}
