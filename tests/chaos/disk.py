"""The checkpoint's disk: a small file system of its own, which can be full or read-only.

Root is above chmod, so a real read-only mount and a really full tmpfs are needed. Where mounting
is not allowed the two kinds of faults are left out, and the report says so.
"""

from __future__ import annotations

import contextlib
import errno
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_SIZE = "192m"
_BLOCK = b"\0" * (1 << 20)
_TRIES = 50


class Disk:
    """A folder for checkpoints; use as a context manager, the mount is gone at the end.

    Attributes:
        folder: where checkpoints go.
        why_not: why it can be neither filled nor made read-only; empty when it can.
    """

    def __init__(self, folder: Path, *, wanted: bool) -> None:
        self.folder = folder
        self.why_not = "" if wanted else "not asked for"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.why_not:
            self.why_not = _mount("-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(self.folder))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.why_not:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False)

    def fill(self) -> str:
        """Use up every byte; return why it could not be done, "" when it was.

        One fault at a time: of a disk that is read-only the filler could not be removed.
        """
        try:
            with self._filler().open("wb", buffering=0) as stream:
                while True:
                    stream.write(_BLOCK)
        except OSError as error:
            if error.errno == errno.EROFS:
                return "the disk is read-only"
            if error.errno != errno.ENOSPC:
                raise
        return ""

    def free(self) -> None:
        """Give the bytes back."""
        self._filler().unlink(missing_ok=True)

    def read_only(self) -> str:
        """Allow no more writes; return why it could not be done, "" when it was."""
        if self._filler().exists():
            return "the disk is full"
        for _ in range(_TRIES):  # refused while a file is open for writing
            if not (why_not := _mount("-o", "remount,ro", str(self.folder))):
                return ""
            time.sleep(0.02)
        return why_not

    def writable(self) -> None:
        """Allow writes again."""
        _mount("-o", "remount,rw", str(self.folder))

    def _filler(self) -> Path:
        return self.folder / "filler"


def _mount(*arguments: str) -> str:
    with contextlib.suppress(FileNotFoundError):
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stderr.strip() or "mount failed"
    return "there is no mount command"
