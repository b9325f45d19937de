"""The pipeline as processes that die: started again whenever it is gone, and gone at the end."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psutil

_EVENT = re.compile(r"sparkonce event=(\w+)")
_DAEMON = re.compile(r"pyspark\.daemon|connectors\.spark\.worker_daemon")
#: Every process of the system has it in its environment.
MARK = "SPARKONCE_CHAOS_RUN"
#: Every second driver leaves restarts to us, the others try again in their own process.
RESTARTS = ("fixed-delay(attempts=5, delay=500ms)", "none")
_RESTART_PAUSE_S = 0.5
_GONE_S = 20.0
#: The command gives up after its own timeout, 30 s.
_REPAIR_S = 90.0


class Driver:
    """One process of the pipeline, what it started, and what it said."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], log: Path, number: int
    ) -> None:
        self.number = number
        self.began = time.monotonic()
        self.checkpoints = 0
        self.events: Counter[str] = Counter()
        self._log = log.open("w", encoding="utf-8")
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,  # ctrl-C is for the runner, which ends everything in order
            cwd=Path(__file__).parents[2],
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def runs(self) -> bool:
        """Tell whether the driver process itself is there, frozen or not."""
        return self.process.poll() is None

    def jvm(self) -> psutil.Process | None:
        """Return its JVM."""
        return next((one for one in self._tree() if _name(one) == "java"), None)

    def workers(self) -> list[psutil.Process]:
        """Return the Python workers: forks of Spark's daemons, with a daemon's command line."""
        forks = {one.pid: one for one in self._tree() if _DAEMON.search(_command(one))}
        return [one for pid, one in sorted(forks.items()) if _parent(one) in forks]

    def signal(self, number: signal.Signals) -> None:
        """Signal the driver process alone, if it has not ended."""
        self.process.send_signal(number)

    def close(self) -> None:
        """Wait for its end; whoever holds its output must be gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GONE_S)
        self._reader.join(_GONE_S)
        self._log.close()

    def _tree(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # the log was closed at the end
                self._log.write(f"{time.monotonic() - self.began:8.3f} {line}")
            if event := _EVENT.search(line):
                self.events[event[1]] += 1
            elif line.startswith('{"checkpoint"'):
                self.checkpoints += 1


class System:
    """The pipeline, whichever process of it is the current one.

    Args:
        mode: of the pipeline; see `tests.chaos.pipeline`.
        options: of that pipeline, as ``{"bootstrap": ...}``.
        folder: for its logs.
    """

    def __init__(self, mode: str, options: Mapping[str, object], folder: Path) -> None:
        self._command = [sys.executable, "-m", "tests.chaos.pipeline", mode]
        for name, value in options.items():
            self._command += [f"--{name}", str(value)]
        self._write_markers = [
            *(
                sys.executable,
                "-m",
                "connectors.cli.main",
                "transactions",
                "write-markers",
                "--yes",
            ),
            *("--checkpoint", str(options["checkpoint"]), "--bootstrap", str(options["bootstrap"])),
        ]
        self._folder = folder
        self._mark = secrets.token_hex(8)
        self.drivers: list[Driver] = []
        self.exits: Counter[str] = Counter()
        #: Hidden commits that were made visible, as the runbook has it.
        self.repairs = 0
        self._died = 0.0
        #: Crash points for the next starts, one each.
        self.crash_next: list[str] = []

    @property
    def current(self) -> Driver:
        """Return the newest driver."""
        return self.drivers[-1]

    def start(self) -> Driver:
        """Start a driver; the one before, if it still runs, has to find out that it is older."""
        number = len(self.drivers)
        environment = {MARK: self._mark}
        if self.crash_next:
            environment |= {
                "SPARKONCE_CRASH_AT": self.crash_next.pop(0),
                "SPARKONCE_CRASH_ONCE": str(self._crashed(number)),
            }
        log = self._folder / f"driver-{number}.log"
        command = [*self._command, "--restart-strategy", RESTARTS[number % len(RESTARTS)]]
        self.drivers.append(Driver(command, environment, log, number))
        return self.current

    def disarm(self) -> None:
        """Let no driver die at a crash point any more, not even one that was started to."""
        self.crash_next.clear()
        for one in self.drivers:
            self._crashed(one.number).touch()

    def _crashed(self, number: int) -> Path:
        """Return the file without which a driver dies at its crash point."""
        return self._folder / f"crashed-{number}"

    def look_after(self) -> str:
        """Start a driver when the current one is gone; return what there is to tell."""
        if not self.drivers:
            self.start()
            return ""
        if self.current.runs():
            self._died = 0.0
            return ""
        if not self._died:
            self._died = time.monotonic()
            code = self.current.process.returncode
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self.exits[how] += 1
            return f"driver {self.current.number} ended: {how}"
        if time.monotonic() - self._died >= _RESTART_PAUSE_S:
            self._died = 0.0
            said = self._repair() if self.current.events["hidden_commit"] else ""
            self.start()
            return f"{said}driver {self.current.number} started"
        return ""

    def _repair(self) -> str:
        """Do what the driver's last words ask an operator for (docs/operations.md).

        A broker that is killed between a decision and its markers may complete the transaction
        without them (KAFKA-20734): then no driver goes on before somebody has written them. While
        the brokers are away the command fails, and the next driver asks again.
        """
        with (self._folder / "write-markers.log").open("a", encoding="utf-8") as log:
            done = subprocess.run(
                self._write_markers,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, MARK: self._mark},
                cwd=Path(__file__).parents[2],
                timeout=_REPAIR_S,
                check=False,
            )
            log.write(done.stdout)
        self.repairs += "committed:" in done.stdout
        return f"write-markers: exit code {done.returncode} {done.stdout.splitlines()}; "

    def older(self) -> list[Driver]:
        """Return drivers that are not the current one and have not ended."""
        return [one for one in self.drivers[:-1] if one.runs()]

    def events(self) -> Counter[str]:
        """Return the events of all drivers by kind."""
        return sum((one.events for one in self.drivers), Counter())

    def checkpoints(self) -> int:
        """Return the checkpoints that were reported."""
        return sum(one.checkpoints for one in self.drivers)

    def stop(self, timeout: float) -> int | None:
        """Ask the current driver to stop between two checkpoints; its exit code, None: it hangs."""
        self.current.signal(signal.SIGTERM)
        try:
            return self.current.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill whatever is left of any driver, frozen or not."""
        for _ in range(3):  # a daemon may fork while its children are looked for
            for one in _marked(self._mark):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        for driver in self.drivers:
            driver.close()


def _marked(mark: str) -> list[psutil.Process]:
    """Return the processes that inherited the mark: what a dead driver left has no parent any
    more, and its group and session numbers may be somebody else's by now.
    """
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if one.environ().get(MARK) == mark:
                found.append(one)
    return found


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return ""


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _parent(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.ppid())
    return 0
