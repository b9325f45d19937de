"""One process of a pipeline: started in a group of its own, watched, and gone at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

_GONE_SECONDS = 30.0
#: The longest wait for the remaining output of a process that ended or was killed: a process that
#: it started may live on for a moment and hold the other end.
_REST_SECONDS = 10.0
_REST_OF_KILLED_SECONDS = 1.0


@dataclass
class Run:
    """One process of the pipeline, with its output.

    Attributes:
        process: the process; it leads a process group.
        lines: the lines of its stdout that are JSON objects.
        errors: the lines of its stderr.
    """

    process: subprocess.Popen[str]
    lines: list[dict[str, object]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _followers: list[threading.Thread] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for its end; return the exit code, or minus the number of the signal that killed it.

        Its output until then is in `lines` and `errors`.

        Raises:
            AssertionError: it still runs after `timeout` seconds; the text is its last output.
        """
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still running after {timeout} s; {self.text()}") from error
        end = time.monotonic() + (_REST_SECONDS if code >= 0 else _REST_OF_KILLED_SECONDS)
        for follower in self._followers:
            follower.join(max(0.0, end - time.monotonic()))
        return code

    def until(self, condition: Callable[[Run], bool], timeout: float = 90.0) -> None:
        """Wait until its output fulfils a condition."""
        with self._news:
            held = self._news.wait_for(
                lambda: condition(self) or self.process.poll() is not None, timeout
            )
        if self.process.poll() is not None:
            self.wait()
        if not held or not condition(self):
            raise AssertionError(self.text())

    def stop(self, timeout: float = 120.0) -> int:
        """Request a stop (SIGTERM), and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        """SIGKILL the process itself; its children notice, or are killed at the end."""
        self.process.kill()
        self.process.wait(_GONE_SECONDS)

    def checkpoints(self) -> list[int]:
        """Return the checkpoints that it reported."""
        return [int(str(line["checkpoint"])) for line in self.lines if "checkpoint" in line]

    def replays(self) -> list[int]:
        """Return the checkpoints that an earlier run had decided and this run finished."""
        return [int(str(line["checkpoint"])) for line in self.lines if line.get("replayed")]

    def text(self) -> str:
        """Return the end of its log, for a failed test."""
        return f"exit {self.process.poll()}; {self.lines[-3:]}\n" + "".join(self.errors[-60:])

    def follow(self) -> None:
        """Begin to collect its output, on separate threads."""
        for name in ("stdout", "stderr"):
            follower = threading.Thread(target=self._collect, args=(name,), daemon=True)
            self._followers.append(follower)
            follower.start()

    def close(self) -> None:
        """Kill it and all processes in its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_GONE_SECONDS)
        for follower in self._followers:
            follower.join(_GONE_SECONDS)

    def _collect(self, stream: str) -> None:
        pipe = getattr(self.process, stream)
        for line in pipe:
            with self._news:
                if stream == "stderr":
                    self.errors.append(line)
                elif line.startswith("{"):
                    # A line that is not a JSON object is the user's own output.
                    with contextlib.suppress(orjson.JSONDecodeError):
                        self.lines.append(orjson.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


@contextlib.contextmanager
def running(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path
) -> Iterator[Run]:
    """Start a process; it and all processes in its group are gone when the block ends.

    Args:
        command: the words of the command.
        environment: variables in addition to those of this process.
        folder: its working folder.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        start_new_session=True,
        cwd=folder,
    )
    run = Run(process)
    run.follow()
    try:
        yield run
    finally:
        run.close()
