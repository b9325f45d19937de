"""One way to show a person what takes time: a line on stderr, never on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable

Say = Callable[[str], None]


def say(text: str) -> None:
    """Write one line to stderr at once, so no download is silent."""
    sys.stderr.write(f"sparkonce: {text}\n")
    sys.stderr.flush()


def progress(text: str) -> None:
    """Rewrite the current line of a terminal; write nothing into a file or a CI log."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2Ksparkonce: {text}")
        sys.stderr.flush()


def progress_done() -> None:
    """Clear the line that `progress` rewrote."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()
