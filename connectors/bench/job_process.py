"""One run of a system's job in its own process; it ends with all its child processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from connectors.bench.replace_last_byte import VALUE_SQL
from connectors.bench.system import TASK_FILE, System
from connectors.machine.java import ensure_java_home
from transactions.errors import ConfigurationError, SparkOnceError

#: Our job writes the four parts of our error here when that error ends it.
ERROR_FILE: Final = "error.json"

_STOP_S: Final = 30.0
_LAST_WORDS_S: Final = 5.0
_LOG_TAIL: Final = 1500


class JobProcess:
    """A context manager.

    Args:
        system: the system to run.
        folder: the job's own folder, with its checkpoint, log and report.
        kafka: client settings in Java naming, with the brokers.
        topics: input and output; the output's name is also the application id.
        batch_records: maximum of records in a micro-batch; None for no limit.
        heap_every: measure the JVM's heap every so many checkpoints; 0 for never.
        conf: further Spark settings.
    """

    def __init__(
        self,
        system: System,
        folder: Path,
        *,
        kafka: Mapping[str, str],
        topics: tuple[str, str],
        batch_records: int | None,
        heap_every: int = 0,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._system = system
        self._folder = folder
        others = {name: value for name, value in kafka.items() if name != "bootstrap.servers"}
        self._task = {
            "bootstrap": kafka["bootstrap.servers"],
            "kafka": others,
            "input": topics[0],
            "output": topics[1],
            "folder": str(folder),
            "id": topics[1],
            "trigger": "0 seconds",
            "batch_records": batch_records,
            "heap_every": heap_every,
            "value_sql": VALUE_SQL,
            "master": "local[2]",
            **system.settings,
            "conf": {
                "spark.driver.memory": "2g",
                "spark.log.level": "WARN",
                "spark.local.dir": str(folder / "local"),
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.sql.streaming.numRecentProgressUpdates": "100000",
                **(conf or {}),
            },
        }
        self._process: subprocess.Popen[bytes] | None = None
        #: The job's own report, after its end. Micro-batch jobs fill `progress`; other jobs fill
        #: the time of their first record and the number of their commits.
        self.report: dict[str, Any] = {
            "progress": [],
            "phases": [],
            "first_record_ns": 0,
            "commits": 0,
        }

    @property
    def pid(self) -> int:
        """Return the process id of the job's Python."""
        assert self._process is not None
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Return the job's folder; its subfolder `checkpoint` is the pipeline's."""
        return self._folder

    def check(self) -> None:
        """Raise if the job has ended.

        Raises:
            ConfigurationError: the job refused its configuration.
            SparkOnceError: the job ended for another reason; the error has the end of its log.
        """
        if self._process is None or self._process.poll() is None:
            return
        if self._process.returncode == 0 and self._task.get("available_now"):
            return  # it has read what it was to read
        written = self._folder / ERROR_FILE
        if written.exists():
            told = json.loads(written.read_text("utf-8"))
            kind = ConfigurationError if told.pop("configuration") else SparkOnceError
            raise kind(**told)
        log = (self._folder / "job.log").read_text("utf-8", "replace")
        raise SparkOnceError(
            f"The job of {self._system.name} ended with exit code {self._process.returncode}.",
            cause="the end of its log:\n" + log[-_LOG_TAIL:].rstrip(),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start a process; after `kill`, start the next one in the same folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write_task()
        command = self._system.command(self._task)
        with (self._folder / "job.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end shows our job that the parent has ended
                stdout=log,
                stderr=log,
                env=self._environment(command),
                cwd=self._folder,
                start_new_session=True,  # ctrl-C is only for us; we then stop the job
            )

    def kill(self) -> None:
        """SIGKILL the driver and its JVM at once; Python workers notice it and end."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._reap()

    def marks(self) -> dict[str, int]:
        """Return the time, in ns, at which the last process reached each step."""
        lines = (self._folder / "marks.jsonl").read_text("utf-8").splitlines()
        mine = [one for one in map(json.loads, lines) if one["pid"] == self.pid]
        return {one["mark"]: one["ns"] for one in mine}

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the data of each checkpoint so far; only our own jobs write it."""
        path = self._folder / "checkpoints.jsonl"
        text = path.read_text("utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is None:
            return
        tree = tree_of(process.pid)
        try:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
                psutil.wait_procs(tree, _LAST_WORDS_S)  # its JVM may write what it recorded
        finally:
            # The JVM is in the job's session, the parent of the workers is not: it ends with
            # the JVM, or below.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self._reap()
            _end(tree)
        report = self._folder / "report.json"
        if report.exists():
            self.report |= json.loads(report.read_text("utf-8"))
        self.report["phases"] = self.checkpoints()

    def _write_task(self) -> None:
        path = self._folder / TASK_FILE
        path.touch(mode=0o600)
        path.write_text(json.dumps(self._task), "utf-8")

    def _environment(self, command: list[str]) -> dict[str, str]:
        environment = {**os.environ, "JAVA_HOME": ensure_java_home()}
        environment.pop("SPARK_HOME", None)
        if str(self._task["master"]).startswith("local"):
            # On a cluster, executors connect to this host and may have another Python path.
            environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": command[0]}
        return environment

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def tree_of(pid: int) -> list[psutil.Process]:
    """Return all descendants of a process; none if the process is gone."""
    # After the parent's death its children belong to init, and their origin is unknown.
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def _end(tree: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(tree, _LAST_WORDS_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, _LAST_WORDS_S)
