"""The disk of `make chaos`: full or read-only, never both. A run died of it (seed 51103)."""

from __future__ import annotations

import errno
from pathlib import Path

from tests.chaos.disk import Disk


def test_a_read_only_disk_is_not_filled(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    assert Disk(tmp_path, wanted=True).fill() == "the disk is read-only"


def test_a_full_disk_does_not_become_read_only(tmp_path):
    (tmp_path / "filler").touch()
    assert Disk(tmp_path, wanted=True).read_only() == "the disk is full"
