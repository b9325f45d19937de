"""Which backend holds the decision log: its address decides."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from transactions.errors import ConfigurationError
from transactions.log_backend import LocalFileBackend, LogBackend, refuse_file

#: The start of an address, of a known kind or not: two slashes, or one as in ``dbfs:/checkpoints``.
SCHEME: Final = re.compile(r"\s*([^/]*):/")

#: Makes the backend of an address, with options of its store; it sends nothing.
Opener = Callable[[str, Mapping[str, str | float]], LogBackend]
_openers: Final[dict[str, Opener]] = {}


def add_scheme(scheme: str, opener: Opener) -> None:
    """Let addresses of this kind be opened by a backend from another package, in this process.

    Args:
        scheme: the part before ``://``, in lower case.
        opener: see `Opener`.
    """
    _openers[scheme] = opener


@dataclasses.dataclass(frozen=True, slots=True)
class LogLocation:
    """Where a pipeline keeps its decision log.

    Attributes:
        address: see `backend_for`.
        options: of an object store; they may be secrets, so no error text shows them.
    """

    address: str | Path
    options: Mapping[str, str | float] = dataclasses.field(default_factory=dict, repr=False)

    def backend(self) -> LogBackend:
        """Return what holds the log.

        Raises:
            ConfigurationError: see `backend_for`.
        """
        return backend_for(self.address, self.options)

    def check(self) -> None:
        """Check the address and the options. It makes no folder, and sends nothing.

        Raises:
            ConfigurationError: see `backend_for`.
        """
        if _local_folder(self.address, self.options) is None:
            self.backend()


def backend_for(
    location: str | Path, options: Mapping[str, str | float] | None = None
) -> LogBackend:
    """Return the backend of an address. On the driver; it makes a local folder and sends nothing.

    Args:
        location: a path, ``file:///folder`` or ``file:/folder`` for the local file system, else
            the address of an object store (see `object_store.ObjectStore`), or one of a kind that
            was added (`add_scheme`): ``hdfs://`` if the package `connectors` is imported.
        options: of the object store, by its names; a local folder has none.

    Raises:
        ConfigurationError: the scheme is unknown, the path begins with ``~`` or is that of a file,
            an option is wrong, or the package that the address needs is not installed.
    """
    text, given = str(location), dict(options or {})
    if (folder := _local_folder(location, given)) is not None:
        # Not obstore's local store: it syncs neither file nor folder.
        return LocalFileBackend(folder)
    scheme, _, rest = text.lstrip().partition(":")
    url = f"{scheme.lower()}:{rest}"
    if opener := _openers.get(scheme.lower()):
        return opener(url, given)
    from transactions.object_store_backend import ObjectStoreBackend  # noqa: PLC0415 - an extra

    settings: dict[str, Any] = given  # a Clock is none of them
    return ObjectStoreBackend(url, frozenset(_openers), **settings)


def _local_folder(location: str | Path, options: Mapping[str, object]) -> Path | None:
    """Return the checked folder of an address; None if a store is there."""
    text = str(location)
    refuse_home(text)
    address = SCHEME.match(text)
    if address is not None and address[1].lower() != "file":
        return None
    if options:
        raise ConfigurationError(
            "A decision log in a local folder has no options.",
            where=text,
            cause="only an object store has options: s3://bucket/prefix",
            option=f"options: {', '.join(sorted(options))}",
        )
    folder = Path(location) if address is None else _folder_of(text)
    refuse_file(folder.absolute())
    return folder


def refuse_home(path: str) -> None:
    """Refuse a path that begins with ``~``: it would be a folder of that name in the current one.

    Raises:
        ConfigurationError: it does.
    """
    if path.lstrip().startswith("~"):
        raise ConfigurationError(
            "A path begins with ~, which is no folder.",
            where=path,
            cause="a shell puts the home folder in its place, nobody else does",
            option=f"{path}: write the whole path",
        )


def _folder_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise ConfigurationError(
            "The address of the decision log names a folder of another machine.",
            where=url,
            cause=f"the URL has the host {parts.netloc!r}; a local path has three slashes",
            option=f"address=file:///{parts.netloc}{parts.path}",
        )
    return Path(unquote(parts.path))
