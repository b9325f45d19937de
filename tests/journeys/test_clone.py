"""A stranger clones the repository, installs it as the pages say, and watches the demo.

Everything is as printed, with all of the 336,776 flights: `pip` takes what the package index has,
and each demo has a broker of its own, two kills and its proof.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.pages import ROOT, block, commands
from tests.tiers import long


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What git would give them of the files that are here now."""
    copy = "git ls-files -z --cached --others --exclude-standard | tar -c --null -T- | tar -xC"
    folder = tmp_path / "clone"
    folder.mkdir()
    subprocess.run(["bash", "-euc", f'{copy} "$0"', str(folder)], cwd=ROOT, check=True)
    return folder


@long
@pytest.mark.timeout(1800)
def test_the_first_commands_of_the_pages(clone: Path):
    install, *more = commands(block("docs/getting_started.md", "make venv"))
    demo = commands(block("README.md", "sparkonce demo"))
    both_modes = commands(block("docs/getting_started.md", "make demo"))
    # `-e` does not see a failure in the middle of `make venv && ...`; pip sees where it is.
    script = "\n".join([f"{install} || exit", *more, *demo, *both_modes])
    here = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    here["PIP_REQUIRE_VIRTUALENV"] = "true"
    log = clone.with_name("log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-exc", script],
            cwd=clone,
            env=here,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        assert process.wait() == 0, log.read_text("utf-8")[-6000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
