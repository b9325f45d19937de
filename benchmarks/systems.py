"""The systems that can be measured: how each is installed, started and stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import click

from connectors.java import ensure_java_home
from connectors.pinned_jars import IvyResolver, read_pins
from connectors.user_folders import cache_folder

JOBS = Path(__file__).parent / "jobs"
SPARK_PEER_VERSION = "4.2.0"  # the newest whose Kafka connector is on Maven Central
#: Replaces the last byte: visible to the checker, and next to no work.
VALUE_SQL = "cast(concat(substring(value, 1, length(value) - 1), X'54') as binary)"
_STOP_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """Something that runs the measured job.

    Attributes:
        name: as it stands in the results.
        python: makes sure it is installed, and returns its interpreter.
        script: its job.
        conf: Spark settings beyond the common ones.
        versions: what a result must name.
    """

    name: str
    python: Callable[[], Path]
    script: Path
    conf: dict[str, str]
    versions: dict[str, str]


class PeerError(Exception):
    """A system could not be installed, or its job ended by itself."""


_PEER_JARS = read_pins(Path(__file__).with_name("spark_peer.sha256"))


def _spark_peer() -> Path:
    """Make the peer's environment, once; an error says what pip or Ivy said."""
    folder = _spark_peer_folder()
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if not done.exists():
        click.echo(f"bench: installing PySpark {SPARK_PEER_VERSION} into {folder}, once", err=True)
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", f"pyspark=={SPARK_PEER_VERSION}"],
        ):
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode != 0:
                raise PeerError(f"{' '.join(command[-3:])}: {ended.stderr.strip()[-500:]}")
        jars = folder / "kafka-jars"
        jars.mkdir()
        IvyResolver(ensure_java_home())(_PEER_JARS, jars)
        for pin in _PEER_JARS:
            digest = hashlib.sha256((jars / pin.file_name).read_bytes()).hexdigest()
            if digest != pin.sha256:
                raise PeerError(f"{pin.file_name} has the checksum {digest}, not {pin.sha256}")
        done.touch()
    return python


def _spark_peer_folder() -> Path:
    return cache_folder() / "peers" / f"spark-{SPARK_PEER_VERSION}"


OURS = System(
    name="sparkonce micro-batch",
    python=lambda: Path(sys.executable),
    script=JOBS / "sparkonce_job.py",
    conf={},
    versions={
        name: importlib.metadata.version(name)
        for name in ("sparkonce", "pyspark", "confluent-kafka")
    },
)

CONTINUOUS = dataclasses.replace(
    OURS, name="sparkonce continuous", script=JOBS / "sparkonce_continuous_job.py"
)

#: Our own modes, by the word that chooses them.
MODES = {"micro-batch": OURS, "continuous": CONTINUOUS}

PEERS = {
    "spark": System(
        name="spark kafka (at least once)",
        python=_spark_peer,
        script=JOBS / "spark_kafka_job.py",
        conf={
            "spark.jars": ",".join(
                str(_spark_peer_folder() / "kafka-jars" / pin.file_name) for pin in _PEER_JARS
            ),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
        },
        versions={
            "pyspark": SPARK_PEER_VERSION,
            **{pin.module.removesuffix("_2.13"): pin.version for pin in _PEER_JARS},
        },
    )
}


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
                **system.conf,
                **(conf or {}),
            },
        }
        self._process: subprocess.Popen[bytes] | None = None
        #: What the job wrote of its own batches; after the end.
        self.report: dict[str, Any] = {"progress": [], "phases": []}

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
        python = self._system.python()
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "JAVA_HOME": ensure_java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment.pop("SPARK_HOME", None)
        environment["PYSPARK_PYTHON"] = str(python)
        with (self._folder / "job.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(python), str(self._system.script), json.dumps(self._task)],
                stdout=log,
                stderr=log,
                env=environment,
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
