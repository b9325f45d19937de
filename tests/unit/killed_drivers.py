"""Drivers in processes of their own that append to a decision log until they are killed, and the
log that they leave, read without any code of the log.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).parents[2]
FLOOR = "floor-"


class Driver:
    """A child process that decides until it is killed or fenced."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.said: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.log_writer", url, json.dumps(options)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # a line that the kill has cut was not said
                self.said.append(line.strip())
                self._started.set()

    def wait_for_its_fence(self) -> None:
        assert self._started.wait(60.0)

    def kill(self) -> None:
        """Kill it; what it has sent can still be stored, at any time: see `S3Server.wait_idle`."""
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        code = self._process.wait(60.0)
        self._reader.join(10.0)
        return code

    def decided(self) -> set[int]:
        return {int(one.split()[1]) for one in self.said if one.startswith("decided")}


def whole_entries(stored: Iterable[tuple[str, bytes]], first: int = 1) -> list[dict[str, Any]]:
    """Return the entries of a log by number: each one whole, and each number once, none missing.

    Below the floor a number may come twice: no reader looks there, and who writes there finds
    itself fenced.

    Args:
        stored: names and contents, in the order in which they were stored.
        first: the lowest number among them.
    """
    found: dict[int, dict[str, Any]] = {}
    floor = 1
    for name, data in stored:
        if name.startswith(FLOOR):
            floor = max(floor, int(name.removeprefix(FLOOR)))
        elif name.isdecimal():
            entry = orjson.loads(data)
            checksum = entry.pop("checksum")
            plain = orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)
            assert hashlib.sha256(plain).hexdigest() == checksum
            assert entry["sequence"] == int(name)
            assert int(name) not in found or int(name) < floor
            found.setdefault(int(name), entry)
    assert sorted(found) == list(range(first, first + len(found)))
    return [found[number] for number in sorted(found)]


def decisions_of(entries: list[dict[str, Any]]) -> list[int]:
    return [one["body"]["checkpoint_id"] for one in entries if one["kind"] == "decision"]
