"""One contract suite for every committer; a backend that is added later joins `BACKENDS`."""

from __future__ import annotations

import contextlib
import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.wal import (
    CheckpointCommitter,
    FileCheckpointCommitter,
    SQLiteCheckpointCommitter,
)
from transactions.errors import ConfigurationError, LogCorruptedError

Make = Callable[..., CheckpointCommitter]

BACKENDS: dict[str, Callable[[Path], CheckpointCommitter]] = {
    "file": lambda folder: FileCheckpointCommitter(folder / "marks"),
    "sqlite": lambda folder: SQLiteCheckpointCommitter(folder / "marks.db"),
}
JOB = "app.0a1b2c3d.1"


@contextlib.contextmanager
def opening(new: Callable[[], CheckpointCommitter]) -> Iterator[Make]:
    """Return a function that opens the same storage again, as the next driver would."""
    with contextlib.ExitStack() as opened:

        def committer(job: str = JOB, operator: str = "out") -> CheckpointCommitter:
            one = new()
            one.set_operator_id(operator)
            one.create_resource()
            one.open()
            one.set_job_id(job)
            opened.callback(one.close)
            return one

        yield committer


@pytest.fixture(params=list(BACKENDS))
def make(request: pytest.FixtureRequest, tmp_path: Path):
    with opening(lambda: BACKENDS[request.param](tmp_path)) as made:
        yield made


def test_nothing_is_committed_at_first(make: Make):
    assert not make().is_checkpoint_committed(0, 0)


def test_a_mark_is_found_by_the_next_driver(make: Make):
    """Flink's key has a random part, which a job that is submitted again does not know."""
    make().commit_checkpoint(0, 7)
    again = make()
    assert again.is_checkpoint_committed(0, 7)
    assert not again.is_checkpoint_committed(0, 8)


def test_a_mark_stands_for_all_checkpoints_before_it(make: Make):
    make().commit_checkpoint(0, 7)
    assert all(make().is_checkpoint_committed(0, number) for number in range(8))


def test_a_lower_or_equal_mark_changes_nothing(make: Make):
    committer = make()
    for number in (7, 7, 3):
        committer.commit_checkpoint(0, number)
    assert make().is_checkpoint_committed(0, 7)


def test_subtasks_operators_and_jobs_do_not_see_each_other(make: Make):
    make().commit_checkpoint(1, 7)
    assert not make().is_checkpoint_committed(0, 7)
    assert not make(operator="other").is_checkpoint_committed(1, 7)
    assert not make(job="app.ffffffff.1").is_checkpoint_committed(1, 7)


def test_two_sinks_cannot_share_one_object(make: Make):
    """The second one's name would stand on the first one's marks."""
    committer = make()
    committer.bind("out")
    with pytest.raises(ConfigurationError, match="share one committer"):
        committer.bind("other")


def test_ids_that_go_back_in_another_run_are_not_taken_for_sent(make: Make):
    """A savepoint of checkpoint 3 was restored: checkpoint 4 has other records than before."""
    make().commit_checkpoint(0, 9)
    restored = make(job="app.0a1b2c3d.5")
    assert not restored.is_checkpoint_committed(0, 4)
    restored.commit_checkpoint(0, 4)
    assert not restored.is_checkpoint_committed(0, 9)
    restored.set_job_id(JOB)  # what the first run wrote is asked for under its own id
    assert restored.is_checkpoint_committed(0, 9)


def test_after_a_rescale_anybody_may_ask_for_any_subtask(make: Make):
    four = make()
    for subtask in range(4):
        four.commit_checkpoint(subtask, 5)
    two = make()
    assert all(two.is_checkpoint_committed(subtask, 5) for subtask in range(4))
    for subtask in range(2):
        two.commit_checkpoint(subtask, 6)
    again = make()
    assert [again.is_checkpoint_committed(subtask, 6) for subtask in range(4)] == [1, 1, 0, 0]


def test_open_and_close_can_be_repeated(make: Make):
    committer = make()
    committer.open()
    committer.commit_checkpoint(0, 1)
    committer.close()
    committer.close()
    committer.open()
    assert committer.is_checkpoint_committed(0, 1)


def test_it_travels_to_a_worker_while_it_is_open(make: Make):
    committer = make()
    committer.commit_checkpoint(0, 1)
    there = pickle.loads(pickle.dumps(committer))
    there.open()
    there.set_job_id(JOB)
    assert there.is_checkpoint_committed(0, 1)
    there.close()


def test_its_place_is_named_in_full(make: Make, tmp_path: Path):
    assert str(tmp_path) in make().describe()


KILLED = """
import os, signal, sys
from tests.unit.test_checkpoint_committer import BACKENDS, JOB
from pathlib import Path
one = BACKENDS[sys.argv[1]](Path(sys.argv[2]))
one.set_operator_id("out"); one.create_resource(); one.open(); one.set_job_id(JOB)
with one.transaction():
    one.commit_checkpoint(0, 3)
    if sys.argv[3] == "inside":
        os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(backend: str, folder: Path, where: str) -> CheckpointCommitter:
    arguments = [sys.executable, "-c", KILLED, backend, str(folder), where]
    done = subprocess.run(arguments, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -9
    one = BACKENDS[backend](folder)
    one.set_operator_id("out")
    one.open()
    one.set_job_id(JOB)
    return one


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_mark_survives_the_sigkill_right_after_it(backend: str, tmp_path: Path):
    one = killed(backend, tmp_path, "after")
    assert one.is_checkpoint_committed(0, 3)
    one.close()


def test_a_mark_in_a_transaction_goes_with_it(tmp_path: Path):
    one = killed("sqlite", tmp_path, "inside")
    assert not one.is_checkpoint_committed(0, 3)
    one.close()


def test_a_file_mark_is_synced_before_and_after_its_rename(tmp_path, monkeypatch):
    """Without either fsync a power cut could undo a mark whose records are gone already."""
    committer = BACKENDS["file"](tmp_path)
    committer.set_operator_id("out")
    committer.create_resource()
    committer.set_job_id(JOB)
    committer.commit_checkpoint(0, 1)
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        steps.append("folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file")
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    committer.commit_checkpoint(0, 2)
    assert steps == ["file", "rename", "folder"]
    steps.clear()
    assert committer.is_checkpoint_committed(0, 2)
    assert steps == ["folder"], "what is believed must be durable"


@pytest.mark.parametrize("text", [b"", b"4", b"four\n", b"\0\0\0\0"])
def test_a_file_mark_that_cannot_be_read_is_an_error_not_a_no(text: bytes, tmp_path: Path):
    committer = BACKENDS["file"](tmp_path)
    committer.set_operator_id("out")
    committer.create_resource()
    committer.set_job_id(JOB)
    committer.commit_checkpoint(0, 4)
    mark = tmp_path / "marks" / "out" / JOB / "0"
    assert mark.read_bytes() == b"4\n"
    mark.write_bytes(text)
    with pytest.raises(LogCorruptedError, match="asked for checkpoint 4") as error:
        committer.is_checkpoint_committed(0, 4)
    assert str(mark) in error.value.where


def test_a_folder_that_is_not_mounted_is_an_error_not_a_no(tmp_path: Path):
    committer = BACKENDS["file"](tmp_path)
    committer.set_operator_id("out")
    committer.set_job_id(JOB)
    with pytest.raises(FileNotFoundError):
        committer.is_checkpoint_committed(0, 4)


def test_an_sqlite_mark_waits_for_the_disk(tmp_path: Path):
    committer = SQLiteCheckpointCommitter(tmp_path / "marks.db")
    committer.open()
    assert committer.connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
    committer.close()


def test_an_sqlite_transaction_keeps_a_second_driver_out(tmp_path: Path):
    first, second = (
        SQLiteCheckpointCommitter(tmp_path / "marks.db", busy_timeout_s=0.1) for _ in range(2)
    )
    first.create_resource()
    first.open()
    second.open()
    with (
        first.transaction(),
        pytest.raises(sqlite3.OperationalError, match="locked"),
        second.transaction(),
    ):
        raise AssertionError("both drivers may send")
    first.close()
    second.close()


def test_an_sqlite_transaction_that_was_ended_inside_is_told(tmp_path: Path):
    committer = SQLiteCheckpointCommitter(tmp_path / "marks.db")
    committer.open()
    with pytest.raises(ConfigurationError, match="ended the transaction"), committer.transaction():
        committer.connection.commit()
    committer.close()


def test_wrong_options_are_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="a folder"):
        FileCheckpointCommitter("s3://bucket/marks")
    with pytest.raises(ConfigurationError, match="plain name"):
        SQLiteCheckpointCommitter(tmp_path / "marks.db", table="marks; --")
