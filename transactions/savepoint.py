"""A savepoint: a folder that holds all a pipeline needs to go on from one finished checkpoint.

    NAME/savepoint.json     what it is, and size and SHA-256 of every other file; written last
    NAME/files/...          the engine's files of that checkpoint, as they lie below its folder

Every transaction of that checkpoint is proven committed. So a savepoint holds no pending one, and
restoring it any number of times commits nothing again. (Flink's may hold some, and commits them at
the restore, wherever the first pipeline is by then.) It owns its files. It is whole or not there: a
rename gives it its name, after all of it is durable. It is for a local file system, on the driver
or the command line; nothing here asks a broker.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
import orjson

from transactions import crash_points
from transactions.clock import SYSTEM_CLOCK
from transactions.decision_log import entry_name
from transactions.errors import (
    LogCorruptedError,
    LogVersionError,
    SavepointError,
    SavepointNotMadeError,
)
from transactions.log_backend import LocalFileBackend, LogBackend, sync_folder
from transactions.log_entries import Decision, Entry, Snapshot
from transactions.log_state import LogState

FORMAT_VERSION = 1
MANIFEST = "savepoint.json"
FILES = "files"
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a savepoint.

    Attributes:
        size: in bytes.
        sha256: of its content, hexadecimal.
    """

    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """The manifest of a savepoint.

    Attributes:
        savepoint_id: random; a checkpoint folder that was restored from the savepoint keeps it.
        log: the decision log at that moment, as one `Snapshot` entry. Its decision has no
            committables, because all of them are committed.
        files: by path below the checkpoint folder.
    """

    savepoint_id: str
    log: Entry
    files: Mapping[str, File] = dataclasses.field(default_factory=dict)

    @property
    def state(self) -> Snapshot:
        """What the log said."""
        assert isinstance(self.log.body, Snapshot)
        return self.log.body

    @property
    def decision(self) -> Decision:
        """The decision of the checkpoint from which a pipeline goes on."""
        assert self.state.decision is not None
        return self.state.decision

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(one.size for one in self.files.values())

    def to_bytes(self) -> bytes:
        """Return the JSON with its checksum."""
        fields = {
            "format": FORMAT_VERSION,
            "savepoint_id": self.savepoint_id,
            "log": orjson.loads(self.log.to_bytes()),
            "files": msgspec.to_builtins(self.files),
        }
        checked = {**fields, "checksum": _checksum(fields)}
        return orjson.dumps(checked, option=orjson.OPT_INDENT_2)

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Self:
        """Read `to_bytes` back and check it.

        Raises:
            SavepointError: it is torn, altered, or of a newer version.
        """
        try:
            fields: dict[str, Any] = orjson.loads(data)
            version = fields["format"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise _broken(where, f"{MANIFEST} is not complete") from error
        if version != FORMAT_VERSION:
            raise _newer(where, f"format {version!r}; this version reads {FORMAT_VERSION}")
        if fields.pop("checksum", None) != _checksum(fields):
            raise _broken(where, f"the checksum of {MANIFEST} does not match its content")
        try:
            log = Entry.from_bytes(orjson.dumps(fields["log"]), where=where)
        except LogVersionError as error:
            raise _newer(f"{where}: {error.what}", "a log entry of a newer version") from error
        except LogCorruptedError as error:
            raise _broken(where, f"its log entry: {error.cause}") from error
        return cls(
            savepoint_id=fields["savepoint_id"],
            log=log,
            files=msgspec.convert(fields["files"], dict[str, File]),
        )


def savepoint_of(log: LogState) -> Savepoint:
    """Return the savepoint of a log whose last decision is finished; it has no files yet.

    Args:
        log: every transaction of its last decision is proven committed.

    Raises:
        SavepointNotMadeError: nothing was decided yet.
    """
    if log.decision is None:
        raise SavepointNotMadeError(
            "There is no checkpoint to make a savepoint from.",
            where=f"application {log.application_id!r}, log {log.log_id or '-'}",
            cause="the pipeline has not made a checkpoint yet",
            option="start the pipeline; take the savepoint after its first checkpoint",
        )
    decision = dataclasses.replace(log.decision, committables=())
    entry = Entry(
        sequence=log.tail,
        application_id=log.application_id,
        log_id=log.log_id,
        nonce=secrets.token_hex(16),
        written_at_ms=SYSTEM_CLOCK.now_ms(),
        body=dataclasses.replace(log, decision=decision, resolved={}).snapshot(),
    )
    return Savepoint(savepoint_id=secrets.token_hex(4), log=entry)


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _broken(where: str, cause: str) -> SavepointError:
    return SavepointError(
        "A savepoint cannot be trusted; nothing was restored.",
        where=where,
        cause=cause,
        option="--from-savepoint: use another one; `sparkonce savepoint list` marks broken ones",
    )


def _newer(where: str, what: str) -> SavepointError:
    return SavepointError(
        f"A savepoint has {what}.",
        where=where,
        cause="a newer sparkonce made it",
        option="upgrade sparkonce",
    )


def unfinished(where: str) -> SavepointNotMadeError:
    """Return the error for a checkpoint that is decided and not known to be committed."""
    return SavepointNotMadeError(
        "The last checkpoint is not finished; its savepoint would be incomplete.",
        where=where,
        cause="the pipeline was killed or failed, and was not started again",
        option="start the pipeline: it finishes what was decided; then take the savepoint again",
    )


def unseen(where: str) -> SavepointNotMadeError:
    """Return the error for a committed checkpoint that readers do not see, or perhaps do not."""
    return SavepointNotMadeError(
        "Readers may not see the last checkpoint; a savepoint keeps no transaction to check.",
        where=where,
        cause="a broker has completed a transaction without a marker (KAFKA-20734), or a "
        "partition's leader has not answered",
        option="sparkonce transactions write-markers, while the pipeline is stopped; then take the "
        "savepoint again",
    )


def unwritten(folder: Path, error: Exception) -> SavepointNotMadeError:
    """Return the error for a folder in which no savepoint can be made."""
    return SavepointNotMadeError(
        "The savepoint could not be written.",
        where=f"{folder}: {error}",
        cause="the disk is full or read-only, or the path is not a folder",
        option=f"--to {folder}",
    )


# --- making and reading ---------------------------------------------------------------------------


def write_savepoint(folder: Path, savepoint: Savepoint, files: Mapping[str, Path]) -> Path:
    """Copy files into a new savepoint below `folder` and return its place, durable and complete.

    Args:
        folder: the folder of all savepoints; made if it is absent.
        savepoint: what to write; its `files` are filled in here.
        files: where each file lies now, by its path below the checkpoint folder.

    Raises:
        OSError: it could not be written, or its name may not survive a power cut.
    """
    number = savepoint.decision.checkpoint_id
    name = f"{savepoint.log.application_id}-{number}-{savepoint.savepoint_id}"
    partial, final = folder / f".{name}.partial", folder / name
    try:
        (partial / FILES).mkdir(parents=True)
        facts = _copy(files, partial / FILES)
        manifest = dataclasses.replace(savepoint, files=facts).to_bytes()
        LocalFileBackend(partial).put_if_absent(MANIFEST, manifest)
        _sync_tree(partial)
        crash_points.reach("savepoint_copied", number)
        partial.rename(final)
        crash_points.reach("savepoint_named", number)
        sync_folder(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def read_savepoint(place: Path) -> Savepoint:
    """Return the manifest of a savepoint; its files are not read.

    Raises:
        SavepointError: there is none, or it cannot be trusted.
    """
    try:
        data = (place / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SavepointError(
            "There is no savepoint.",
            where=str(place),
            cause=f"no {MANIFEST} there: the path is wrong, or the savepoint was never completed",
            option=f"--from-savepoint {place}",
        ) from error
    return Savepoint.from_bytes(data, where=str(place))


def verify_savepoint(place: Path) -> Savepoint:
    """Read a savepoint with all of its files.

    Raises:
        SavepointError: a file is missing, is altered, or does not belong to it.
    """
    savepoint = read_savepoint(place)
    there = {path.relative_to(place / FILES).as_posix() for path in _files_below(place / FILES)}
    if missing := sorted(savepoint.files.keys() - there):
        raise _broken(f"{place}, {missing[0]}", f"{len(missing)} of its files are missing")
    if foreign := sorted(there - savepoint.files.keys()):
        raise _broken(f"{place}, {foreign[0]}", "the file does not belong to it")
    for name, facts in savepoint.files.items():
        path = place / FILES / name
        if path.stat().st_size != facts.size or _sha256(path) != facts.sha256:
            raise _broken(f"{place}, {name}", "the file is not as it was written")
    return savepoint


def find_savepoints(folder: Path) -> list[Path]:
    """Return the places of all savepoints directly below a folder, oldest first."""
    found = [path.parent for path in folder.glob(f"*/{MANIFEST}") if path.parent.name[0] != "."]
    return sorted(found, key=lambda place: ((place / MANIFEST).stat().st_mtime_ns, place.name))


def delete_savepoint(place: Path) -> None:
    """Delete a savepoint; the first step already makes it invisible.

    Raises:
        SavepointError: there is no savepoint. What is not ours is never deleted.
    """
    read_savepoint(place)
    partial = place.with_name(f".{place.name}.partial")
    place.rename(partial)
    sync_folder(place.parent)
    shutil.rmtree(partial)


# --- restoring ------------------------------------------------------------------------------------


def restored_log(
    backend: LogBackend,
    savepoint: Savepoint,
    *,
    log_id: str,
    identity: Mapping[str, str],
    end_offsets: tuple[str, ...],
) -> None:
    """Begin a decision log that goes on from a savepoint. Its generation is new, so no older
    decision matches anything any more.

    Args:
        backend: it has no entry, or only this one.
        savepoint: where it goes on.
        log_id: the random name of the new log, part of every transactional id.
        identity: of the pipeline that will run on it.
        end_offsets: where its sources go on: the savepoint's offsets, without what is left out.

    Raises:
        SavepointError: another log lies there.
        OSError: it is not known whether it was written; a second call is harmless.
    """
    entry = dataclasses.replace(
        savepoint.log,
        sequence=1,
        log_id=log_id,
        nonce=secrets.token_hex(16),
        written_at_ms=SYSTEM_CLOCK.now_ms(),
        body=dataclasses.replace(
            savepoint.state,
            run_epoch=0,
            decided_in=0,
            identity=dict(identity),
            generation=savepoint.state.generation + 1,
            decision=dataclasses.replace(savepoint.decision, end_offsets=end_offsets),
        ),
    )
    name = entry_name(1)
    if backend.list() not in ([], [name]):
        raise _taken(backend)
    if not backend.put_if_absent(name, entry.to_bytes()):
        data = backend.get(name) or b""
        there = Entry.from_bytes(data, where=f"{backend.describe()}, entry 1")
        if (there.log_id, there.application_id) != (log_id, savepoint.log.application_id):
            raise _taken(backend)


def has_decided(log: LogState) -> bool:
    """Return whether a log has a decision of its generation; a restored decision does not count."""
    return log.decision is not None and log.decision.generation == log.generation


def _taken(backend: LogBackend) -> SavepointError:
    return SavepointError(
        "A savepoint can only be restored into an empty decision log.",
        where=backend.describe(),
        cause="a pipeline has already used this log",
        option="[decision_log] address: name another place; or leave --from-savepoint out",
    )


def copy_files(place: Path, savepoint: Savepoint, target: Path) -> None:
    """Copy the files of a verified savepoint below `target`, durably.

    Raises:
        SavepointError: a file is not as it was written.
    """
    sources = {name: place / FILES / name for name in savepoint.files}
    for name, facts in _copy(sources, target).items():
        if facts != savepoint.files[name]:
            raise _broken(f"{place}, {name}", "the file was changed while it was restored")
    _sync_tree(target)


# --- files ----------------------------------------------------------------------------------------


def _copy(files: Mapping[str, Path], target: Path) -> dict[str, File]:
    facts: dict[str, File] = {}
    for name, source in sorted(files.items()):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with source.open("rb") as reading, path.open("xb") as writing:
            while chunk := reading.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                writing.write(chunk)
            writing.flush()
            os.fsync(writing.fileno())
        facts[name] = File(size=size, sha256=digest.hexdigest())
    return facts


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files_below(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())


def _sync_tree(folder: Path) -> None:
    for path in [folder, *(one for one in folder.rglob("*") if one.is_dir())]:
        sync_folder(path)
