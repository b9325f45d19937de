"""Folders of a user: a cache that may be deleted, state that may not, and the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import ConfigurationError


def cache_folder() -> Path:
    """Return this user's cache (Java, jars); it may be deleted while nothing of ours runs."""
    return _folder("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Return the folder for state that outlives a command, such as `kafka up`'s brokers."""
    return _folder("XDG_STATE_HOME", ".local/state")


def checkpoint_folder(checkpoint: str | Path | CheckpointLocation) -> Path:
    """Return the absolute folder of a checkpoint whose files we sync or copy ourselves.

    Raises:
        ConfigurationError: it is not on a local file system.
    """
    location = CheckpointLocation.of(checkpoint)
    if location.folder is None:
        raise ConfigurationError(
            "The checkpoint must be a folder of a local file system.",
            where=str(location),
            cause="only a driver (StreamingDriver, ContinuousDriver, a job file) can keep it in an "
            "object store: a query of your own and a migration sync or copy its files",
            option=f"checkpoint={location}: name a folder",
        )
    return location.folder


def _folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / default
    return root / "sparkonce"
