"""The clock of the journey in which it jumps: Python and a JVM see the jump."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from connectors.machine.java import ensure_java_home
from tests.wall_clock import DAY_S, WallClock

PYTHON = "import time; print(time.time(), time.monotonic())"


@pytest.mark.parametrize("days", [1, -1])
def test_python_sees_the_jump_and_its_monotonic_clock_does_not(tmp_path: Path, days: int):
    clock = WallClock(tmp_path)
    clock.set_ahead(days * DAY_S)
    wall, monotonic = says(clock, sys.executable, "-c", PYTHON).split()
    assert float(wall) - time.time() == pytest.approx(days * DAY_S, abs=30)
    assert float(monotonic) == pytest.approx(time.monotonic(), abs=30)


@pytest.mark.parametrize("days", [1, -1])
def test_a_jvm_sees_the_jump(tmp_path: Path, days: int):
    clock = WallClock(tmp_path)
    clock.set_ahead(days * DAY_S)
    java = str(Path(ensure_java_home(tell=lambda _: None)) / "bin" / "java")
    log = says(clock, java, "-Xlog:gc+init=info:stdout:utctime", "-version")
    first = log[1 : log.index("]")]  # [2026-11-24T11:24:56.123+0000] ...
    wall = datetime.strptime(first, "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()
    assert wall - time.time() == pytest.approx(days * DAY_S, abs=30)


def says(clock: WallClock, *command: str) -> str:
    environment = {**os.environ, **clock.environment}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout
