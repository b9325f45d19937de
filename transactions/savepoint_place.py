"""Where savepoints lie: in a folder of a file system, or at an address of a store.

    NAME/savepoint.json     the manifest: what it is, and size and SHA-256 of every other file
    NAME/files/...          the engine's files of that checkpoint, as they lie below its folder

A savepoint owns its files, and is whole or not there. In a folder a rename gives it its name, after
all of it is durable. A store has no rename: the manifest is written last, and what has none is no
savepoint. All calls are on the driver or the command line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from transactions import crash_points
from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import SavepointError, SparkOnceError
from transactions.log_backend import LocalFileBackend, sync_folder
from transactions.savepoint import File, Savepoint, broken

MANIFEST: Final = "savepoint.json"
FILES: Final = "files"
_CHUNK: Final = 1 << 20


class FileCopier(Protocol):
    """Copies the engine's files between folders and addresses; see `CheckpointLocation.file`."""

    @property
    def at_once(self) -> int:
        """How many files are copied at the same time, by as many threads."""

    def copy(self, source: str, target: str) -> File:
        """Copy a file, durably, over one that may be there. It makes the folders of the target;
        their names in a local file system are not durable yet.

        Raises:
            FileNotFoundError: there is no source.
            OSError: it could not be read or written.
        """

    def remove(self, folder: str) -> None:
        """Remove all files below a folder; one that is not there is fine.

        Raises:
            OSError: something may be left.
        """


class FolderCopier:
    """Copies files of this machine; see `FileCopier`."""

    at_once: Final = 1

    def copy(self, source: str, target: str) -> File:
        """See `FileCopier.copy`."""
        path = Path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with Path(source).open("rb") as reading, path.open("wb") as writing:
            while chunk := reading.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                writing.write(chunk)
            writing.flush()
            os.fsync(writing.fileno())
        return File(size=size, sha256=digest.hexdigest())

    def remove(self, folder: str) -> None:
        """See `FileCopier.remove`."""
        if Path(folder).exists():
            shutil.rmtree(folder)


def write_savepoint(
    where: str | Path | CheckpointLocation,
    savepoint: Savepoint,
    files: Mapping[str, str],
    copier: FileCopier,
) -> CheckpointLocation:
    """Copy files into a new savepoint and return its place, durable and complete.

    Args:
        where: the folder of all savepoints, made if it is absent, or the address of all.
        savepoint: what to write; its `files` are filled in here.
        files: where each file lies now, by its path below the checkpoint.
        copier: for these files.

    Raises:
        OSError: it could not be written, or its name may not survive a power cut.
        ConfigurationError: see `CheckpointLocation.files`.
    """
    all_of_them = CheckpointLocation.of(where)
    number = savepoint.decision.checkpoint_id
    name = f"{savepoint.log.application_id}-{number}-{savepoint.savepoint_id}"
    made, folder = all_of_them.part(name), all_of_them.folder
    if folder is None:
        try:
            facts = _copied(files, made.part(FILES), copier)
            crash_points.reach("savepoint_copied", number)
            manifest = dataclasses.replace(savepoint, files=facts).to_bytes()
            made.files().put_if_absent(MANIFEST, manifest)
            crash_points.reach("savepoint_named", number)
        except BaseException:
            with contextlib.suppress(OSError, SparkOnceError):  # the first error counts
                made.files().delete(MANIFEST)  # a put without an answer may have been carried out
                _delete_files(made, files, copier)
            raise
        return made
    partial, final = folder / f".{name}.partial", folder / name
    try:
        (partial / FILES).mkdir(parents=True)
        facts = _copied(files, CheckpointLocation(partial / FILES), copier)
        manifest = dataclasses.replace(savepoint, files=facts).to_bytes()
        LocalFileBackend(partial).put_if_absent(MANIFEST, manifest)
        sync_tree(partial)
        crash_points.reach("savepoint_copied", number)
        partial.rename(final)
        crash_points.reach("savepoint_named", number)
        sync_folder(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return made


def read_savepoint(place: str | Path | CheckpointLocation) -> Savepoint:
    """Return the manifest of a savepoint; its files are not read.

    Raises:
        SavepointError: there is none, or it cannot be trusted.
        OSError: the store does not answer.
    """
    place = CheckpointLocation.of(place)
    try:
        data = place.read(MANIFEST)
    except NotADirectoryError:
        data = None
    if data is None:
        raise SavepointError(
            "There is no savepoint.",
            where=str(place),
            cause=f"no {MANIFEST} there: the path is wrong, or the savepoint was never completed",
            option=f"--from-savepoint {place}",
        )
    return Savepoint.from_bytes(data, where=str(place))


def verify_savepoint(place: str | Path | CheckpointLocation) -> Savepoint:
    """Read a savepoint with all of its files, if it lies in a folder. At an address only the
    manifest is read: `copy_files` compares each file while it copies it.

    Raises:
        SavepointError: a file is missing, is altered, or does not belong to it.
        OSError: the store does not answer.
    """
    savepoint, folder = read_savepoint(place), CheckpointLocation.of(place).folder
    if folder is None:
        return savepoint
    there = {path.relative_to(folder / FILES).as_posix() for path in _files_below(folder / FILES)}
    if missing := sorted(savepoint.files.keys() - there):
        raise broken(f"{folder}, {missing[0]}", f"{len(missing)} of its files are missing")
    if foreign := sorted(there - savepoint.files.keys()):
        raise broken(f"{folder}, {foreign[0]}", "the file does not belong to it")
    for name, facts in savepoint.files.items():
        path = folder / FILES / name
        if path.stat().st_size != facts.size or _sha256(path) != facts.sha256:
            raise broken(f"{folder}, {name}", "the file is not as it was written")
    return savepoint


def find_savepoints(folder: Path) -> list[Path]:
    """Return the places of all savepoints directly below a folder, oldest first."""
    found = [path.parent for path in folder.glob(f"*/{MANIFEST}") if path.parent.name[0] != "."]
    return sorted(found, key=lambda place: ((place / MANIFEST).stat().st_mtime_ns, place.name))


def delete_savepoint(place: str | Path | CheckpointLocation, copier: FileCopier) -> None:
    """Delete a savepoint; the first step already makes it invisible.

    Raises:
        SavepointError: there is no savepoint. What is not ours is never deleted.
        OSError: some of its files may be left.
    """
    savepoint, place = read_savepoint(place), CheckpointLocation.of(place)
    folder = place.folder
    if folder is None:
        place.files().delete(MANIFEST)
        _delete_files(place, savepoint.files, copier)
        return
    partial = folder.with_name(f".{folder.name}.partial")
    folder.rename(partial)
    sync_folder(folder.parent)
    shutil.rmtree(partial)


def copy_files(
    place: str | Path | CheckpointLocation,
    savepoint: Savepoint,
    target: str | Path | CheckpointLocation,
    copier: FileCopier,
    before_each: Callable[[], None] = lambda: None,
) -> None:
    """Copy the files of a savepoint below `target`, durably, over what an earlier try has left.

    Args:
        place: of the savepoint.
        savepoint: what `verify_savepoint` has returned.
        target: the folder or address of a checkpoint.
        copier: for these files.
        before_each: called before each file; what it raises ends the copying.

    Raises:
        SavepointError: a file is not as it was written.
        OSError: it could not be copied.
    """
    files, target = CheckpointLocation.of(place).part(FILES), CheckpointLocation.of(target)
    sources = {name: files.file(name) for name in savepoint.files}
    for name, facts in _copied(sources, target, copier, before_each).items():
        if facts != savepoint.files[name]:
            raise broken(f"{place}, {name}", "the file was changed after it was written")
    if target.folder is not None:
        sync_tree(target.folder)


def sync_tree(folder: Path) -> None:
    """Make the names of a folder and of all folders below it durable."""
    for path in [folder, *(one for one in folder.rglob("*") if one.is_dir())]:
        sync_folder(path)


def _copied(
    files: Mapping[str, str],
    target: CheckpointLocation,
    copier: FileCopier,
    before_each: Callable[[], None] = lambda: None,
) -> dict[str, File]:
    def copied(name: str) -> File:
        before_each()
        return copier.copy(files[name], target.file(name))

    names = sorted(files)
    with ThreadPoolExecutor(copier.at_once, thread_name_prefix="sparkonce-copy") as threads:
        try:
            return dict(zip(names, threads.map(copied, names), strict=True))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _delete_files(
    place: CheckpointLocation, files: Mapping[str, object], copier: FileCopier
) -> None:
    """Delete the files of a savepoint at an address that has no manifest. One without files was
    perhaps made without a client of the store that could copy them.
    """
    if files:
        copier.remove(place.file(FILES))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files_below(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
