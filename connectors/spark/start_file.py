"""Where a source begins, on its way from the driver to the source's process.

The source plans batches in a process of its own, which Spark starts with the query: what the driver
has decided by then travels in a file of the checkpoint folder. It is no state: the decision log has
it, and every start of the driver writes the file again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Option of the data source, not for users: the file.
START_FILE_OPTION: Final = "sparkonce.startfile"


def start_file(folder: Path, number: int) -> Path:
    """Return the file of a source, by its place among those of the driver.

    Args:
        folder: of the checkpoint.
        number: the place.
    """
    return folder / f"start-{number}"


def write_start(file: Path, start: str) -> None:
    """Replace the file as a whole: the source of an older driver may read it now."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(start, "utf-8")
    new.replace(file)


def read_start(file: Path | None) -> str:
    """Return what the driver wrote; nothing decided, where no driver of ours runs."""
    return "{}" if file is None else file.read_text("utf-8")
