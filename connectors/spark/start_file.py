"""Passes the place where a source begins from the driver to the source's process.

The source plans batches in a process of its own, which Spark starts with the query. So the driver
passes its decision in a file of the checkpoint folder. The file is not state: the decision log has
the same text, and every start of the driver writes the file again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Option of the data source, not for users: the file.
START_FILE_OPTION: Final = "sparkonce.startfile"


def start_file(folder: Path, number: int) -> Path:
    """Return the file of a source, by its place among the sources of the driver.

    Args:
        folder: the checkpoint folder.
        number: the source's place.
    """
    return folder / f"start-{number}"


def write_start(file: Path, start: str) -> None:
    """Replace the whole file: the source of an older driver may read it now."""
    file.parent.mkdir(parents=True, exist_ok=True)  # it can be a temporary one that was cleaned up
    new = file.with_name(f".{file.name}.new")
    new.write_text(start, "utf-8")
    new.replace(file)


def read_start(file: Path | None) -> str:
    """Return the driver's text; an empty text if no driver of ours runs."""
    return "" if file is None else file.read_text("utf-8")
