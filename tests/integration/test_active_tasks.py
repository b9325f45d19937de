"""Partitions move between the tasks of a running stage: a real broker, a busy topic, real SIGKILLs.

An independent reader judges: each record once, in the order of its partition.
"""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing.run import Run
from tests.auditor.reader import Follower
from tests.integration.job_process import PATIENCE_S
from tests.integration.test_continuous import Copy, copy  # noqa: F401
from tests.tiers import long

#: A record takes so long that one task cannot read the busy topic alone.
TOO_SLOW_MS = "6"
RECORDS = 20
EVERY_S = 0.1


@pytest.fixture
def pace(copy: Copy, tmp_path: Path) -> Path:
    """Return the file that says how slow the function is."""
    file = tmp_path / "pace"
    file.write_text("0")
    copy.environment = lambda: {"PACE_OF_TEST": str(file)}
    return file


@contextlib.contextmanager
def written_all_the_time(copy: Copy) -> Iterator[None]:
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(EVERY_S):
            copy.produce(RECORDS)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def reading(run: Run) -> list[int]:
    """Return how many tasks read, after each change."""
    return [
        int(found) for found in re.findall(r"event=rescaled .*tasks=(\d+)", "".join(run.errors))
    ]


def ends(copy: Copy, run: Run, follower: Follower) -> None:
    """Let the run come to the end of its input, stop it, and judge."""
    follower.until(lambda seen: len(seen) >= copy.produced, timeout=PATIENCE_S)
    assert run.stop() == 0, run.text()
    copy.audit(follower)


def test_partitions_move_to_one_task_and_back_without_a_restart(copy: Copy, pace: Path):
    with (
        Follower(copy.bootstrap, copy.output) as follower,
        copy.running(function="at_a_pace") as run,
    ):
        with written_all_the_time(copy):
            run.until(lambda run: reading(run) == [1], PATIENCE_S)
            pace.write_text(TOO_SLOW_MS)
            run.until(lambda run: reading(run) == [1, 2], PATIENCE_S)
            pace.write_text("0")
            run.until(lambda run: reading(run) == [1, 2, 1], PATIENCE_S)
        ends(copy, run, follower)
        assert "event=restarted" not in run.text()


@long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", ["native", "plain"])
def test_a_sigkill_at_each_step_of_a_move(copy: Copy, pace: Path, path: str):
    options = {"function": "at_a_pace", "path": path}
    with Follower(copy.bootstrap, copy.output) as follower:
        for point in ("partitions_left", "partitions_moving", "partitions_came"):
            with written_all_the_time(copy), copy.running(crash_at=point, **options) as run:
                code = run.wait()
            assert code == (-signal.SIGKILL if point == "partitions_moving" else 3), run.text()
        with copy.running(**options) as run:
            with written_all_the_time(copy):
                run.until(lambda run: reading(run) == [1], PATIENCE_S)
            ends(copy, run, follower)
