"""Folders of a user: a cache that may be deleted, state that may not, and the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from transactions.errors import ConfigurationError
from transactions.log_backend import LogBackend
from transactions.log_location import LogLocation


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


def existing_log(checkpoint: str, decision_log: LogLocation | None = None) -> LogBackend:
    """Return the backend of the decision log of a pipeline that has started before.

    Args:
        checkpoint: the folder of its driver.
        decision_log: where its job keeps the log, if not in the checkpoint folder.

    Raises:
        ConfigurationError: there is no log in the folder, or an address is wrong.
    """
    if decision_log is not None:
        return decision_log.backend()
    folder = checkpoint_folder(checkpoint) / "decisions"
    # Making the backend would make the folder: a misspelt one must stay absent.
    if not folder.is_dir():
        raise ConfigurationError(
            "There is no decision log in this checkpoint.",
            where=str(folder.parent),
            cause="the path is wrong, no driver has ever started on it, or its job keeps the "
            "log elsewhere ([decision_log])",
            option=f"--checkpoint {checkpoint}, or --job JOB.toml",
        )
    return LogLocation(folder).backend()


def _folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / default
    return root / "sparkonce"
