"""The protocol by hand (examples/checkpoints.py): killed, rescaled, and still every number once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]


def copy(folder: Path, *arguments: str, crash_at: str = "") -> int:
    """Run the example as a user does; return its exit code, or minus the signal that ended it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/checkpoints.py"), str(folder), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "SPARKONCE_CRASH_AT": crash_at},
        check=False,
        timeout=60,
    )
    return done.returncode


def visible(folder: Path) -> Counter[int]:
    """What a reader finds who knows nothing but the rule that hidden files are no data."""
    files = (folder / "numbers").glob("[!_.]*.parquet")
    return Counter(number for file in files for number in pq.read_table(file)["number"].to_pylist())


def subtasks(folder: Path) -> dict[int, set[int]]:
    """Return who wrote each checkpoint, by the names of the files."""
    found = defaultdict(set)
    for file in (folder / "numbers").glob("[!_.]*.parquet"):
        checkpoint, subtask = re.findall(r"-(\d+)(?=-)", file.name)
        found[int(checkpoint)].add(int(subtask))
    return found


def up_to(end: int) -> Counter[int]:
    """The first numbers of each partition."""
    return Counter(100 * partition + one for partition in range(4) for one in range(end))


def test_killed_and_rescaled_it_copies_every_number_once(tmp_path):
    # In a task, whose file is whole: checkpoint 1 is not decided, and nothing of it is seen.
    assert copy(tmp_path, "2", crash_at="records_flushed@1") == -signal.SIGKILL
    assert visible(tmp_path) == up_to(10)
    # Behind the decision, before the commit: the next run commits checkpoint 2, and begins at 3.
    assert copy(tmp_path, "3", "union", crash_at="decision_durable@2") == -signal.SIGKILL
    assert visible(tmp_path) == up_to(20)
    # In the commit: one file of four has its name.
    assert copy(tmp_path, "4", crash_at="renamed@3") == -signal.SIGKILL
    seen = visible(tmp_path)
    assert up_to(30) < seen < up_to(40)
    assert copy(tmp_path, "5") == 0
    assert visible(tmp_path) == up_to(100)

    wrote = subtasks(tmp_path)
    assert wrote[0] == {0, 1}
    assert wrote[1] == wrote[2] == {0, 1, 2}
    # Four partitions for five subtasks: one of them has nothing to write.
    assert {len(wrote[number]) for number in range(3, 10)} == {4}
