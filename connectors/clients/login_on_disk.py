"""The login of a client as it is now: its options, and what is in the files that they name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from connectors.clients.login import NAMES

_FILE: Final = ".location"
#: Options as a user writes them, and of each file a digest; "" where it cannot be read. It has
#: secrets.
LoginOnDisk: TypeAlias = Mapping[str, str]


def login_on_disk(settings: Mapping[str, str]) -> LoginOnDisk:
    """Read a login again: it differs from an earlier one if a person or a cluster has renewed it.

    Args:
        settings: of one client, as a user writes them.
    """
    login = {name: value for name, value in settings.items() if name in NAMES}
    files = {f"{k} {one}": _digest(one) for k, one in login.items() if k.endswith(_FILE)}
    return {**login, **files}


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
