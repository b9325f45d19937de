"""Work in another process that SIGKILL ends without a last word, as an executor or a driver.

The process is a fresh Python, not a fork, so it has only what was pickled of this process. It also
ends when this process ends: its standard input ends then.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NoReturn

#: Hands bytes to the parent and waits for the SIGKILL, with everything of the caller still open.
Answer = Callable[[bytes], NoReturn]

_MAIN = "from transactions.testing.killed_process import main; main()"


def killed_after(work: Callable[[Answer], object], seconds: float) -> bytes:
    """Run work in another process and kill the process when it has answered.

    Args:
        work: a picklable function of an importable module, or a partial of one; it must answer.
        seconds: when to give up.

    Returns:
        The answer.
    """
    with _process(work) as (process, log):
        assert process.stdout is not None
        timer = threading.Timer(seconds, process.kill)  # ends a read that would wait for ever
        timer.start()
        try:
            size = process.stdout.read(8)
            answer = process.stdout.read(int.from_bytes(size)) if len(size) == 8 else b""
        finally:
            timer.cancel()
            timer.join()
        process.kill()
        process.wait()
        assert len(size) == 8, f"the process ended without an answer:\n{_text(log)}"
    return answer


def killed_at(point: str, work: Callable[[Answer], object], seconds: float) -> None:
    """Run work in another process that kills itself at a crash point (`crash_points.POINTS`)."""
    with _process(work, SPARKONCE_CRASH_AT=point) as (process, log):
        code = process.wait(seconds)
        assert code == -signal.SIGKILL, f"it did not come to {point}: exit {code}\n{_text(log)}"


def main() -> None:
    """Run what the parent sends. What the work prints goes to the log, not into the answer."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def answer(data: bytes) -> NoReturn:
        channel.write(len(data).to_bytes(8) + data)
        channel.flush()
        sys.stdin.buffer.read()  # until the SIGKILL, or the parent's end
        os._exit(1)

    pickle.load(sys.stdin.buffer)(answer)  # noqa: S301 - from our own parent


@contextmanager
def _process(
    work: Callable[[Answer], object], **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    path = os.pathsep.join(entry or os.curdir for entry in sys.path)
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": path, **variables}
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        ) as process,
    ):
        try:
            assert process.stdin is not None
            process.stdin.write(pickle.dumps(work))
            process.stdin.flush()
            yield process, log
        finally:
            process.kill()


def _text(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")
