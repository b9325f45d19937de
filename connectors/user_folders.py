"""Folders of a user: a cache that may be deleted, state that may not, and the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from transactions.errors import ConfigurationError


def cache_folder() -> Path:
    """Return the cache of this user (Java, jars); it can be deleted while nothing of ours runs."""
    return _folder("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Return the folder for what outlives a command, such as which brokers `kafka up` started."""
    return _folder("XDG_STATE_HOME", ".local/state")


def checkpoint_folder(checkpoint: str) -> Path:
    """Return the absolute folder that an option names, as a path or a ``file://`` URL.

    Raises:
        ConfigurationError: it is not of a local file system.
    """
    path = checkpoint.removeprefix("file://")
    if "://" in path:
        raise ConfigurationError(
            "The checkpoint must be a folder of a local file system.",
            cause="the decision log needs link() and fsync()",
            option=f"checkpoint={checkpoint}",
        )
    return Path(path).absolute()


def _folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / default
    return root / "sparkonce"
