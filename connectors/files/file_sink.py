"""The user's options of a sink of files, parsed once and checked as a whole."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import pyarrow as pa

from connectors.files import json_lines, parquet_rows
from connectors.files.file_committer import FileCommitter
from connectors.files.file_writer import JSON, PARQUET, FileWriter
from connectors.files.target_folder import address_of, is_address, open_folder
from connectors.options.option import NAME
from connectors.options.sink_table import FILE_SINK
from transactions.errors import ConfigurationError
from transactions.log_location import SCHEME
from transactions.sink import OpenSink, SinkContext

#: Format -> its compressions, the default first.
FORMATS: Final = {PARQUET: ("snappy", "zstd", "gzip", "none"), JSON: ("none",)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileSink:
    """A folder of files as the target of a branch, exactly once.

    Attributes:
        path: the folder, on a local file system: made absolute, and created if missing; a
            ``file://`` URL is read as a path. Or an address in an object store:
            ``s3://bucket/prefix``, ``gs://...``, ``az://...``.
        format: ``parquet``, or ``json``: one object a line.
        name: unique in the driver and the same at every restart; the folder's name by default.
        compression: of Parquet: ``snappy`` (default), ``zstd``, ``gzip`` or ``none``.
        store: options of the object store, by its names (``region``, ``endpoint``), see
            `transactions.object_store.ObjectStore`; also credentials, if the environment of the
            driver and the workers does not have them. No error text shows them.
    """

    path: str
    format: str = PARQUET
    name: str = ""
    compression: str = ""
    store: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        """Check every option, and all of them together.

        Raises:
            ConfigurationError: an option is wrong.
        """
        self._complete_path()
        if self.format not in FORMATS:
            why = f"known: {', '.join(FORMATS)}"
            raise _wrong("The format is unknown.", why, f"format={self.format}")
        self._complete_compression()
        if not self.name:
            name = re.sub(r"[^A-Za-z0-9_-]", "-", Path(self.path).name)[:100]
            object.__setattr__(self, "name", name or "files")
        if not NAME.fullmatch(self.name):
            why = "it is a part of file names, and has up to 100 characters"
            raise _wrong("A sink's name has letters, digits, _ and -.", why, f"name={self.name}")

    def _complete_path(self) -> None:
        path = self.path.removeprefix("file://")
        if not path.strip():
            raise _wrong("A file sink needs a folder.", "no folder is given", "path=(absent)")
        if path.startswith("file:") or (SCHEME.match(path) and not is_address(path)):
            why = "a URL has two slashes before the path: file:///data, s3://bucket/prefix"
            raise _wrong("The path cannot be read.", why, f"path={path}")
        absolute = os.path.abspath(path)  # noqa: PTH100 - without ".."
        path = address_of(path) if is_address(path) else absolute
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "store", dict(self.store))
        open_folder(path, self.store)  # raises if they are wrong; nothing is sent

    def _complete_compression(self) -> None:
        known = FORMATS[self.format]
        if not self.compression:
            object.__setattr__(self, "compression", known[0])
        if self.compression not in known:
            raise _wrong(
                f"The format {self.format} has no such compression.",
                f"known: {', '.join(known)}",
                f"compression={self.compression}",
            )

    @property
    def folder_on_disk(self) -> Path | None:
        """See `connectors.options.sink.folder_on_disk`; prepared files lie in the target."""
        return None if is_address(self.path) else Path(self.path)

    def identity(self) -> dict[str, str]:
        """Return what must be the same at every restart on one checkpoint: prepared files lie in
        this folder, in this format.
        """
        return {"kind": "files", "path": self.path, "format": self.format}

    def check_columns(self, schema: pa.Schema) -> None:
        """Check that the format can express these columns. On the driver, before any data moves.

        Raises:
            ConfigurationError: it cannot; the text names the column.
        """
        if not len(schema):
            raise self._no_place("no column", "a file cannot store a row without columns")
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise self._no_place(f"the column {twice[0]!r}", "there are two columns of that name")
        for field in schema:
            problem = (
                json_lines.problem_of(field.type)
                if self.format == JSON
                else parquet_rows.problem_of(field)
            )
            if problem:
                raise self._no_place(f"the column {field.name!r} of type {field.type}", problem)

    def _no_place(self, column: str, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"The format {self.format} cannot carry {column}.",
            where=f"sink {self.name!r}, {self.path}",
            cause=why,
            option=f"format={self.format}; cast, rename or drop the column in the transform",
        )

    def open(self, context: SinkContext) -> OpenSink:  # noqa: ARG002 - a file needs no timeout
        """See `Sink.open`. It tests an object store with an object that it removes again.

        Raises:
            ConfigurationError: the path is not a folder; the store refuses us, or has no
                conditional put.
            BrokerUnavailableError: the store does not answer.
        """
        folder = open_folder(self.path, self.store)
        committer = FileCommitter(self.name, self.path, folder)
        committer.check_target()
        writer = FileWriter(
            name=self.name,
            path=self.path,
            folder=folder,
            format=self.format,
            compression=self.compression,
        )
        return OpenSink(writer, committer)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Read options by name; they are case-insensitive.

        Raises:
            ConfigurationError: an option is unknown or wrong.
        """
        given: dict[str, str] = {}
        store: dict[str, str] = {}
        for name, value in options.items():
            if FILE_SINK.passes(name):
                store[name.lower().removeprefix(FILE_SINK.prefix)] = value
            elif option := FILE_SINK.find(name):
                given[option.name] = value
            else:
                # Its value may be a store's secret under a wrong name: never show it.
                hint = FILE_SINK.hint(name)
                raise _wrong(f"The file sink has no option {name!r}.", hint, name)
        return cls(**{"path": "", **given}, store=store)


def _wrong(what: str, cause: str, option: str) -> ConfigurationError:
    return ConfigurationError(what, where="options of a file sink", cause=cause, option=option)
