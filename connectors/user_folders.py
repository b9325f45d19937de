"""Where sparkonce keeps things of a user: a cache that may be deleted, and state that may not."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache of this user (Java, the broker's jars); deleting it is always safe."""
    return _folder("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Return the folder for what outlives a command, such as which brokers `kafka up` started."""
    return _folder("XDG_STATE_HOME", ".local/state")


def _folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / default
    return root / "sparkonce"
