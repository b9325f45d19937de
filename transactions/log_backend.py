"""Where decision-log entries live: one small contract, and two backends for it.

The whole safety of the log rests on `put_if_absent`: of all processes that put the same name,
exactly one succeeds. tests/unit/test_log_backend.py is the contract's suite; every backend runs
it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol, Self, runtime_checkable

from transactions.errors import ConfigurationError, DecisionLogError, SparkOnceError

#: Fills the end of a file that was larger than its entry.
PADDING: Final = b" "
_BLOCK: Final = 4096
_BLANK: Final = ".blank"
#: How much larger than the last entry the next one may be, in bytes, for a file made before it.
_ROOM: Final = 512


class LogBackend(Protocol):
    """Storage for named, immutable blobs. Methods are called on the driver only."""

    @property
    def reads_are_durable(self) -> bool:
        """Return whether what `get` returns survives a power cut."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store data under a name that nobody has used, durably.

        Args:
            name: of the blob.
            data: it does not end with a space.

        Returns:
            True: it is stored and survives a power cut. False: the name was taken, and its data
                survives a power cut as well; nothing changed.

        Raises:
            OSError: the result is *unknown*. It never means "not stored". The caller can read the
                name; data that is found there settles the doubt only if `reads_are_durable`.
        """

    def get(self, name: str) -> bytes | None:
        """Return the data of a name, None when it is absent."""

    def list(self, *, durable: bool = True) -> list[str]:
        """Return all names, sorted.

        Args:
            durable: what is listed survives a power cut when the call returns. A caller that only
                checks whether it must stop can do without.
        """

    def delete(self, name: str) -> None:
        """Remove a name; an absent one is fine."""

    def describe(self) -> str:
        """Return where this is, for error texts."""


@runtime_checkable
class KeepsFolder(Protocol):
    """A backend whose folder stays when its last name is deleted."""

    def remove_folder(self) -> None:
        """Remove the folder, if it is empty."""


@runtime_checkable
class PreparesPut(Protocol):
    """A backend that can do a part of the next put before its data is known."""

    def prepare_put(self) -> None:
        """Do it. From any thread, beside any other call. An error is none: the next put does all
        of it.
        """


@contextlib.contextmanager
def answering(backend: LogBackend) -> Iterator[None]:
    """Turn an error of the place, such as a full disk, into one of the log.

    Raises:
        DecisionLogError: the place does not answer.
    """
    try:
        yield
    except SparkOnceError:
        raise
    except OSError as error:
        raise DecisionLogError(
            "The decision log does not answer; nothing was aborted.",
            where=f"{backend.describe()}: {error}",
            cause="the disk is full, read-only or gone",
            option=f"checkpoint={backend.describe()}",
        ) from error


class MemoryBackend:
    """For tests: a dictionary that several logs may share as if they were processes."""

    reads_are_durable: Final = True

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See `LogBackend.put_if_absent`."""
        with self._lock:
            if name in self._blobs:
                return False
            self._blobs[name] = data
            return True

    def get(self, name: str) -> bytes | None:
        """See `LogBackend.get`."""
        return self._blobs.get(name)

    def list(self, *, durable: bool = True) -> list[str]:  # noqa: ARG002
        """See `LogBackend.list`."""
        with self._lock:
            return sorted(self._blobs)

    def delete(self, name: str) -> None:
        """See `LogBackend.delete`."""
        with self._lock:
            self._blobs.pop(name, None)

    def describe(self) -> str:
        """See `LogBackend.describe`."""
        return "memory"


class LocalFileBackend:
    """One file per name in a folder of a local (or fsync-honest shared) file system.

    link() is the put-if-absent: it fails when the name exists. The linked file is already complete
    and synced, so no reader ever sees half an entry. One fsync of the folder makes the name
    durable, and the data under a durable name is durable.
    """

    #: The page cache shows a name before its folder is synced, and also when the sync failed.
    reads_are_durable: Final = False

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._blank: BlankFile | None = None
        self._last_size = 0
        self._has_cleaned = False
        make_folder(self._folder)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See `LogBackend.put_if_absent`; two fsyncs, the entry and its folder."""
        assert not data.endswith(PADDING)
        with self._lock:
            blank, self._blank = self._blank, None
        self._last_size = len(data)
        if blank is not None and 0 < len(data) <= blank.size:
            became = blank.become(self._folder, name, data)
            if became is not None:
                return became
        temporary = self._folder / f".{name}.{secrets.token_hex(8)}.tmp"
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            is_new = _linked(temporary, self._folder / name)
            sync_folder(self._folder)
            return is_new
        finally:
            temporary.unlink(missing_ok=True)

    def get(self, name: str) -> bytes | None:
        """See `LogBackend.get`."""
        try:
            return (self._folder / name).read_bytes().rstrip(PADDING)
        except FileNotFoundError:
            return None

    def list(self, *, durable: bool = True) -> list[str]:
        """See `LogBackend.list`; the folder is synced first.

        Without that sync, a power cut could undo an entry that a reader has already acted on.
        """
        if durable:
            sync_folder(self._folder)
        names = (entry.name for entry in os.scandir(self._folder))
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        """See `LogBackend.delete`."""
        (self._folder / name).unlink(missing_ok=True)

    def prepare_put(self) -> None:
        """See `PreparesPut`: it makes a `BlankFile` for an entry of the last one's size."""
        with self._lock:
            if self._last_size and not self._has_cleaned:
                self._has_cleaned = True
                _remove_blanks(self._folder)
            if self._blank is None:
                self._blank = BlankFile.made(self._folder, self._last_size)

    def describe(self) -> str:
        """See `LogBackend.describe`."""
        return str(self._folder)


class BlankFile:
    """A file whose size and blocks are on the disk already, full of spaces, with a hidden name.

    A new file costs two commits of the file system's journal: of the file, and of its name. Into
    this one bytes are written without the first of them (`fdatasync`): 0.7 ms for an entry in
    place of 1.1 to 1.5 (ext4, measured). The spaces behind an entry stay; JSON ignores them.

    It has a name because btrfs syncs nothing of a file without one (O_TMPFILE): an entry that got
    its name later could be empty after a power cut.
    """

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.size = size
        self._path = path
        self._descriptor = descriptor
        self._removed = weakref.finalize(self, _remove, path, descriptor)  # also at the end

    @classmethod
    def made(cls, folder: Path, least: int) -> Self | None:
        """Return one of whole blocks, None where there is no room."""
        size = (least + _ROOM) // _BLOCK * _BLOCK + _BLOCK
        path = folder / f".{secrets.token_hex(8)}{_BLANK}"
        try:
            blank = cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), size)
            os.pwrite(blank._descriptor, PADDING * size, 0)
            os.fsync(blank._descriptor)
        except OSError:
            return None
        return blank

    def become(self, folder: Path, name: str, data: bytes) -> bool | None:
        """Write data to its beginning and give it a name: see `LogBackend.put_if_absent`. Return
        None if it was removed.
        """
        try:
            if os.pwrite(self._descriptor, data, 0) < len(data):
                raise OSError(errno.EIO, "only a part was written", name)
            os.fdatasync(self._descriptor)
            try:
                is_new = _linked(self._path, folder / name)
            except FileNotFoundError:
                return None
            sync_folder(folder)
            return is_new
        finally:
            self._removed()


def _linked(synced: Path, place: Path) -> bool:
    """Give a file a name; return False if the name is taken. Sync the folder in both cases: who has
    taken it may have died before that.
    """
    try:
        os.link(synced, place)
    except FileExistsError:
        return False
    return True


def _remove_blanks(folder: Path) -> None:
    """Remove blank files of processes that died. Who still runs was overtaken when this log was
    opened, and writes its next entry without one. What cannot be removed stays.
    """
    with contextlib.suppress(OSError):
        for left in folder.glob(f".*{_BLANK}"):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)


def _remove(path: Path, descriptor: int) -> None:
    os.close(descriptor)
    path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; when this returns, the folder's name survives a power cut.

    The name of an existing folder is synced too: the process that made it may have died before.
    Folders that we may not write to were made by somebody else, long ago.

    Raises:
        OSError: it is not known whether the name survives.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for above in folder.absolute().parents:
        if not os.access(above, os.W_OK):
            break
        sync_folder(above)


def refuse_file(folder: Path, option: str = "address") -> None:
    """Refuse a path that can be no folder, because one of its names is a file. It makes nothing.

    Args:
        folder: it need not exist.
        option: the user's name for the path.

    Raises:
        ConfigurationError: one of its names is a file, or a link to nothing.
    """
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise ConfigurationError(
            "A file lies where a folder is needed.",
            where=str(there),
            cause="it is a file, or a link to nothing, and no folder can be made there",
            option=f"{option}={folder}: another path, or the file moved away",
        )


def sync_file(path: Path) -> None:
    """Wait until the content of a file survives a power cut; its name may not.

    Raises:
        OSError: it is not known whether it does.
    """
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Wait until what was created, renamed or removed in a folder survives a power cut.

    Raises:
        OSError: it is not known whether all of it survives.
    """
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
