"""The target of a file sink: what must be done with files, in any kind of storage.

A file has three lives: hidden while it is written; prepared when it is whole and another process
can publish it; and published, which nobody undoes. `LocalFolder` and `ObjectFolder` reach these
states by different steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from connectors.files.local_folder import LocalFolder
from transactions.committable import Outcome
from transactions.errors import ConfigurationError

_NO_OPTIONS: Final[Mapping[str, str]] = {}


class TargetFolder(Protocol):
    """One target. It holds nothing open between two calls; it travels to the tasks.

    Every method raises OSError if the target refuses, is unreachable, or does not answer.
    """

    @property
    def at_once(self) -> int:
        """The number of files to work on at the same time."""

    @property
    def trouble(self) -> str:
        """The likely causes of an error, for its text."""

    def path_of(self, name: str) -> str:
        """Return the place where readers find a published file."""

    # --- in a task --------------------------------------------------------------------------

    def create(self, transaction_id: str) -> BinaryIO:
        """Return the new, hidden file of a transaction."""

    def seal(self, file: BinaryIO, transaction_id: str, name: str) -> int:
        """Make a file of `create` prepared, durably, and close it; return its size in bytes.

        Args:
            file: the file with all of its content.
            transaction_id: its transaction.
            name: the name for its publication.
        """

    def discard(self, transaction_id: str) -> None:
        """Remove what is not published of a transaction; there may be nothing. Called in the task
        that gave it up, and on the driver in a sweep, which knows only the id.
        """

    # --- on the driver ----------------------------------------------------------------------

    def check(self) -> None:
        """Check that files can be committed here, before any data moves.

        Raises:
            ConfigurationError: they cannot, and a retry would not help.
        """

    def make_durable(self) -> None:
        """Make the folder itself survive a power cut; once, before the first decision."""

    def obstacle(self) -> str:
        """Return why a prepared file could not be published here, "" if it can."""

    def size_of(self, transaction_id: str, name: str) -> int | None:
        """Return the bytes of a prepared file, None if it does not exist or was discarded."""

    def publish(self, transaction_id: str, name: str) -> Outcome:
        """Publish a prepared file for readers. Not durable before `sync_published`.

        Returns:
            COMMITTED; ALREADY_COMMITTED if it had been published; ABORTED if the file is proven to
            be neither published nor prepared.
        """

    def sync_published(self) -> None:
        """Make all published files survive a power cut."""

    def open_ids(self) -> list[str]:
        """Return the ids of transactions that may not have ended, of any application; also those
        of manifests that are not whole.
        """

    def put_manifest(self, name: str, data: bytes, transaction_id: str) -> None:
        """Store a manifest, whole and durable.

        Args:
            name: a name that nobody has used.
            data: its content.
            transaction_id: its id while it is not whole; the sweep knows such names.
        """

    # --- for readers ------------------------------------------------------------------------

    def manifests(self) -> dict[str, bytes]:
        """Return the content of every manifest, by name."""

    def published(self) -> set[str]:
        """Return the names of the files that readers see."""

    # --- for people -------------------------------------------------------------------------

    def abandoned(self) -> list[str]:
        """Return the names of files that nobody will publish and no sweep discards."""


def open_folder(path: str, store: Mapping[str, str] = _NO_OPTIONS) -> TargetFolder:
    """Return the folder for a path, or for the address of an object store; it sends nothing.

    Raises:
        ConfigurationError: the address or an option of the store is wrong, or the package that
            the store needs is not installed.
    """
    if is_address(path):
        try:
            from connectors.files.object_folder import ObjectFolder  # noqa: PLC0415 - an extra
        except ImportError as missing:
            raise ConfigurationError(
                "Files in an object store need the package obstore.",
                where="the path of a file sink",
                cause="it is an optional part: pip install '.[object-store]' in a clone of "
                "sparkonce",
                option="path",
            ) from missing
        return ObjectFolder(address_of(path), store)
    if store:
        raise ConfigurationError(
            "A file sink in a local folder has no options of a store.",
            where=path,
            cause="only an object store has options: s3://bucket/prefix",
            option=f"store: {', '.join(sorted(store))}",
        )
    return LocalFolder(Path(path.removeprefix("file://")))


def is_address(path: str) -> bool:
    """Return whether a path is the address of an object store."""
    return "://" in path and not path.startswith("file://")


def address_of(path: str) -> str:
    """Return the address in the form in which it is shown and compared."""
    scheme, _, rest = path.rstrip("/").partition("://")
    return f"{scheme.lower()}://{rest}"
