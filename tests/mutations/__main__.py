"""Break each rule in a copy of the tree and see its test fail: `make mutations`.

    python -m tests.mutations            all of them
    python -m tests.mutations healing    those whose rule contains the word

Prints a line each; exit code 1 if one survived, that is, if its test stayed green.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutations.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
PARTS = (
    "connectors",
    "transactions",
    "tests",
    "examples",
    "docker",
    "docs",
    "pyproject.toml",
    "pyspark_sparkonce.py",
    "sparkonce_run.py",
    "README.md",
)
MOST_SECONDS = 300


def main() -> int:
    """Run those that were asked for."""
    words = sys.argv[1:]
    wanted = [one for one in MUTATIONS if not words or any(word in one.rule for word in words)]
    survivors = 0
    for one in wanted:
        began = time.monotonic()
        verdict = run(one)
        survivors += verdict != "red"
        seconds = time.monotonic() - began
        print(f"{verdict:9} {seconds:5.1f} s  {one.rule}  <- {one.test}", flush=True)
    print(f"{len(wanted)} mutations, {survivors} not found", flush=True)
    return 1 if survivors else 0


def run(one: Mutation) -> str:
    """Return "red" when the test failed, as it must; else what happened."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-mutation-") as folder:
        copy = Path(folder)
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, copy / part)
        broken = copy / one.file
        text = broken.read_text(encoding="utf-8")
        assert text.count(one.old) == 1, f"{one.rule}: {one.file} has changed"
        broken.write_text(text.replace(one.old, one.new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-m", "", one.test]  # the long ones as well
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        try:
            done = subprocess.run(
                command,
                cwd=copy,
                env=environment,
                capture_output=True,
                text=True,
                timeout=MOST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "hung"
    if done.returncode == 1:  # a test failed; a tree that cannot be collected gives 2
        return "red"
    return "SURVIVED" if done.returncode == 0 else f"code {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
