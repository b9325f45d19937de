"""Where a pipeline keeps its checkpoint: a folder of a file system, or an address.

    /data/flights/decisions/...       the decision log, if the user does not keep it elsewhere
    /data/flights/log-id              which log belongs to this checkpoint
    /data/flights/spark/...           Spark's own part, in micro-batches; only in a folder

In an object store (``s3://state/flights``) the names of ours lie under that prefix. The store
gives the promises that a folder gives with link() and fsync(): see `transactions.log_backend`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from transactions.errors import ConfigurationError, without_secrets
from transactions.log_backend import LocalFileBackend, LogBackend, refuse_file
from transactions.log_location import SCHEME, LogLocation, backend_for, refuse_home

#: A file of the checkpoint: the id of its log.
BOUND_TO: Final = "log-id"
_LOG: Final = "decisions"
_MEMORY: Final = "memory"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """One checkpoint. Plain data on the driver; it sends nothing until a method is called.

    Attributes:
        address: a path, ``file:///folder`` or ``file:/folder`` for the local file system, else the
            address of an object store (see `transactions.object_store.ObjectStore`).
        options: of the object store, by its names; they may be secrets, so no error text shows
            them. The environment of the driver gives the others.

    Raises:
        ConfigurationError: a folder is given options of a store, or begins with ``~``.
    """

    address: str | Path
    options: Mapping[str, str | float] = dataclasses.field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse options that nothing would read, and a folder that nobody means."""
        refuse_home(str(self.address))
        if self.options and self.folder is not None:
            raise ConfigurationError(
                "A checkpoint in a folder has no options of a store.",
                where=str(self.address),
                cause="only an object store has options: s3://bucket/prefix",
                option=", ".join(f"store.{name}" for name in sorted(self.options)),
            )

    @classmethod
    def of(cls, checkpoint: str | Path | Self) -> Self:
        """Return the location that a user names, by its address or with options."""
        return checkpoint if isinstance(checkpoint, cls) else cls(str(checkpoint))

    @property
    def folder(self) -> Path | None:
        """The absolute folder; None: it is on no file system of this machine."""
        return local_path(str(self.address))

    @property
    def log(self) -> LogLocation:
        """Where the decision log lies by default."""
        return LogLocation(self.part(_LOG).address, self.options)

    def part(self, name: str) -> Self:
        """Return the location of this name below this one; it has the same options."""
        folder = self.folder
        below = f"{str(self.address).rstrip('/')}/{name}" if folder is None else folder / name
        return dataclasses.replace(self, address=below)

    @property
    def hadoop_address(self) -> str:
        """The address as Hadoop's clients name it: they know ``s3a``, and not ``s3``."""
        scheme, _, rest = str(self.address).strip().rstrip("/").partition("://")
        scheme = scheme.lower()
        return f"{'s3a' if scheme == 's3' else scheme}://{rest}"

    def file(self, name: str) -> str:
        """Return what an engine is told of a file below: its path, or its address for Hadoop."""
        below = self.part(name)
        return below.hadoop_address if below.folder is None else str(below.folder)

    def beside(self, address: str | Path) -> Self:
        """Return another place: in the same kind of store it has the same options."""
        other = type(self)(str(address))
        kind, own = (one.hadoop_address.partition("://")[0] for one in (other, self))
        same = other.folder is None and kind == own
        return dataclasses.replace(other, options=self.options) if same else other

    def is_same(self, other: Self) -> bool:
        """Return whether both name one place: ``s3`` and ``s3a``, with or without a last slash."""
        return (self.folder or self.hadoop_address) == (other.folder or other.hadoop_address)

    def files(self) -> LogBackend:
        """Return what holds our own few files. It makes a local folder, and sends nothing.

        Raises:
            ConfigurationError: a file lies where the folder must be; the address or an option is
                wrong; or the package that the address needs is not installed.
        """
        if self.folder is not None:
            refuse_file(self.folder, option="checkpoint")
            return LocalFileBackend(self.folder)
        text = str(self.address)
        scheme = SCHEME.match(text)
        if scheme is not None and scheme[1].lower() == _MEMORY:
            raise ConfigurationError(
                "A checkpoint cannot lie in memory.",
                where=text,
                cause="it would end with the process, and the next start would begin anew",
                option="checkpoint: a folder, or the address of an object store",
            )
        return backend_for(text, self.options)

    def read(self, name: str) -> bytes | None:
        """Return one of our own files, None if it is absent. It makes no folder.

        Raises:
            OSError: it cannot be read; of a store see `ObjectStore.get`.
            ConfigurationError: see `files`.
        """
        if self.folder is None:
            return self.files().get(name)
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def has_log(self) -> bool:
        """Return whether a driver has begun a decision log here. It makes no folder.

        Raises:
            OSError: a store does not answer.
            ConfigurationError: see `files`.
        """
        if self.folder is None:
            return bool(self.log.backend().list(durable=False))
        return (self.folder / _LOG).is_dir()

    def __str__(self) -> str:
        """Return what an error shows: credentials in an address are refused, and not shown."""
        folder = self.folder
        return without_secrets(str(self.address)) if folder is None else str(folder)


def local_path(address: str) -> Path | None:
    """Return the absolute path that an address names: a path, ``file:///data`` or, as Hadoop writes
    it, ``file:/data``. None for an address of another file system.
    """
    path = address.removeprefix("file://")
    path = path.removeprefix("file:") if path.startswith("file:/") else path
    return None if SCHEME.match(path) else Path(path).absolute()
