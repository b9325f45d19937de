"""A child process whose kernel says EIO to one fsync: `failing_fsync.c`, compiled and preloaded."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


def fsync_fails(under: Path | str, *, once: Path, when: Path | None = None) -> dict[str, str]:
    """Return the environment of a process in which one fsync fails.

    Args:
        under: how the path of its descriptor begins: a folder, or files in it.
        once: a file that does not exist; it is there when the fsync has failed. The library is
            compiled into its folder.
        when: a path; the fsync fails when this exists.
    """
    environment = {
        "LD_PRELOAD": str(_library(once.parent)),
        "SPARKONCE_FSYNC_FAILS_UNDER": str(under),
        "SPARKONCE_FSYNC_FAILS_ONCE": str(once),
    }
    return environment | ({} if when is None else {"SPARKONCE_FSYNC_FAILS_WHEN": str(when)})


def _library(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.fail(
            "no C compiler (cc, gcc) is on PATH, and the fsync of this test is made to fail in C; "
            "Debian and Ubuntu: apt-get install gcc libc6-dev",
            pytrace=False,
        )
    library = folder / "failing_fsync.so"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE, "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.fail(f"{SOURCE.name} does not compile:\n{made.stderr}", pytrace=False)
    return library
