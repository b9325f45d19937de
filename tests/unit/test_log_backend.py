"""One contract suite for every backend of the decision log.

On a real HDFS and a real S3 store: `integration/test_hdfs_log.py`, `integration/test_s3_log.py`.
"""

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.s3_server import S3Server
from transactions.log_backend import LocalFileBackend, LogBackend, MemoryBackend
from transactions.object_store_backend import ObjectStoreBackend

Make = Callable[[], LogBackend]
ROOT = Path(__file__).parents[2]


class AlwaysPrepared(LocalFileBackend):
    """Prepares every put, as a log does between two checkpoints."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.prepare_put()
        assert self._blank is not None
        return super().put_if_absent(name, data)


@pytest.fixture(
    params=["memory", "local file", "prepared file", "obstore memory", "obstore file", "s3"]
)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Yield a function that opens the same storage again, as another process would."""
    match request.param:
        case "memory":
            shared = MemoryBackend()
            yield lambda: shared
        case "local file":
            yield lambda: LocalFileBackend(tmp_path / "log")
        case "prepared file":
            yield lambda: AlwaysPrepared(tmp_path / "log")
        case "obstore memory":
            one = ObjectStoreBackend("memory:///")
            yield lambda: one
        case "obstore file":
            yield lambda: ObjectStoreBackend(f"file://{tmp_path}/log")
        case "s3":
            with S3Server() as server:
                server.page = 2  # a listing takes several answers
                yield lambda: ObjectStoreBackend("s3://bucket/app/log", **server.options())


def contract_of_a_backend() -> list[Callable[[Make], None]]:
    """Return what every backend promises, for storage that another tier starts."""
    found = [
        test
        for name, test in globals().items()
        if name.startswith("test_") and [*inspect.signature(test).parameters] == ["make"]
    ]
    assert len(found) > 6
    return found


def test_put_then_get(make: Make):
    assert make().put_if_absent("1", b"one") is True
    assert make().get("1") == b"one"


def test_a_taken_name_is_refused_and_keeps_its_data(make: Make):
    make().put_if_absent("1", b"one")
    assert make().put_if_absent("1", b"two") is False
    assert make().get("1") == b"one"


def test_an_absent_name_is_none(make: Make):
    assert make().get("1") is None


def test_list_is_sorted_and_shows_only_names(make: Make):
    for name in ("2", "1", "floor-3"):
        make().put_if_absent(name, b"")
    assert make().list() == ["1", "2", "floor-3"]


def test_an_empty_entry_is_there(make: Make):
    make().put_if_absent("floor-1", b"")
    assert make().get("floor-1") == b""


def test_a_place_that_nobody_has_written_to_is_empty(make: Make):
    assert make().list() == make().list(durable=False) == []


def test_delete_frees_the_name_and_forgives(make: Make):
    make().put_if_absent("1", b"one")
    make().delete("1")
    make().delete("1")
    assert make().get("1") is None
    assert make().put_if_absent("1", b"two") is True


def test_of_many_writers_exactly_one_wins(make: Make):
    backends, won, barrier = [make() for _ in range(8)], [], threading.Barrier(8)

    def put(number: int) -> None:
        barrier.wait()
        if backends[number].put_if_absent("1", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert make().get("1") == b"%d" % won[0]


def test_a_local_put_syncs_the_entry_and_its_folder(tmp_path, monkeypatch):
    """Without either fsync a power cut could undo a decision that was acted on."""
    synced: list[bool] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").is_dir())
        real(descriptor)

    backend = LocalFileBackend(tmp_path / "log")
    monkeypatch.setattr(os, "fsync", fsync)
    backend.put_if_absent("1", b"one")
    assert synced == [False, True]
    synced.clear()
    backend.list()
    assert synced == [True]


def test_a_prepared_put_syncs_the_entry_then_its_folder(tmp_path, monkeypatch):
    """The name must not be durable before the data is; and nothing is written to the journal for
    the entry itself (`fdatasync`).
    """
    steps: list[str] = []

    def noting(name: str, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            is_folder = Path(f"/proc/self/fd/{descriptor}").is_dir()
            steps.append(f"{name} {'folder' if is_folder else 'file'}")
            real(descriptor)

        return sync

    backend = LocalFileBackend(tmp_path / "log")
    backend.prepare_put()
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    real_link = os.link
    monkeypatch.setattr(os, "link", lambda *a, **k: (steps.append("link"), real_link(*a, **k))[1])
    assert backend.put_if_absent("1", b"one")
    assert steps == ["fdatasync file", "link", "fsync folder"]
    assert (tmp_path / "log" / "1").read_bytes().rstrip() == b"one"
    assert backend.get("1") == b"one"


def test_a_prepared_put_leaves_nothing_but_the_entry(tmp_path):
    backend = LocalFileBackend(tmp_path / "log")
    backend.prepare_put()
    backend.prepare_put()
    assert backend.list() == []
    backend.put_if_absent("1", b"one")
    backend.prepare_put()
    backend.put_if_absent("1", b"two")
    assert [one.name for one in (tmp_path / "log").iterdir()] == ["1"]
    backend.prepare_put()
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    del backend
    assert len([*Path("/proc/self/fd").iterdir()]) < descriptors
    assert [one.name for one in (tmp_path / "log").iterdir()] == ["1"]


def test_a_process_that_ends_takes_its_prepared_file_along_and_a_killed_one_leaves_it(tmp_path):
    """The next run removes it, when it has put something itself."""
    prepares = f"""
import os, sys
from transactions.log_backend import LocalFileBackend
backend = LocalFileBackend({str(tmp_path)!r})
backend.prepare_put()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""
    for how, left in (("ended", 0), ("killed", 1)):
        subprocess.run([sys.executable, "-c", prepares, how], check=False, cwd=ROOT)
        assert len([*tmp_path.iterdir()]) == left
    next_run = LocalFileBackend(tmp_path)
    next_run.put_if_absent("1", b"one")
    next_run.prepare_put()
    next_run.put_if_absent("2", b"two")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["1", "2"]


def test_what_a_killed_process_left_and_nobody_can_remove_is_no_failure(tmp_path):
    """A folder stands for it: root removes every file. The janitor's thread would end the run."""
    (tmp_path / ".left.blank").mkdir()
    for name in (".before.blank", ".other.blank"):
        (tmp_path / name).touch()
    backend = LocalFileBackend(tmp_path)
    backend.put_if_absent("1", b"one")
    backend.prepare_put()
    assert backend.put_if_absent("2", b"two")
    assert backend.list() == ["1", "2"]
    assert sorted(one.name for one in tmp_path.iterdir()) == [".left.blank", "1", "2"]


def test_an_entry_that_is_larger_than_the_prepared_file_is_whole(tmp_path):
    backend = LocalFileBackend(tmp_path / "log")
    backend.prepare_put()
    large = b"x" * 100_000
    assert backend.put_if_absent("1", large)
    assert backend.get("1") == large
    backend.prepare_put()
    assert backend.put_if_absent("2", large + b"y")
    assert backend.get("2") == large + b"y"
    assert (tmp_path / "log" / "2").stat().st_size % 4096 == 0, "it was prepared"


def test_a_prepared_put_whose_sync_fails_has_no_name(tmp_path, monkeypatch):
    backend = LocalFileBackend(tmp_path / "log")
    backend.prepare_put()

    def broken(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="Input/output"):
        backend.put_if_absent("1", b"one")
    assert list((tmp_path / "log").iterdir()) == []
    monkeypatch.undo()
    assert backend.put_if_absent("1", b"two"), "the broken file is not used again"


def test_a_prepared_file_that_was_removed_is_written_anew(tmp_path):
    """A newer run removes what it finds; this one then learns from the name who owns the log."""
    backend = LocalFileBackend(tmp_path / "log")
    backend.prepare_put()
    for one in (tmp_path / "log").iterdir():
        one.unlink()
    assert backend.put_if_absent("1", b"one")
    assert (tmp_path / "log" / "1").read_bytes() == b"one"


def full(_descriptor: int) -> None:
    """Stand for a sync on a disk without room."""
    raise OSError(28, "No space left on device")


def test_a_full_disk_prepares_nothing(tmp_path, monkeypatch):
    backend = LocalFileBackend(tmp_path / "log")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        backend.prepare_put()
    assert list((tmp_path / "log").iterdir()) == []
    assert backend.put_if_absent("1", b"one")
    assert (tmp_path / "log" / "1").read_bytes() == b"one"


def test_a_local_put_that_fails_leaves_no_temporary_file(tmp_path, monkeypatch):
    backend = LocalFileBackend(tmp_path / "log")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        backend.put_if_absent("1", b"one")
    assert list((tmp_path / "log").iterdir()) == []
