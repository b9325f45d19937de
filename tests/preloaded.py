"""Libraries in C that stand between a child process and the C library (LD_PRELOAD)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def library(source: Path, folder: Path) -> Path:
    """Compile one into a folder. A test whose machine has no compiler fails."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.fail(
            f"no C compiler (cc, gcc) is on PATH, and this test needs {source.name}; "
            "Debian and Ubuntu: apt-get install gcc libc6-dev",
            pytrace=False,
        )
    made = folder / f"{source.stem}.so"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", made, source, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{source.name} does not compile:\n{done.stderr}", pytrace=False)
    return made
