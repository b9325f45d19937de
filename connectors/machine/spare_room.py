"""Whether this machine, or the container, has room for work that nobody waits for."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

_MEMORY: Final = 2 << 30
_DISK: Final = 1 << 30
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OF_PROCESS: Final = Path("/proc/self/cgroup")
#: The names of a controller's folder and files: version 2 of the kernel's interface, and version 1.
_LIMITS: Final = (
    ("", "memory.max", "memory.current", "cpu.max"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ""),
    ("cpu", "", "", "cpu.cfs_quota_us"),
    ("cpu,cpuacct", "", "", "cpu.cfs_quota_us"),
)


def no_room(folder: Path) -> str:
    """Return "" if there is room for a second Spark beside a pipeline, else in a few words why not.

    Where a group of processes has a quota of CPU there is none: the lowest priority does not keep
    the work from using up the pipeline's quota.

    Args:
        folder: where the work writes.
    """
    free = int(psutil.virtual_memory().available)
    for where, most, used, quota in _limits():
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            if most:
                free = min(free, int((where / most).read_text()) - int((where / used).read_text()))
        with contextlib.suppress(OSError, ValueError):
            if quota and int((where / quota).read_text().split()[0]) > 0:
                return "the CPU of this container is limited"
    if free < _MEMORY:
        return f"{max(free, 0) / 1e9:.1f} GB of memory are free"
    if (left := shutil.disk_usage(folder).free) < _DISK:
        return f"{left / 1e9:.1f} GB are free in {folder}"
    return ""


def _limits() -> Iterator[tuple[Path, str, str, str]]:
    """Yield each folder with limits of this process, up to the root, and the names in it."""
    lines = []
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in _OF_PROCESS.read_text().splitlines()]
    for folder, most, used, quota in _LIMITS:
        root = _CGROUPS / folder
        mine = next((path for _, name, path in lines if name == folder), "/")
        place = root / mine.strip("/")
        for where in (place, *(one for one in place.parents if one.is_relative_to(root))):
            yield where, most, used, quota
