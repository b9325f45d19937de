"""The manifest: the list of one checkpoint's files, for readers of whole checkpoints.

Each file is committed by its own step (a rename), so in between a plain reader sees half of a
checkpoint. The manifest prevents that: it is durable before the decision, and it counts once every
file that it names is there. It says nothing about the decision. So it needs no state and is never
undone: no file of an undecided attempt ever appears.

A healed checkpoint has a further manifest, with the files that replaced lost ones. Nothing of a
checkpoint becomes visible before the previous checkpoint is settled (the coordinator ensures this).
So the newest whole checkpoint of a log proves that all earlier ones are settled: they will never
get another file.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from connectors.files.prepared_file import PreparedFile
from connectors.files.target_folder import TargetFolder, open_folder
from transactions.committable import Committable
from transactions.errors import LogVersionError

FORMAT_VERSION: Final = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommittedFile:
    """A file of a whole checkpoint.

    Attributes:
        path: its path; in an object store its address.
        application_id: the pipeline that wrote it.
        log_id: the pipeline's decision log; another log counts checkpoints from 0 again.
        sink: name of the sink.
        checkpoint_id: the checkpoint.
        subtask: the task that wrote it.
        records: its number of records.
        size: bytes.
    """

    path: str
    application_id: str
    log_id: str
    sink: str
    checkpoint_id: int
    subtask: int
    records: int
    size: int


def write_manifest(folder: TargetFolder, committables: Sequence[Committable]) -> None:
    """Write the list of files that one checkpoint's transactions will become. On the driver, before
    the decision.

    Args:
        folder: the target.
        committables: of one sink and one checkpoint; at least one.

    Raises:
        OSError: the manifest is not durable.
    """
    first = committables[0]
    application_id, log_id, run_epoch = first.transactional_id.split(".")[:3]
    files = [
        {"name": file.name, "subtask": one.subtask, "records": one.record_count, "size": file.size}
        for one in committables
        for file in (PreparedFile.of(one),)
    ]
    data = {
        "format": FORMAT_VERSION,
        "application_id": application_id,
        "log_id": log_id,
        "sink": first.sink,
        "checkpoint_id": first.checkpoint_id,
        "files": files,
    }
    unique = secrets.token_hex(8)
    name = f"{application_id}.{log_id}.{first.sink}.{first.checkpoint_id:010d}.{unique}.json"
    temporary = f"{application_id}.{log_id}.{run_epoch}.{unique}.manifest"
    folder.put_manifest(name, orjson.dumps(data), temporary)


def committed_files(
    path: str | Path, store: Mapping[str, str] | None = None
) -> list[CommittedFile]:
    """Return the files of all whole checkpoints; safe beside a running pipeline.

    A later call returns every file that an earlier call returned (as long as nobody removes
    files), and adds only whole checkpoints.

    Args:
        path: the path of a `FileSink`; the folder does not exist before its first record.
        store: options of an object store, see `FileSink`; they may differ from the writer's.

    Returns:
        Sorted by application, log, sink, checkpoint and subtask.

    Raises:
        OSError: the folder cannot be read.
        ConfigurationError: no such folder can exist, or an option of the store is wrong.
        LogVersionError: a manifest has a newer version.
    """
    folder = open_folder(str(path), store or {})
    by_sink: defaultdict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for name, data in folder.manifests().items():
        manifest = _read(data, f"{path}, {name}")
        key = (manifest["application_id"], manifest["log_id"], manifest["sink"])
        by_sink[key].append(manifest)
    there = folder.published()
    newest = {
        key: max((m["checkpoint_id"] for m in found if _is_whole(m, there)), default=-1)
        for key, found in by_sink.items()
    }
    # Again: a listing is not atomic, and can show a file without earlier ones.
    there = folder.published()
    files = [
        CommittedFile(
            path=folder.path_of(file.pop("name")),
            application_id=key[0],
            log_id=key[1],
            sink=key[2],
            checkpoint_id=manifest["checkpoint_id"],
            **file,
        )
        for key, found in by_sink.items()
        for manifest in found
        if manifest["checkpoint_id"] <= newest[key]
        for file in manifest["files"]
        if file["name"] in there
    ]
    return sorted(
        files, key=lambda f: (f.application_id, f.log_id, f.sink, f.checkpoint_id, f.subtask)
    )


def _is_whole(manifest: dict[str, Any], there: set[str]) -> bool:
    return all(file["name"] in there for file in manifest["files"])


def _read(data: bytes, where: str) -> dict[str, Any]:
    manifest: dict[str, Any] = orjson.loads(data)
    if manifest.get("format") != FORMAT_VERSION:
        raise LogVersionError(
            f"A manifest has format {manifest.get('format')!r}; this version reads "
            f"{FORMAT_VERSION}.",
            where=where,
            cause="it was written by another version of sparkonce",
        )
    return manifest
