"""Makes what Spark writes into its checkpoint folder survive a power cut: Spark syncs nothing.

A decision is durable within a millisecond of its append, so everything that its replay reads must
be durable before it. We keep this order:

    offsets/N, commits/N-1, Spark's metadata   before   Decision(N)
    the state that batch N wrote               before   commits/N

After a power cut, the files up to some point of this order are there. The files behind that point
are whole, in part, empty or missing. `drop_undecided` removes those before the next query starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from connectors.spark.checkpoint_files import MUST_BE_EMPTY, batches_in, is_whole
from transactions.errors import SparkOnceError
from transactions.log_backend import make_folder, sync_file, sync_folder
from transactions.log_entries import Decision

#: From this number of new files on, one call syncs the whole file system. For 400 small files it
#: takes 18 to 40 ms; syncs file by file take 900 to 1900 ms (measured). The call also syncs the
#: files of other programs, so a few files are synced one by one.
_MANY: Final = 32


class DurableFiles:
    """The files of one checkpoint folder, for one run. Lives on the driver.

    Spark writes each file once, under another name first. So name and inode identify a durable
    file, and a listing of the names finds new files.

    Args:
        folder: Spark's part of the checkpoint folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._durable: dict[Path, frozenset[tuple[str, int]]] = {}
        make_folder(folder)

    @classmethod
    def of_run(cls, folder: Path, decision: Decision | None) -> Self:
        """Return the files of a run that begins after this decision; see `drop_undecided`."""
        drop_undecided(folder, -1 if decision is None else decision.checkpoint_id)
        return cls(folder)

    def has_state(self) -> bool:
        """Return whether the query keeps state of operators."""
        return (self._folder / "state").exists()

    def make_state_durable(self) -> None:
        """Sync what a batch has written, if the query keeps state.

        Raises:
            SparkOnceError: it is not known whether all of it is durable.
        """
        if self.has_state():
            self.begin()()

    def begin(self) -> Callable[[], None]:
        """Begin to sync, on another thread, what Spark has written so far.

        Returns:
            A function that waits until all of it is durable. It raises a `SparkOnceError` if that
            is not known.
        """
        problems: list[BaseException] = []

        def sync() -> None:
            try:
                self._sync()
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                problems.append(error)

        thread = threading.Thread(target=sync, name="sparkonce-durable", daemon=True)
        thread.start()

        def wait() -> None:
            thread.join()
            if problems:
                raise SparkOnceError(
                    "Spark's part of the checkpoint could not be made durable.",
                    where=f"{self._folder}: {problems[0]}",
                    cause="the disk is full, read-only or gone",
                    option=f"checkpoint={self._folder.parent}",
                ) from problems[0]

        return wait

    def _sync(self) -> None:
        new: list[Path] = []
        found = dict(self._look(self._folder, new))
        if len(new) < _MANY or not _sync_file_system(self._folder):
            for path in new:
                _sync(path)
        self._durable = found

    def _look(
        self, folder: Path, new: list[Path]
    ) -> Iterator[tuple[Path, frozenset[tuple[str, int]]]]:
        """Yield each folder with its entries; collect new files, and their folder after them."""
        try:
            entries = [one for one in os.scandir(folder) if ".tmp" not in one.name]
        except FileNotFoundError:
            return  # Spark has removed it: it was too old to be needed
        files = {(one.name, one.inode()): one for one in entries}
        for one in entries:
            if one.is_dir(follow_symlinks=False):
                yield from self._look(folder / one.name, new)
        fresh = files.keys() - self._durable.get(folder, frozenset())
        new += [folder / key[0] for key in fresh if files[key].is_file(follow_symlinks=False)]
        if fresh:
            new.append(folder)
        yield folder, frozenset(files)


def drop_undecided(folder: Path, last: int) -> None:
    """Remove what a power cut may have left of batches after the last decision, before a start.

    Spark plans such a batch again. None of it is visible, and none will be.

    Args:
        folder: Spark's part of the checkpoint folder.
        last: the last checkpoint that was decided; -1 before the first.

    Raises:
        OSError: something could not be removed.
    """
    doubtful = [path for number, path in batches_in(folder / "offsets") if number > last]
    for number, path in batches_in(folder / "commits"):
        # For the last decision: Spark runs the batch again, which writes only lost records.
        doubtful += [path] if number >= last and not is_whole(path) else []
    # No decision needs an empty state file: the files it needs were synced with their content.
    doubtful += [path for path in (folder / "state").rglob("*") if _is_empty(path)]
    if last < 0:
        doubtful += [path for path in folder.glob("*metadata*") if not is_whole(path)]
        for name in MUST_BE_EMPTY:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder / name)
    for path in doubtful:
        path.unlink(missing_ok=True)


def _is_empty(path: Path) -> bool:
    try:
        return path.is_file() and not path.stat().st_size
    except FileNotFoundError:
        return False


def _sync(path: Path) -> None:
    # If it is gone, Spark has removed it: it was too old to be needed.
    with contextlib.suppress(FileNotFoundError):
        (sync_folder if path.is_dir() else sync_file)(path)


def _sync_file_system(folder: Path) -> bool:
    """Sync the whole file system of a folder; return False if the platform has no call for it.

    Raises:
        OSError: the result is not known.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if call(descriptor):
            raise OSError(ctypes.get_errno(), "syncfs failed", str(folder))
    finally:
        os.close(descriptor)
    return True
