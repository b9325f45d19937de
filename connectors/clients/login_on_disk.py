"""The login of a client as it is now: its settings, and what is in the files that they name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from connectors.clients.client_settings import librdkafka_settings

_FILE: Final = ".location"
#: By the names of librdkafka. Of a file a digest; "" where it cannot be read. It has secrets.
LoginOnDisk: TypeAlias = Mapping[str, str]


def login_on_disk(settings: Mapping[str, str]) -> LoginOnDisk:
    """Read a login again: it differs from an earlier one if a person or a cluster has renewed it.

    Args:
        settings: of one client, as a user writes them.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    # A function for tokens is no text. It gives new ones by itself.
    texts = {k: one for k, one in librdkafka_settings(settings).items() if isinstance(one, str)}
    files = {f"{k} {one}": _digest(one) for k, one in texts.items() if k.endswith(_FILE)}
    return {**texts, **files}


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
