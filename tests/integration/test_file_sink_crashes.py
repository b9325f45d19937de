"""A pipeline into files is killed at every point of the protocol; readers see each record once.

Real processes and real SIGKILLs; coordinator, recovery and decision log are the product's. What is
asserted is what pyarrow and json read in the target folders, after each death and at the end.
"""

import base64
import datetime as dt
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from connectors.files import committed_files
from tests.integration.file_sink_main import FORMATS, PER_BATCH, SUBTASKS, Driver
from tests.integration.job_process import PATIENCE_S
from tests.tiers import long, sampled
from transactions import crash_points
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend

ROOT = Path(__file__).parents[2]
BATCHES = 4
TOTAL = BATCHES * PER_BATCH

#: Every point that a batch meets when nothing is lost.
IN_A_BATCH = [
    "batch_started",
    "records_queued",
    "records_flushed",
    "committables_collected",
    "prepared_checked",
    "decision_durable",
    "rename_started",
    "renamed",
    "one_committed",
    "all_committed",
    "batch_finished",
]
#: Before the decision, and behind it: no file has its name, one has, all have.
ONE_OF_EACH_CLASS = ("records_flushed", "decision_durable", "one_committed", "all_committed")
#: The point of a first death, and the one at which the recovery from it dies as well.
IN_A_RECOVERY = [
    ("records_flushed", "recovery_fenced"),
    ("records_flushed", "recovery_settled"),
    ("decision_durable", "recovery_fenced"),
    ("decision_durable", "rename_started"),
    ("decision_durable", "renamed"),
    ("decision_durable", "recovery_settled"),
    ("renamed", "renamed"),
    ("one_committed", "rename_started"),
]
HEALING = [
    "heal_started",
    "records_queued",
    "heal_produced",
    "heal_durable",
    "renamed",
    "heal_committed",
]


def run(folder: Path, crash_at: str = "") -> int:
    """Run the pipeline until it ends or dies, and return how."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if crash_at:
        environment["SPARKONCE_CRASH_AT"] = crash_at
    command = [sys.executable, "-m", "tests.integration.file_sink_main", str(folder), str(TOTAL)]
    child = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode not in (0, -signal.SIGKILL):
        pytest.fail(child.stderr)
    return child.returncode


def killed(folder: Path, crash_at: str) -> None:
    """Run it, see it die there, and see what readers see then."""
    assert run(folder, crash_at) == -signal.SIGKILL
    audit(folder)


def record(number: int) -> dict[str, Any]:
    """Return what a reader must find."""
    at = dt.datetime(2024, 5, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number)
    return {"number": number, "text": f"row {number}", "bytes": number.to_bytes(8), "at": at}


def read(folder: Path, file_format: str, files: list[str] | None = None) -> list[dict[str, Any]]:
    """Read a target folder, or some files of it, as anybody would."""
    if not folder.exists():
        return []
    if file_format == "parquet":
        found = pyarrow.dataset.dataset(folder if files is None else files, format="parquet")
        return found.to_table().to_pylist() if found.files else []
    paths = folder.glob("[!_.]*") if files is None else map(Path, files)
    rows = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    for row in rows:
        row["bytes"] = base64.b64decode(row["bytes"])
        row["at"] = dt.datetime.fromisoformat(row["at"])
    return rows


def audit(folder: Path, *, whole: bool = False) -> None:
    """Assert that nothing is there twice, nothing is broken, and checkpoints are whole where they
    are said to be; with `whole` that everything is there and nothing is left over.
    """
    for one in FORMATS:
        found = sorted(read(folder / one, one), key=lambda row: row["number"])
        numbers = [row["number"] for row in found]
        assert len(set(numbers)) == len(numbers), f"{one}: a record is there twice"
        assert found == [record(number) for number in numbers]
        if whole:
            assert numbers == list(range(TOTAL))
        audit_whole_checkpoints(folder, one)
        if whole:
            assert list((folder / one / "_transactions").iterdir()) == []
            assert len(list((folder / one).glob("[!_.]*"))) == BATCHES * SUBTASKS
            assert len(committed_files(folder / one)) == BATCHES * SUBTASKS


def audit_whole_checkpoints(folder: Path, file_format: str) -> None:
    files = committed_files(folder / file_format)
    by_checkpoint: dict[int, list[str]] = {}
    for file in files:
        by_checkpoint.setdefault(file.checkpoint_id, []).append(file.path)
    assert list(by_checkpoint) == list(range(len(by_checkpoint)))
    for number, paths in by_checkpoint.items():
        rows = read(folder / file_format, file_format, paths)
        expected = range(number * PER_BATCH, (number + 1) * PER_BATCH)
        assert sorted(row["number"] for row in rows) == list(expected)


@pytest.mark.parametrize("point", sampled(IN_A_BATCH, *ONE_OF_EACH_CLASS))
def test_killed_in_a_batch(tmp_path, point):
    killed(tmp_path, f"{point}@1")
    assert run(tmp_path) == 0
    audit(tmp_path, whole=True)


@pytest.mark.parametrize(
    ("first", "second"), sampled(IN_A_RECOVERY, ("decision_durable", "renamed"))
)
def test_killed_in_a_batch_and_again_in_its_recovery(tmp_path, first, second):
    killed(tmp_path, f"{first}@1")
    killed(tmp_path, second)
    assert run(tmp_path) == 0
    audit(tmp_path, whole=True)


@long
def test_killed_after_every_single_rename(tmp_path):
    """Each run gets one file further, its recovery included."""
    for _ in range(BATCHES * SUBTASKS * len(FORMATS)):
        killed(tmp_path, "renamed")
    assert run(tmp_path, "renamed") == 0
    audit(tmp_path, whole=True)


@pytest.mark.parametrize("point", sampled(["", *HEALING], "heal_durable"))
def test_a_prepared_file_that_somebody_removed_is_written_again(tmp_path, point):
    """Removed after the decision, while the pipeline was down; its healing may be killed too."""
    killed(tmp_path, "decision_durable@1")
    last = read_log(LocalFileBackend(tmp_path / "log")).decision
    assert last is not None
    lost = [one for one in last.committables if one.subtask == 0]
    assert len(lost) == len(FORMATS)
    for one in lost:
        (tmp_path / one.sink / "_transactions" / one.transactional_id).unlink()
    if point:
        killed(tmp_path, f"{point}@1")
    assert run(tmp_path) == 0
    audit(tmp_path, whole=True)


def test_a_file_removed_beside_a_running_pipeline_is_written_again(tmp_path):
    def remove(point: str, checkpoint: int) -> None:
        if (point, checkpoint) == ("decision_durable", 2):
            for one in FORMATS:
                next((tmp_path / one / "_transactions").iterdir()).unlink()

    crash_points.install(remove)
    try:
        Driver(tmp_path).run(TOTAL)
    finally:
        crash_points.install(None)
    audit(tmp_path, whole=True)
