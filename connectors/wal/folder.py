"""Folders whose entries survive a power cut, with a name that every process can use."""

from __future__ import annotations

from pathlib import Path

from transactions.errors import ConfigurationError
from transactions.log_backend import sync_folder
from transactions.log_location import SCHEME


def absolute_folder(folder: str | Path, *, option: str) -> Path:
    """Return the absolute folder that an option names, as a path or a ``file://`` URL.

    Raises:
        ConfigurationError: it is empty, or not on a file system.
    """
    path = str(folder).removeprefix("file://")
    if not path.strip() or SCHEME.match(path):
        raise ConfigurationError(
            "A write-ahead sink needs a folder of a file system.",
            cause="the buffer and the marks need fsync() and rename()",
            option=f"{option}={folder or '(absent)'}",
        )
    return Path(path).absolute()


def made_folder(folder: Path) -> Path:
    """Return the folder, created with its parents if missing; its own name is durable.

    An existing folder is synced too: the process that made it may have died before its sync.
    """
    if not folder.parent.is_dir():
        made_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)
    return folder
