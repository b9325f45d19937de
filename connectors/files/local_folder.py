"""The target folder on a local file system: every file operation of the sink, and nothing else.

::

    <path>/part-...                 committed: what readers see
    <path>/_transactions/<id>       open and prepared transactions
    <path>/_manifests/...           which files a checkpoint consists of

Readers (Spark, Hive, Arrow data sets) ignore names that begin with _ or a dot. All of it must be on
one file system, whose rename is atomic and whose fsync is honest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

from transactions.committable import Outcome
from transactions.log_backend import sync_folder

_TRANSACTIONS: Final = "_transactions"
_MANIFESTS: Final = "_manifests"
_BUFFER: Final = 1 << 20


class LocalFolder:
    """One target folder. Holds nothing open; made in a task or on the driver.

    Every method raises OSError when the file system refuses.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._transactions = self._path / _TRANSACTIONS
        self._manifests = self._path / _MANIFESTS

    # --- in a task --------------------------------------------------------------------------

    def create(self, transaction_id: str) -> BinaryIO:
        """Return the new, hidden file of a transaction."""
        self._transactions.mkdir(parents=True, exist_ok=True)
        return (self._transactions / transaction_id).open("xb", _BUFFER)

    def seal(self, file: BinaryIO) -> int:
        """Make a file of `create` durable and close it; return its bytes."""
        file.flush()
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        file.close()
        sync_folder(self._transactions)
        return size

    def discard(self, transaction_id: str) -> None:
        """Remove the hidden file of a transaction; an absent one is fine."""
        (self._transactions / transaction_id).unlink(missing_ok=True)

    # --- on the driver ----------------------------------------------------------------------

    def make_durable(self) -> None:
        """Sync the folder's own entry, and those of the folders above it that we may have made."""
        self._manifests.mkdir(exist_ok=True)
        for folder in (self._path, *self._path.parents):
            if os.access(folder, os.W_OK):
                sync_folder(folder)

    def obstacle(self) -> str:
        """Return why a hidden file could not be renamed into the folder, "" if it can."""
        if self._transactions.stat().st_dev != self._path.stat().st_dev:
            return f"{_TRANSACTIONS} is on another file system than its folder"
        return "" if os.access(self._path, os.W_OK | os.X_OK) else "the folder cannot be written"

    def size_of(self, transaction_id: str) -> int | None:
        """Return the bytes of a hidden file that can be read, None when it is absent."""
        try:
            with (self._transactions / transaction_id).open("rb") as file:
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None

    def publish(self, transaction_id: str, name: str) -> Outcome:
        """Rename a hidden file to its final name. Not durable before `sync_published`.

        Returns:
            COMMITTED; ALREADY_COMMITTED if it had been renamed; ABORTED if there is neither.

        Raises:
            OSError: it is not known; also when the folder of transactions itself is absent, which
                a disk that is not mounted looks like: it proves nothing about one file.
        """
        try:
            (self._transactions / transaction_id).rename(self._path / name)
        except FileNotFoundError:
            if (self._path / name).exists():
                return Outcome.ALREADY_COMMITTED
            self._transactions.stat()
            return Outcome.ABORTED
        return Outcome.COMMITTED

    def sync_published(self) -> None:
        """Let every rename so far survive a power cut: new names first, then what was removed."""
        sync_folder(self._path)
        sync_folder(self._transactions)

    def open_ids(self) -> list[str]:
        """Return the names of all hidden files, whosoever they are."""
        try:
            return sorted(entry.name for entry in os.scandir(self._transactions))
        except FileNotFoundError:
            return []

    def put_manifest(self, name: str, data: bytes, transaction_id: str) -> None:
        """Store a manifest whole and durably.

        Args:
            name: nobody has used it.
            data: its content.
            transaction_id: under which it lies until it is whole; the sweep knows such names.
        """
        with self.create(transaction_id) as file:
            file.write(data)
            self.seal(file)
        (self._transactions / transaction_id).rename(self._manifests / name)
        sync_folder(self._manifests)

    # --- for readers ------------------------------------------------------------------------

    def manifests(self) -> dict[str, bytes]:
        """Return the content of every manifest by its name."""
        try:
            return {one.name: one.read_bytes() for one in sorted(self._manifests.iterdir())}
        except FileNotFoundError:
            return {}

    def published(self) -> set[str]:
        """Return the names of the files that readers see."""
        try:
            return {entry.name for entry in os.scandir(self._path) if entry.name[0] not in "._"}
        except FileNotFoundError:
            return set()
