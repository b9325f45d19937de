"""The decision log in an object store: one object per entry, written by conditional put.

A network adds doubt (see `object_store`): "exists" can mean an earlier try of our own. The log
recognises its entry by the nonce (see `decision_log`), so nothing here has to. A put that timed out
can be stored after the log has looked for it. Only the next Fence, which wants the same number,
settles that.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from transactions.clock import SYSTEM_CLOCK, Clock
from transactions.errors import ConfigurationError

try:
    from transactions.object_store import ObjectStore, Purpose
except ImportError as missing:
    raise ConfigurationError(
        "A decision log in an object store needs the package obstore.",
        where="the checkpoint's address",
        cause="it is an optional part: pip install '.[object-store]' in a clone of sparkonce",
        option="checkpoint",
    ) from missing

_PURPOSE: Final = Purpose(
    of="the decision log", option="checkpoint", harm="two drivers could both decide"
)


class ObjectStoreBackend:
    """One object per name, under a prefix of a bucket. See `log_backend.LogBackend`.

    Args:
        url: see `ObjectStore`.
        other_schemes: kinds of address that others open; an error names them, too.
        clock: replaced in tests.
        options: see `ObjectStore`; also ``timeout_s`` and ``retry_s``.

    Raises:
        ConfigurationError: the address or an option is wrong. Nothing has been sent yet.
    """

    #: An object that a strongly consistent store shows is replicated.
    reads_are_durable: Final = True

    def __init__(
        self,
        url: str,
        other_schemes: frozenset[str] = frozenset(),
        /,  # an option may have any name
        *,
        clock: Clock = SYSTEM_CLOCK,
        **options: str | float,
    ) -> None:
        purpose = dataclasses.replace(_PURPOSE, others=other_schemes)
        self._store = ObjectStore(url, purpose, options, clock=clock)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See `LogBackend.put_if_absent`; False can mean an earlier try of this very call.

        Raises:
            OSError, ConfigurationError: see `ObjectStore.put_if_absent`.
        """
        return self._store.put_if_absent(name, data)

    def get(self, name: str) -> bytes | None:
        """See `LogBackend.get`. A vanished bucket looks empty here; `list` raises an error.

        Raises:
            ObjectStoreError, ConfigurationError: see `ObjectStore.get`.
        """
        return self._store.get(name)

    def list(self, *, durable: bool = True) -> list[str]:  # noqa: ARG002 - what is seen is durable
        """See `LogBackend.list`; all pages.

        Raises:
            ObjectStoreError, ConfigurationError: see `ObjectStore.names`.
        """
        return self._store.names()

    def delete(self, name: str) -> None:
        """See `LogBackend.delete`.

        Raises:
            ObjectStoreError, ConfigurationError: see `ObjectStore.delete`.
        """
        self._store.delete(name)

    def describe(self) -> str:
        """See `LogBackend.describe`; the address has no credentials in it."""
        return self._store.url
