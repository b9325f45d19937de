"""The owner's side of `process_keeper`: start, signal and poll brokers that cannot outlive us."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transactions.errors import SparkOnceError

_KEEPER = Path(__file__).with_name("process_keeper.py")


class KeeperClient:
    """One keeper process; thread-safe.

    Args:
        remove: a folder that the keeper removes at its end, however its owner ends.
    """

    def __init__(self, remove: Path | None = None) -> None:
        command = [sys.executable, "-I", "-S", str(_KEEPER)]
        command += [str(remove)] if remove is not None else []
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        """Return the process id of the keeper itself."""
        return self._process.pid

    def start(self, command: Sequence[str], log: Path) -> int:
        """Start a process with its output appended to `log`; return its process id."""
        answer = self._ask({"do": "start", "command": list(command), "log": str(log)})
        return int(answer["pid"])

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal; do nothing if the process has ended."""
        self._ask({"do": "signal", "pid": pid, "signal": int(number)})

    def exit_code(self, pid: int) -> int | None:
        """Return how the process ended (negative: by that signal), None while it runs."""
        code = self._ask({"do": "poll", "pid": pid})["code"]
        return None if code is None else int(code)

    def release(self) -> None:
        """Let the brokers outlive us; the keeper ends them when it gets SIGTERM."""
        self._ask({"do": "release"})

    def close(self, *, wait: bool = True) -> None:
        """Close our end: unless released, the keeper kills its processes and removes its folder."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        if wait:
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except (OSError, ValueError) as error:
                raise self._gone() from error
        if not line:
            raise self._gone()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SparkOnceError(
                "the process of a broker could not be started or signalled",
                where=str(request.get("pid", request.get("command", ["?"]))),
                cause=answer["error"],
                option="directory=(the folder must be writable and Java must run)",
            )
        return answer

    def _gone(self) -> SparkOnceError:
        return SparkOnceError(
            "the keeper process of the embedded brokers has ended, and the brokers with it",
            where=f"pid {self._process.pid}",
            cause="somebody killed it, or the machine ran out of memory",
            option="LocalCluster: start a new one",
        )
