"""Files that a killed worker leaves in an object store, and that no sweep finds."""

from __future__ import annotations

from collections.abc import Mapping

from connectors.files.target_folder import open_folder


def abandoned_files(path: str, store: Mapping[str, str] | None = None) -> list[str]:
    """Return files that no reader sees and nobody will commit; safe beside a running pipeline.

    A request of a dead worker can still be carried out after the sweep that discarded its
    transaction. The resulting file costs storage and does no harm: anybody with the right to
    delete may remove it at any time. A local folder has no such files.

    Args:
        path: the path of a `FileSink`.
        store: options of an object store, see `FileSink`.

    Returns:
        The files' addresses, sorted.

    Raises:
        OSError: the store cannot be read.
        ConfigurationError: the address or an option of the store is wrong.
    """
    folder = open_folder(path, store or {})
    return [folder.path_of(name) for name in folder.abandoned()]
