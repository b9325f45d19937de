"""What a killed worker leaves in an object store where no sweep finds it."""

from __future__ import annotations

from collections.abc import Mapping

from connectors.files.target_folder import open_folder


def abandoned_files(path: str, store: Mapping[str, str] | None = None) -> list[str]:
    """Return files that no reader sees and nobody will commit; safe beside a running pipeline.

    A request that was under way when its worker died can be carried out later than the sweep that
    discarded the transaction. What is returned costs storage and does no harm: whoever may delete
    there removes it, when he likes. A local folder has none.

    Args:
        path: of a `FileSink`.
        store: options of an object store, see `FileSink`.

    Returns:
        Their addresses, sorted.

    Raises:
        OSError: the store cannot be read.
        ConfigurationError: the address or an option of the store is wrong.
    """
    folder = open_folder(path, store or {})
    return [folder.path_of(name) for name in folder.abandoned()]
