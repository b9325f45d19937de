"""Folders of a user: a cache that may be deleted, state that may not, and the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from transactions.errors import ConfigurationError
from transactions.log_location import SCHEME

#: A file of the checkpoint folder: the id of its log.
BOUND_TO: Final = "log-id"


def cache_folder() -> Path:
    """Return this user's cache (Java, jars); it may be deleted while nothing of ours runs."""
    return _folder("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Return the folder for state that outlives a command, such as `kafka up`'s brokers."""
    return _folder("XDG_STATE_HOME", ".local/state")


def local_path(address: str) -> Path | None:
    """Return the absolute path that an address names: a path, ``file:///data`` or, as Hadoop writes
    it, ``file:/data``. None for an address of another file system.
    """
    path = address.removeprefix("file://")
    path = path.removeprefix("file:") if path.startswith("file:/") else path
    return None if SCHEME.match(path) else Path(path).absolute()


def checkpoint_folder(checkpoint: str) -> Path:
    """Return the absolute folder that an option names, as a path or a ``file://`` URL.

    Raises:
        ConfigurationError: it is not on a local file system.
    """
    path = local_path(checkpoint)
    if path is None:
        raise ConfigurationError(
            "The checkpoint must be a folder of a local file system.",
            cause="the decision log needs link() and fsync()",
            option=f"checkpoint={checkpoint}",
        )
    return path


def _folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / default
    return root / "sparkonce"
