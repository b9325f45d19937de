"""The target folder on a local file system: all file operations of the sink, nothing else.

::

    <path>/part-...                 committed: what readers see
    <path>/_transactions/<id>       open and prepared transactions
    <path>/_manifests/...           which files a checkpoint consists of

Readers (Spark, Hive, Arrow data sets) ignore names that begin with _ or a dot. All of these must be
on one file system, with an atomic rename and an honest fsync.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from transactions.committable import Outcome
from transactions.errors import ConfigurationError
from transactions.log_backend import sync_folder

_TRANSACTIONS: Final = "_transactions"
_MANIFESTS: Final = "_manifests"
_BUFFER: Final = 1 << 20


class LocalFolder:
    """One target folder. See `TargetFolder`."""

    at_once: Final = 1  # a rename is faster than a thread
    trouble: Final = "the disk is full, read-only or gone"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._transactions = self._path / _TRANSACTIONS
        self._manifests = self._path / _MANIFESTS

    def path_of(self, name: str) -> str:
        """See `TargetFolder.path_of`."""
        return str(self._path / name)

    # --- in a task --------------------------------------------------------------------------

    def create(self, transaction_id: str) -> BinaryIO:
        """See `TargetFolder.create`."""
        self._transactions.mkdir(parents=True, exist_ok=True)
        return (self._transactions / transaction_id).open("xb", _BUFFER)

    def seal(self, file: BinaryIO, transaction_id: str, name: str) -> int:  # noqa: ARG002
        """See `TargetFolder.seal`: the file and the entry of its folder are synced."""
        return self._sync(file)

    def _sync(self, file: BinaryIO) -> int:
        file.flush()
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        file.close()
        sync_folder(self._transactions)
        return size

    def discard(self, transaction_id: str) -> None:
        """See `TargetFolder.discard`: without its file a writer cannot commit."""
        (self._transactions / transaction_id).unlink(missing_ok=True)

    # --- on the driver ----------------------------------------------------------------------

    def check(self) -> None:
        """See `TargetFolder.check`; the first record creates the folder."""
        if self._path.exists() and not self._path.is_dir():
            raise ConfigurationError(
                "The path is not a folder.",
                where="options of a file sink",
                cause="a file has this path",
                option=f"path={self._path}",
            )

    def make_durable(self) -> None:
        """Sync the folder's own entry, and those of parent folders that we may have made."""
        self._manifests.mkdir(exist_ok=True)
        for folder in (self._path, *self._path.parents):
            if os.access(folder, os.W_OK):
                sync_folder(folder)

    def obstacle(self) -> str:
        """See `TargetFolder.obstacle`."""
        if self._transactions.stat().st_dev != self._path.stat().st_dev:
            return f"{_TRANSACTIONS} is on another file system than its folder"
        return "" if os.access(self._path, os.W_OK | os.X_OK) else "the folder cannot be written"

    def size_of(self, transaction_id: str, name: str) -> int | None:  # noqa: ARG002
        """See `TargetFolder.size_of`; this also checks that the file is readable."""
        try:
            with (self._transactions / transaction_id).open("rb") as file:
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None

    def publish(self, transaction_id: str, name: str) -> Outcome:
        """See `TargetFolder.publish`: the hidden file is renamed to its final name.

        Raises:
            OSError: the result is not known. This includes a missing folder of transactions: an
                unmounted disk looks like that, and proves nothing about one file.
        """
        # A disk can be mounted between two looks by path. Open folders stay on one disk.
        with _opened(self._path) as folder, _opened(_TRANSACTIONS, below=folder) as hidden:
            with contextlib.suppress(FileNotFoundError):
                os.rename(transaction_id, name, src_dir_fd=hidden, dst_dir_fd=folder)
                return Outcome.COMMITTED
            with contextlib.suppress(FileNotFoundError):
                os.stat(name, dir_fd=folder)
                return Outcome.ALREADY_COMMITTED
            return Outcome.ABORTED

    def sync_published(self) -> None:
        """See `TargetFolder.sync_published`: first the new names, then the removals."""
        sync_folder(self._path)
        sync_folder(self._transactions)

    def open_ids(self) -> list[str]:
        """See `TargetFolder.open_ids`: the names of all hidden files."""
        try:
            return sorted(entry.name for entry in os.scandir(self._transactions))
        except FileNotFoundError:
            return []

    def put_manifest(self, name: str, data: bytes, transaction_id: str) -> None:
        """See `TargetFolder.put_manifest`: a whole hidden file is renamed."""
        with self.create(transaction_id) as file:
            file.write(data)
            self._sync(file)
        (self._transactions / transaction_id).rename(self._manifests / name)
        sync_folder(self._manifests)

    # --- for readers ------------------------------------------------------------------------

    def manifests(self) -> dict[str, bytes]:
        """See `TargetFolder.manifests`."""
        try:
            return {one.name: one.read_bytes() for one in sorted(self._manifests.iterdir())}
        except FileNotFoundError:
            return {}

    def published(self) -> set[str]:
        """See `TargetFolder.published`."""
        try:
            return {entry.name for entry in os.scandir(self._path) if entry.name[0] not in "._"}
        except FileNotFoundError:
            return set()

    # --- for people -------------------------------------------------------------------------

    def abandoned(self) -> list[str]:
        """See `TargetFolder.abandoned`: the sweep sees every hidden file."""
        return []


@contextlib.contextmanager
def _opened(folder: str | Path, *, below: int | None = None) -> Iterator[int]:
    """Open a folder; below another open one, its file system is that one's.

    Raises:
        OSError: it is not there now.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=below)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
