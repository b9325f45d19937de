"""A savepoint: all that a pipeline needs to go on from one finished checkpoint.

Every transaction of that checkpoint is proven committed. So a savepoint holds no pending one, and
restoring it any number of times commits nothing again. (Flink's may hold some, and commits them at
the restore, wherever the first pipeline is by then.) Here is what it says; `savepoint_place` has
where it lies. On the driver or the command line; nothing here asks a broker.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Self

import msgspec
import orjson

from transactions.clock import SYSTEM_CLOCK
from transactions.decision_log import entry_name
from transactions.errors import (
    LogCorruptedError,
    LogVersionError,
    SavepointError,
    SavepointNotMadeError,
)
from transactions.log_backend import LogBackend
from transactions.log_entries import Decision, Entry, Snapshot
from transactions.log_state import LogState

FORMAT_VERSION = 1


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
            raise broken(where, "the manifest is not complete") from error
        if version != FORMAT_VERSION:
            raise _newer(where, f"format {version!r}; this version reads {FORMAT_VERSION}")
        if fields.pop("checksum", None) != _checksum(fields):
            raise broken(where, "the checksum of the manifest does not match its content")
        try:
            log = Entry.from_bytes(orjson.dumps(fields["log"]), where=where)
        except LogVersionError as error:
            raise _newer(f"{where}: {error.what}", "a log entry of a newer version") from error
        except LogCorruptedError as error:
            raise broken(where, f"its log entry: {error.cause}") from error
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


def broken(where: str, cause: str) -> SavepointError:
    """Return the error for a savepoint that is torn or altered."""
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


def unwritten(folder: object, error: Exception) -> SavepointNotMadeError:
    """Return the error for a folder or an address at which no savepoint can be made."""
    return SavepointNotMadeError(
        "The savepoint could not be written.",
        where=f"{folder}: {error}",
        cause="the disk is full or read-only, the path is no folder, the store does not take it, "
        "or Hadoop has no client of the store",
        option=f"--to {folder}",
    )


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
