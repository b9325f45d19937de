"""A child process whose kernel says EIO to one fsync: `failing_fsync.c`, compiled and preloaded."""

from __future__ import annotations

from pathlib import Path

from tests.preloaded import library

SOURCE = Path(__file__).with_suffix(".c")


def fsync_fails(
    under: Path | str, *, once: Path, when: Path | None = None, of: str | None = None
) -> dict[str, str]:
    """Return the environment of a process in which one fsync fails.

    Args:
        under: how the path of its descriptor begins: a folder, or files in it.
        once: a file that does not exist; it is there when the fsync has failed. The library is
            compiled into its folder.
        when: a path; the fsync fails when this exists.
        of: "fsync" or "fdatasync"; None for both.
    """
    environment = {
        "LD_PRELOAD": str(library(SOURCE, once.parent)),
        "SPARKONCE_FSYNC_FAILS_UNDER": str(under),
        "SPARKONCE_FSYNC_FAILS_ONCE": str(once),
    }
    more = {"SPARKONCE_FSYNC_FAILS_WHEN": when, "SPARKONCE_FSYNC_FAILS_OF": of}
    return environment | {name: str(value) for name, value in more.items() if value is not None}
