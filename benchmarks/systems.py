"""What can be measured: how a system's job is started with a task, and stopped. Ours stand here."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from connectors.java import ensure_java_home

JOBS = Path(__file__).parent / "jobs"
#: Replaces the last byte: visible to the checker, and next to no work.
VALUE_SQL = "cast(concat(substring(value, 1, length(value) - 1), X'54') as binary)"
_STOP_SECONDS = 30.0

#: What a job is told: where from, where to, how often to commit, and its folder.
Task = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """Something that runs the measured job.

    Attributes:
        name: as it stands in the results.
        command: makes sure that it is installed, and returns the command that does a task.
        versions: what a result must name.
        settings: what its tasks say beyond the common ones.
    """

    name: str
    command: Callable[[Task], list[str]]
    versions: Mapping[str, str]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class PeerError(Exception):
    """A system could not be installed, or its job ended by itself."""


def python_job(script: Path, python: Path = Path(sys.executable)) -> Callable[[Task], list[str]]:
    """Return what runs a script whose one argument is the task as JSON."""
    return lambda task: [str(python), str(script), json.dumps(task)]


OURS = System(
    name="sparkonce micro-batch",
    command=python_job(JOBS / "sparkonce_job.py"),
    versions={
        name: importlib.metadata.version(name)
        for name in ("sparkonce", "pyspark", "confluent-kafka")
    },
)

CONTINUOUS = dataclasses.replace(
    OURS, name="sparkonce continuous", command=python_job(JOBS / "sparkonce_continuous_job.py")
)


def _at_least_once(system: System) -> System:
    """Return a mode of ours without transactions: what exactly-once is compared with."""
    settings = {"guarantee": "at-least-once"}
    return dataclasses.replace(system, name=f"{system.name}, at-least-once", settings=settings)


#: Our own modes, by the word that chooses them.
MODES = {
    "micro-batch": OURS,
    "continuous": CONTINUOUS,
    "micro-batch-at-least-once": _at_least_once(OURS),
    "continuous-at-least-once": _at_least_once(CONTINUOUS),
    **{
        f"continuous-{ms}": dataclasses.replace(
            CONTINUOUS,
            name=f"sparkonce continuous, {ms} ms",
            settings={"barrier_interval_s": ms / 1000},
        )
        for ms in (10, 100, 1000)
    },
}
#: Those that are measured when nobody chooses.
USUAL_MODES = ("micro-batch", "continuous")


class Job:
    """One run of a system's job in a process of its own; a context manager."""

    def __init__(
        self,
        system: System,
        folder: Path,
        *,
        bootstrap: str,
        topics: tuple[str, str],
        batch_records: int | None,
        heap_every: int = 0,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._system = system
        self._folder = folder
        self._task = {
            "bootstrap": bootstrap,
            "input": topics[0],
            "output": topics[1],
            "folder": str(folder),
            "id": folder.name,
            "trigger": "0 seconds",
            "batch_records": batch_records,
            "heap_every": heap_every,
            "value_sql": VALUE_SQL,
            "master": "local[2]",
            "conf": {
                "spark.driver.memory": "2g",
                "spark.log.level": "WARN",
                "spark.local.dir": str(folder / "local"),
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.sql.streaming.numRecentProgressUpdates": "100000",
                **(conf or {}),
            },
            **system.settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        #: What the job wrote of itself; after the end. Micro-batches are in `progress`; other jobs
        #: say when they had their first record, and how often they committed.
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

    def check(self) -> None:
        """Raise if the job has ended.

        Raises:
            PeerError: with the end of its log.
        """
        if self._process is not None and self._process.poll() is not None:
            log = (self._folder / "job.log").read_text("utf-8", "replace")
            raise PeerError(
                f"{self._system.name} ended with code {self._process.returncode}: {log[-1500:]}"
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start a process; after `kill` the next one, in the same folder."""
        command = self._system.command(self._task)
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "JAVA_HOME": ensure_java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment.pop("SPARK_HOME", None)
        environment["PYSPARK_PYTHON"] = command[0]
        with (self._folder / "job.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._folder,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL the driver and its JVM at one moment; Python workers notice and end."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def marks(self) -> dict[str, int]:
        """Return when its last process came to which step, in ns."""
        lines = (self._folder / "marks.jsonl").read_text("utf-8").splitlines()
        mine = [one for one in map(json.loads, lines) if one["pid"] == self.pid]
        return {one["mark"]: one["ns"] for one in mine}

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        process = self._process
        assert process is not None
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Its JVM and workers are in its session; they end with it, or here.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        report = self._folder / "report.json"
        if report.exists():
            self.report |= json.loads(report.read_text("utf-8"))
        self.report["phases"] = self.checkpoints()

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return what is known of each checkpoint until now: ours only."""
        path = self._folder / "checkpoints.jsonl"
        text = path.read_text("utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    @property
    def folder(self) -> Path:
        """Return its folder; `checkpoint` in it is the pipeline's."""
        return self._folder
