"""A small process that is the parent of the brokers, so that none outlives its owner.

Run by file name with `python -I -S`, standard library only. The owner (the Python process that made
a `LocalCluster`) starts one keeper and exchanges JSON lines with it over stdin and stdout; the
keeper starts the JVMs. PR_SET_PDEATHSIG in the owner would not do: that signal comes when the
*thread* that forked ends, and any thread of a test or a notebook may start a cluster. The keeper
has one thread, so between the keeper and the JVMs the same call is exact.

Three nets, from the outside in:
- the owner ends, in any way: its end of the pipe closes, and the keeper kills everything.
  A forked child of the owner may hold that end open, so the keeper also watches its parent's id;
- the keeper is killed: the kernel kills the JVMs (Linux);
- ctrl-C reaches neither, since both run in a session of their own: the owner decides.

After ``release`` the keeper no longer depends on its owner (`sparkonce kafka up`): it stays until
SIGTERM, or until the last broker is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Any

_POLL_SECONDS = 0.25
_STOP_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Keeper:
    """Starts, signals and reaps the owner's brokers."""

    def __init__(self, remove: str | None) -> None:
        self._remove = remove
        self._owner = os.getppid()
        self._released = False
        self._terminated = False
        self._brokers: dict[int, subprocess.Popen[bytes]] = {}
        self._unread = b""

    def run(self) -> None:
        """Serve until the owner is gone; then end all running brokers and remove the folder."""
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while not self._finished():
                if self._released:
                    time.sleep(_POLL_SECONDS)
                else:
                    self._serve_once()
            if self._terminated:
                self._stop_gently()
        finally:
            for broker in self._brokers.values():
                broker.kill()
            for broker in self._brokers.values():
                broker.wait()
            if self._remove is not None:
                shutil.rmtree(self._remove, ignore_errors=True)

    def _terminate(self, _signal: int, _frame: FrameType | None) -> None:
        self._terminated = True

    def _finished(self) -> bool:
        if self._terminated:
            return True
        if self._released:
            return all(b.poll() is not None for b in self._brokers.values())
        return os.getppid() != self._owner

    def _serve_once(self) -> None:
        ready, _, _ = select.select([0], [], [], _POLL_SECONDS)
        if not ready:
            return
        chunk = os.read(0, 65536)
        if not chunk:
            self._owner = -1  # end of file: the owner closed, or died
            return
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            os.write(1, json.dumps(self._do(request)).encode() + b"\n")
            if request["do"] == "release":
                self._let_go_of_owner()

    def _let_go_of_owner(self) -> None:
        # a process that reads the owner's output to its end must not wait for us
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        self._released = True

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request["do"]:
                case "start":
                    return {"pid": self._start(request["command"], request["log"])}
                case "signal":
                    # poll() first: after a reap the pid may belong to another process
                    self._brokers[request["pid"]].send_signal(request["signal"])
                    return {}
                case "poll":
                    return {"code": self._brokers[request["pid"]].poll()}
                case "release":
                    return {}
                case unknown:
                    return {"error": f"unknown request {unknown}"}
        except OSError as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _start(self, command: list[str], log: str) -> int:
        with open(log, "ab") as output:  # noqa: PTH123  # no pathlib: it doubles the start time
            broker = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  # safe: the keeper has one thread
            )
        self._brokers[broker.pid] = broker
        return broker.pid

    def _stop_gently(self) -> None:
        for broker in self._brokers.values():
            if broker.poll() is None:
                broker.send_signal(signal.SIGCONT)
                broker.terminate()
        end = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < end and any(b.poll() is None for b in self._brokers.values()):
            time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    Keeper(sys.argv[1] if len(sys.argv) > 1 else None).run()
