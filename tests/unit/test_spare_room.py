"""A container's own limits count, wherever in the tree of groups they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.machine import spare_room
from connectors.machine.spare_room import no_room

GB = 1 << 30
GROUPS = "4:memory:/service/one\n2:cpu,cpuacct:/service/one\n0::/service/one\n"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a tree of groups; this process is in /service/one."""
    monkeypatch.setattr(spare_room, "_CGROUPS", tmp_path / "fs")
    monkeypatch.setattr(spare_room, "_OF_PROCESS", tmp_path / "mine")
    monkeypatch.setattr(spare_room, "_MEMORY", 1)
    (tmp_path / "mine").write_text(GROUPS)
    return tmp_path / "fs"


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_without_limits_there_is_room(group, tmp_path):
    assert no_room(tmp_path) == ""
    write(group / "service/one", memory__max="max", memory__current=1, cpu__max="max 100000")
    assert no_room(tmp_path) == ""


@pytest.mark.parametrize("where", ["", "service", "service/one"])
def test_a_limit_of_memory_counts_at_each_level(group, tmp_path, monkeypatch, where):
    monkeypatch.setattr(spare_room, "_MEMORY", 2 * GB)
    write(group / where, memory__max=3 * GB, memory__current=2 * GB)
    assert "1.1 GB of memory are free" in no_room(tmp_path)


def test_the_older_interface_counts_too(group, tmp_path, monkeypatch):
    monkeypatch.setattr(spare_room, "_MEMORY", 2 * GB)
    where = group / "memory/service"
    write(where, memory__limit_in_bytes=3 * GB, memory__usage_in_bytes=2 * GB)
    assert "1.1 GB of memory are free" in no_room(tmp_path)


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("service/one", {"cpu__max": "150000 100000"}),
        ("cpu,cpuacct/service/one", {"cpu__cfs_quota_us": 150_000}),
    ],
)
def test_a_quota_of_cpu_is_no_room(group, tmp_path, where, files):
    write(group / where, **files)
    assert no_room(tmp_path) == "the CPU of this container is limited"


def test_a_disk_that_is_nearly_full_is_no_room(group, tmp_path, monkeypatch):
    monkeypatch.setattr(spare_room, "_DISK", 1 << 60)
    assert f"are free in {tmp_path}" in no_room(tmp_path)
