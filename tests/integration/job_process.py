"""Runs `sparkonce run` as a process of its own, and reads what it says on stderr."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Generous: two cores are shared with the broker, and a JVM starts in each run.
PATIENCE_S = 240.0


@dataclass
class JobProcess:
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def until(self, condition: Callable[[str], bool]) -> None:
        """Wait until its stderr shows something."""
        with self._news:
            self._news.wait_for(
                lambda: condition(self.text) or self.process.poll() is not None, PATIENCE_S
            )
        assert condition(self.text), f"exit {self.process.poll()}\n{self.text}"

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Wait for its end, with all that it had to say, and return the exit code."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def ctrl_c(self) -> int:
        """Do what a terminal does: SIGINT to every process of the group, JVM and workers too."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def read(self) -> None:
        def follow() -> None:
            assert self.process.stderr is not None
            for line in self.process.stderr:
                with self._news:
                    self.lines.append(line)
                    self._news.notify_all()
            with self._news:
                self._news.notify_all()

        self._reader = threading.Thread(target=follow, daemon=True)
        self._reader.start()


@contextlib.contextmanager
def running(job_file: Path, *options: str, **environment: str) -> Iterator[JobProcess]:
    """Start `sparkonce run` in a process group of its own; all of it is gone at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "connectors.cli.main", "run", str(job_file), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        start_new_session=True,
        cwd=job_file.parent,
    )
    job = JobProcess(process)
    job.read()
    try:
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
