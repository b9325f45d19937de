"""A standalone Spark cluster of the PySpark installation: a master and workers, each a process.

What `local[2]` cannot show lies between these processes: executors that die without the driver, a
task that runs twice on two of them, a driver that comes back to executors of its predecessor.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from connectors.cluster.keeper_client import KeeperClient
from connectors.machine.java import ensure_java_home
from transactions.clock import Deadline

#: Two names of one machine: Spark never starts a speculative copy on the host of the first attempt.
HOSTS = ("localhost", "127.0.0.1")
EXECUTOR = "CoarseGrainedExecutorBackend"
#: JVMs that live a minute: the second compiler costs more than it gives.
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"(Successfully registered) with master")
#: In place of `setsid` and `env`, which not every system has: a session per daemon, so that what
#: belongs to it is known even when its parents are dead. The process id stays the keeper's child.
_LAUNCH = """
import os, sys
home, folder, *command = sys.argv[1:]
os.setsid()
os.environ.update(SPARK_HOME=home, SPARK_LOCAL_DIRS=folder, SPARK_LOCAL_IP="127.0.0.1")
os.environ["SPARK_SCALA_VERSION"] = "2.13"  # as Spark's own start scripts do
os.execv(command[0], command)
"""
_START_S = 90.0
_GONE_S = 20.0


@dataclass(frozen=True)
class Found:
    """One process of the machine, as `ps` shows it."""

    pid: int
    parent: int
    session: int
    state: str
    command: str

    @property
    def stopped(self) -> bool:
        return self.state.startswith("T")


class SparkCluster:
    """A master, and one worker per host of `HOSTS`; use as a context manager.

    None of its processes outlives this one: the keeper ends the daemons, and an executor ends
    when its worker is gone.

    Args:
        cores: slots of each worker, however many the machine has.
    """

    def __init__(self, *, cores: int = 1) -> None:
        self._cores = str(cores)
        self.master_url = ""
        #: Process ids of the workers that live; the whole session of one has the same number.
        self.workers: list[int] = []
        self._sessions: list[int] = []

    def __enter__(self) -> SparkCluster:
        # Not pytest's folder: the path of a Unix socket has 108 characters at most.
        self._folder = Path(tempfile.mkdtemp(prefix="sparkonce-cluster-"))
        self._keeper = KeeperClient(remove=self._folder)
        deadline = Deadline(_START_S)
        try:
            self._start("master", ["master.Master", "--host", HOSTS[1], "--port", "0"])
            self.master_url = self._logged("master", _MASTER_URL, deadline)
            for number, host in enumerate(HOSTS):
                work = str(self._folder / f"work-{number}")
                options = ["--host", host, "--cores", self._cores, "--memory", "1g"]
                options += ["--work-dir", work]
                pid = self._start(f"worker-{number}", ["worker.Worker", *options, self.master_url])
                self.workers.append(pid)
            for number in range(len(HOSTS)):
                self._logged(f"worker-{number}", _REGISTERED, deadline)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        deadline = Deadline(_GONE_S)
        while left := self.processes():
            # Executors notice by themselves that their worker is gone; nobody waits for that.
            _kill(left)
            assert not deadline.expired(), f"left behind: {left}"
            deadline.pause(0.05)
        self._keeper.close()

    def conf(self, **environment: str) -> dict[str, str]:
        """Return Spark settings for a driver on this cluster.

        Args:
            environment: variables for the Python workers of the executors.
        """
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join((*_JVM, self._temporary)),
            **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
        }

    def processes(self) -> list[Found]:
        """Return the processes of this cluster: daemons, executors and Python workers."""
        return [one for one in processes() if one.session in self._sessions]

    def stopped_python_worker(self, known: Container[int]) -> Found | None:
        """Return the Python worker that stopped itself at a crash point, and is not known yet."""
        stopped = (one for one in self.processes() if one.stopped)
        return next((one for one in stopped if one.pid not in known), None)

    def executor_of(self, python_worker: Found) -> Found:
        """Return the JVM that started a Python worker."""
        by_pid = {one.pid: one for one in self.processes()}
        found = python_worker
        while EXECUTOR not in found.command:
            found = by_pid[found.parent]
        return found

    def worker_of(self, member: Found) -> int:
        """Return the process id of the Worker under which a process runs."""
        assert member.session in self.workers
        return member.session

    def kill_worker(self, pid: int) -> None:
        """Kill a Worker with everything under it at once, as a machine that loses power."""
        self.workers.remove(pid)
        _kill([one for one in self.processes() if one.session == pid])

    def logs(self) -> str:
        """Return the ends of all logs, those of executors too, for a failing test."""
        every = [*self._folder.glob("*.log"), *self._folder.glob("work-*/*/*/stderr")]
        return "\n".join(f"=== {one}\n{_text_of(one)[-1500:]}" for one in sorted(every))

    @property
    def _temporary(self) -> str:
        return f"-Djava.io.tmpdir={self._folder}"

    def _start(self, name: str, daemon: Sequence[str]) -> int:
        home = Path(pyspark.__file__).parent
        command = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(home), str(self._folder)]
        command += [f"{ensure_java_home()}/bin/java", *_JVM, self._temporary, "-Xmx256m"]
        command += ["-Dspark.master.rest.enabled=false"]  # it has a fixed port
        command += ["-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{daemon[0]}", *daemon[1:]]
        # Their pages for a browser take any port: they cannot be switched off.
        pid = self._keeper.start([*command, "--webui-port", "0"], self._folder / f"{name}.log")
        self._sessions.append(pid)
        return pid

    def _logged(self, name: str, pattern: re.Pattern[str], deadline: Deadline) -> str:
        log = self._folder / f"{name}.log"
        while (found := pattern.search(_text_of(log))) is None:
            assert not deadline.expired(), f"{name} did not come up:\n{self.logs()}"
            deadline.pause(0.05)
        return found.group(1)


def processes() -> list[Found]:
    """Return every process of the machine; those that ended and were not reaped are left out."""
    shown = subprocess.run(
        ["ps", "-wwAo", "pid=,ppid=,sess=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 4) for line in shown.splitlines()]
    return [
        Found(int(pid), int(parent), int(session), state, " ".join(command))
        for pid, parent, session, state, *command in rows
        if not state.startswith("Z")
    ]


def _kill(these: Sequence[Found]) -> None:
    for one in these:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)


def _text_of(log: Path) -> str:
    return log.read_text("utf-8", "replace")
