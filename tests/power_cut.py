"""A power cut: what was synced is there, and of the rest whatever a file system may have kept.

`Syncs` sees the fsyncs of a process, and what each of them made durable: the bytes of a file, or
the names in a folder. `cut` then makes a folder into one that the next start could find:

* a file whose bytes were not synced is whole, cut off in the middle, or empty;
* a name that was not synced is there or not; one that was removed without a sync may come back;
* a file that got a new name has the old one, the new one or both: a rename is never half done.

It shares nothing with what it judges. Files must be written once or grow: nobody here writes into
the middle of one, except of a file that has only a hidden name.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import orjson
import pytest

#: The name of a file in the environment of a process that records what it syncs.
RECORD_TO = "SPARKONCE_TEST_SYNCS"

#: What a cut leaves of bytes that were not synced.
WHOLE, TORN, EMPTY = "whole", "torn", "empty"


class PowerCut(BaseException):
    """The machine is off; no `except Exception` goes on."""


@dataclasses.dataclass
class Syncs:
    """What is durable.

    Attributes:
        files: by inode, the bytes when it was synced last.
        folders: by path, the inodes of its names when it was synced last.
        count: how many syncs there were, counted twice: just before and just after.
        cut_at: the one at which the machine goes off.
        is_off: it is: nothing is synced any more.
    """

    files: dict[int, bytes] = dataclasses.field(default_factory=dict)
    folders: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    count: int = 0
    cut_at: int = 0
    is_off: bool = False
    told: Callable[[dict[str, object]], None] = lambda _: None
    #: As long as a file is open nobody else gets its inode.
    _held: list[BinaryIO] = dataclasses.field(default_factory=list)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """See the fsyncs of this process from now on; what they do no disk has to."""

        def fsync(descriptor: int) -> None:
            self._step()
            # Of a file without a name btrfs syncs nothing; its path is none that exists.
            self.synced(Path(f"/proc/self/fd/{descriptor}").readlink())
            self._step()

        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, fsync)

    def _step(self) -> None:
        self.count += 1
        self.is_off = self.is_off or self.count == self.cut_at
        if self.is_off:
            raise PowerCut

    def reboot(self, root: Path) -> None:
        """Go on after a cut: what is there now has been read from the disk."""
        self.close()
        self.files.clear()
        self.folders.clear()
        for path in (root, *root.rglob("*")):
            self.synced(path)
        self.is_off = False

    def synced(self, path: Path) -> None:
        """Take note of a sync."""
        if path.is_dir():
            names = {one.name: one.inode() for one in os.scandir(path)}
            self.folders[str(path)] = names
            self.told({"folder": str(path), "names": names})
        elif path.is_file():
            file = path.open("rb")
            self._held.append(file)
            inode, data = os.fstat(file.fileno()).st_ino, file.read()
            self.files[inode] = data
            self.told({"file": inode, "data": base64.b64encode(data).decode()})

    def close(self) -> None:
        """Let the files go."""
        for file in self._held:
            file.close()
        self._held.clear()


def record_syncs(to: str) -> None:
    """Write down what this process syncs, for the test that kills it."""
    syncs, patch = Syncs(told=_written(Path(to))), pytest.MonkeyPatch()
    syncs.watch(patch)
    from connectors.spark import durable_files

    def sync_all(folder: Path) -> bool:
        for path in (folder, *folder.rglob("*")):
            syncs.synced(path)
        return True

    patch.setattr(durable_files, "_sync_file_system", sync_all)


def cut_recorded(root: Path, record: Path, rng: random.Random, *, kept: float) -> list[str]:
    """Cut a folder by what processes have written down (see `cut`), and begin their record anew."""
    syncs = Syncs()
    for line in record.read_bytes().splitlines():
        seen = orjson.loads(line)
        if "folder" in seen:
            syncs.folders[seen["folder"]] = seen["names"]
        else:
            syncs.files[seen["file"]] = base64.b64decode(seen["data"])
    done = cut(root, syncs, rng, kept=kept)
    record.unlink()
    disk = Syncs(told=_written(record))
    disk.reboot(root)
    disk.close()
    return done


def _written(record: Path) -> Callable[[dict[str, object]], None]:
    file = record.open("ab", buffering=0)  # a SIGKILL loses nothing of it
    return lambda what: (file.write(orjson.dumps(what) + b"\n"), None)[1]


def cut(
    root: Path, syncs: Syncs, rng: random.Random, *, kept: float | Callable[[Path], bool] = 0.5
) -> list[str]:
    """Leave of a folder what a power cut may leave.

    Args:
        root: its own name is durable.
        syncs: what was synced in it.
        rng: chooses.
        kept: how probable it is that something is kept that was not synced; or whether a file is.

    Returns:
        What was done, for the text of a failure.
    """
    keep: Callable[[Path], bool] = kept if callable(kept) else lambda _: rng.random() < kept
    done: list[str] = []
    now = {
        path: {one.name: one.inode() for one in os.scandir(path)}
        for path in [root, *(one for one in root.rglob("*") if one.is_dir())]
    }
    # Inode -> whether its move was kept; both names of a moved file follow it.
    moved: dict[int, bool] = {}
    for folder, names in now.items():
        if not folder.exists():
            continue  # gone with the one above it
        durable = syncs.folders.get(str(folder), {})
        for name in sorted(names.keys() | durable.keys()):
            path, new, old = folder / name, names.get(name), durable.get(name)
            if new == old:
                _cut_bytes(path, syncs, rng, keep, done)
                continue
            inode = new if new is not None else old
            assert inode is not None
            keeps = moved.setdefault(inode, keep(path))
            if new is not None and keeps:
                _cut_bytes(path, syncs, rng, keep, done)
                continue
            if new is not None:
                done.append(f"gone: {path}")
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if old is not None and (new is not None or not keeps) and old in syncs.files:
                done.append(f"back: {path}")
                path.write_bytes(syncs.files[old])
    return done


def _cut_bytes(
    path: Path, syncs: Syncs, rng: random.Random, keep: Callable[[Path], bool], done: list[str]
) -> None:
    if not path.is_file():
        return
    data = path.read_bytes()
    durable = syncs.files.get(path.stat().st_ino)
    if durable is not None and not data.startswith(durable):
        durable = None  # another file, which has got the inode of one that is gone
    how = WHOLE if data == durable or keep(path) else rng.choice((TORN, EMPTY))
    if how == WHOLE:
        return
    left = len(durable or b"") if how == EMPTY else (len(durable or b"") + len(data)) // 2
    path.write_bytes(data[:left])
    done.append(f"{how}: {path}")
