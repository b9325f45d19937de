"""What is in the target of a file sink, read past all of its code: from the disk, or from what the
S3 server holds.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.parquet as pq

from connectors.files.file_sink import FileSink
from tests.both_halves import BothHalves
from tests.unit.s3_server import BUCKET, S3Server
from transactions.committable import Committable

#: A prefix below another one: names must be relative to all of it.
URL = f"s3://{BUCKET}/lake/out"
#: Of a store that is meant to fail.
BRIEF = {"timeout_s": "2", "retry_s": "0.5"}
_PREFIX = "lake/out/"
_SERVERS: dict[str, S3Server] = {}


@contextmanager
def served() -> Iterator[S3Server]:
    """Yield a server that the functions below find by its endpoint; a listing takes two pages."""
    with S3Server() as server:
        server.page = 2
        _SERVERS[server.endpoint] = server
        try:
            yield server
        finally:
            del _SERVERS[server.endpoint]


def options_on(server: S3Server, file_format: str = "parquet", **store: str) -> FileSink:
    return FileSink(path=URL, format=file_format, store=server.options(**store))


def server_of(sink: BothHalves) -> S3Server | None:
    """Return the server that holds the target, None for one on disk."""
    return _SERVERS.get(sink.options.store.get("endpoint", ""))


def everything(sink: BothHalves) -> dict[str, bytes]:
    """Return all that is in the target, by its place in it."""
    server = server_of(sink)
    if server is not None:
        assert all(key.startswith(_PREFIX) for key in server.objects)
        return {key.removeprefix(_PREFIX): data for key, data in sorted(server.objects.items())}
    folder = Path(sink.options.path)
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def history(sink: BothHalves) -> list[Any]:
    """Return something that is different after anything was written."""
    server = server_of(sink)
    if server is not None:
        return [one for one in server.stored if ".probe" not in one[0]]
    return sorted((one, one.stat().st_mtime_ns) for one in Path(sink.options.path).iterdir())


def hidden_files(sink: BothHalves) -> list[str]:
    """Return the ids of what is not at its end."""
    found = (place.partition("_transactions/") for place in everything(sink))
    return [name for _, folder, name in found if folder]


def place_of(sink: BothHalves, one: Committable) -> str:
    """Return where a prepared file lies."""
    if server_of(sink) is None:
        return f"_transactions/{one.transactional_id}"
    return f"_data/{one.marker_partition.rpartition(':')[0]}"


def change(sink: BothHalves, place: str, data: bytes | None) -> None:
    """Do what somebody else does to a file: None removes it."""
    server = server_of(sink)
    if server is not None and data is None:
        del server.objects[_PREFIX + place]
    elif server is not None:
        server.objects[_PREFIX + place] = data
    elif data is None:
        (Path(sink.options.path) / place).unlink()
    else:
        (Path(sink.options.path) / place).write_bytes(data)


def committed_objects(server: S3Server, prefix: str = _PREFIX) -> dict[str, bytes]:
    """Return the files that count: those with a mark, in the order of their names."""
    marks = sorted(key for key in server.objects if key.startswith(f"{prefix}_committed/"))
    names = [key.rpartition("/")[2] for key in marks]
    return {name: server.objects[f"{prefix}_data/{name}"] for name in names}


def rows_of(data: bytes, file_format: str) -> list[dict[str, Any]]:
    """Read a file as anybody would."""
    if file_format == "json":
        return [json.loads(line) for line in data.decode().splitlines()]
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
    return rows


def seen(sink: BothHalves) -> list[int]:
    """Return what a reader of the target finds, in order of number."""
    server, file_format = server_of(sink), sink.options.format
    if server is not None:
        files = list(committed_objects(server).values())
    elif file_format == "json":
        files = [one.read_bytes() for one in Path(sink.options.path).glob("[!_.]*")]
    else:  # a plain reader, which takes the folder as it is
        table = pyarrow.dataset.dataset(sink.options.path, format="parquet").to_table()
        return sorted(table["number"].to_pylist()) if table.num_columns else []
    return sorted(row["number"] for data in files for row in rows_of(data, file_format))
