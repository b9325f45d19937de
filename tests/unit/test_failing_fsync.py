"""A driver in a process of its own, and a kernel that says EIO to one of its fsyncs (B2)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.failing_fsync import fsync_fails
from tests.unit.log_writer import UNWRITTEN
from tests.unit.samples import decision
from transactions.decision_log import DecisionLog, entry_name, read_log
from transactions.log_backend import LocalFileBackend

ROOT = Path(__file__).parents[2]
#: The Fence is entry 1, so this is the second decision, of checkpoint 1.
ENTRY = 3


def decides_until_it_stops(log: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run the driver until it stops by itself, or comes behind the entry; return what it said."""
    said = ""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.log_writer", log, "{}"],
        env={**os.environ, **environment},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if line == "decided 5\n":
                process.kill()
    return process.returncode, said


def next_run(log: Path) -> DecisionLog:
    backend = LocalFileBackend(log)
    return DecisionLog.open(backend, application_id="app", identity={"sinks": "out"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    """Return the file that says that the fsync has failed."""
    return tmp_path / "failed"


@pytest.mark.parametrize("kept", [True, False], ids=["the disk kept it", "the disk lost it"])
def test_b2_an_entry_whose_folder_was_not_synced_is_unknown(log: Path, failed: Path, kept: bool):
    """The driver stops at it, and the next run finds it or not: both are right."""
    entry = log / entry_name(ENTRY)
    code, said = decides_until_it_stops(log, fsync_fails(log, when=entry, once=failed))

    assert failed.exists()
    assert (code, re.findall(r"decided (\d+)", said)) == (UNWRITTEN, ["0"])
    assert "not known; nothing was aborted" in said
    assert f"entry {ENTRY}" in said
    assert entry.exists()  # in the page cache
    assert not (log / entry_name(ENTRY + 1)).exists()

    if not kept:
        entry.unlink()
    found = next_run(log)
    assert found.state.decision == decision(1 if kept else 0)
    found.decide(decision(2 if kept else 1))
    assert read_log(LocalFileBackend(log)).decision == decision(2 if kept else 1)


@pytest.mark.parametrize(
    ("file", "of", "before"),
    [
        (f".{entry_name(ENTRY - 1)}", "fsync", []),  # the first decision of a run
        (".", "fdatasync", ["0"]),  # only a file that was prepared is synced so
    ],
    ids=["a new file", "a prepared file"],
)
def test_b2_an_entry_whose_bytes_were_not_synced_has_no_name(
    log: Path, failed: Path, file: str, of: str, before: list[str]
):
    """Nobody can find it, so it is not decided; and this driver says no more, either."""
    code, said = decides_until_it_stops(log, fsync_fails(f"{log}/{file}", once=failed, of=of))

    assert failed.exists()
    assert (code, re.findall(r"decided (\d+)", said)) == (UNWRITTEN, before)
    assert "this checkpoint is not decided" in said
    last = decision(0) if before else None
    assert read_log(LocalFileBackend(log)).decision == last
    assert next_run(log).state.decision == last


def test_b2_a_file_that_could_not_be_prepared_is_no_failure(log: Path, failed: Path):
    code, said = decides_until_it_stops(
        log, fsync_fails(f"{log}/.", when=log / entry_name(ENTRY - 1), once=failed, of="fsync")
    )

    assert failed.exists()
    assert (code, re.findall(r"decided (\d+)", said)) == (-signal.SIGKILL, [*"012345"])


def test_b2_a_run_whose_fence_is_unknown_begins_nothing(log: Path, failed: Path):
    fence = log / entry_name(1)
    code, said = decides_until_it_stops(log, fsync_fails(log, when=fence, once=failed))

    assert failed.exists()
    assert (code, "epoch" in said, "decided" in said) == (UNWRITTEN, False, False)
    assert next_run(log).run_epoch == 2
