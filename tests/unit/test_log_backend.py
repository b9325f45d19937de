"""One contract suite for every backend of the decision log."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from transactions.log_backend import LocalFileBackend, LogBackend, MemoryBackend

Make = Callable[[], LogBackend]


@pytest.fixture(params=["memory", "local file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a function that opens the same storage again, as another process would."""
    if request.param == "memory":
        shared = MemoryBackend()
        return lambda: shared
    return lambda: LocalFileBackend(tmp_path / "log")


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


def test_a_local_put_that_fails_leaves_no_temporary_file(tmp_path, monkeypatch):
    backend = LocalFileBackend(tmp_path / "log")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        backend.put_if_absent("1", b"one")
    assert list((tmp_path / "log").iterdir()) == []
