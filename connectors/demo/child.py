"""A process of the demo: it writes JSON lines, and a kill ends its child processes too."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
import psutil

from transactions.errors import SparkOnceError

Events = queue.SimpleQueue[dict[str, Any]]

_CRASH_VARIABLES: Final = tuple(
    f"SPARKONCE_CRASH_{name}" for name in ("AT", "ONCE", "WHEN", "SIGNAL")
)
_LAST_WORDS_S: Final = 5.0


class Child:
    """`python -m module arguments...`, with its messages on a queue.

    Its standard input is a pipe without a writer. The end of the pipe means that the supervisor is
    gone; the child then ends too (`connectors.machine.parent_watch`).

    Args:
        arguments: module and arguments.
        events: queue that receives every JSON line of its output.
        log: file for its standard error.
        environment: variables in addition to those of this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        events: Events,
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        inherited = {k: v for k, v in os.environ.items() if k not in _CRASH_VARIABLES}
        self._log = log
        self._events = events
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**inherited, **(environment or {})},
                start_new_session=True,  # ctrl-C goes to the supervisor, which ends its children
            )
        self._tree: list[psutil.Process] = []
        self._reader = threading.Thread(target=self._read, name=f"read-{arguments[0]}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code, None while the process runs; at its end all messages are queued."""
        code = self._process.poll()
        if code is not None:
            self._end_the_rest()
        return code

    def is_frozen(self) -> bool:
        """Return whether the process has stopped itself at a crash point (SIGSTOP)."""
        try:
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False

    def ask_to_stop(self) -> None:
        """Send SIGTERM: the process finishes its work and exits."""
        self._remember_tree()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL the process and its descendants, as if the machine had lost power."""
        self._remember_tree()
        self._process.kill()
        self._process.wait()
        self._end_the_rest(grace_s=0.0)

    def failed(self, what: str) -> SparkOnceError:
        """Return the error for an unexpected end of the process, with the end of its log."""
        return SparkOnceError(
            f"{what} ended with exit code {self._process.returncode}.",
            where=str(self._log),
            cause="the end of its log:\n" + _tail(self._log),
        )

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(orjson.JSONDecodeError):
                message = orjson.loads(line)
                if isinstance(message, dict) and "event" in message:
                    self._events.put(message)

    def _remember_tree(self) -> None:
        # After the parent's death its children belong to init, and their origin is unknown.
        with contextlib.suppress(psutil.NoSuchProcess):
            self._tree = psutil.Process(self.pid).children(recursive=True)

    def _end_the_rest(self, grace_s: float = _LAST_WORDS_S) -> None:
        _, alive = psutil.wait_procs(self._tree, grace_s)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, _LAST_WORDS_S)
        self._tree = []
        self._reader.join(_LAST_WORDS_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def tell(event: str, **fields: Any) -> None:
    """Write one message to the supervisor; the child process calls this."""
    sys.stdout.buffer.write(orjson.dumps({"event": event, **fields}) + b"\n")
    sys.stdout.buffer.flush()


def _tail(log: Path, lines: int = 25) -> str:
    with log.open(encoding="utf-8", errors="replace") as stream:
        return "".join("    " + line for line in deque(stream, lines)).rstrip()
