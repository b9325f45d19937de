"""A user's job as a command: a driver function, a job file, or any program."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

Job = str | Path | Callable[..., object] | Sequence[str]
"""``module:function``, a function, a path that ends in .toml, or the words of a command."""

#: For JVMs that live a minute: the second compiler costs more than it gains.
QUICK_START: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
CHILD_MODULE = "connectors.testing.child"
#: The trigger of a run that only a stop ends, in both modes.
WITHOUT_END: Final = "0 seconds"


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order for `child`: how to run one process of a function or a job file.

    Attributes:
        function: ``module:function``, empty for a job file.
        job_file: path of a job file, empty for a function.
        arguments: for the function, by its parameter names.
        bootstrap_servers: the broker.
        app_id: a function's application id; for a job file, a suffix of its own id for this test.
        checkpoint: folder of this test.
        trigger: see `StreamingDriver`.
        master: Spark's master URL; empty for that of the job file.
        restarts: whether the driver may restart its query by itself. A run that must die may
            not: it would finish the work after a worker's death, and leave none for the next.
    """

    function: str = ""
    job_file: str = ""
    arguments: Mapping[str, Any]
    bootstrap_servers: str
    app_id: str
    checkpoint: str
    trigger: str
    master: str
    restarts: bool

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def read(cls, path: Path) -> Order:
        """Read a file of `write`."""
        return cls(**json.loads(path.read_text("utf-8")))


@dataclass(frozen=True)
class Described:
    """A job, sorted by its kind: one of the three fields is filled."""

    function: str = ""
    job_file: str = ""
    command: tuple[str, ...] = ()


def describe(job: Job) -> Described:
    """Sort a job by its kind.

    Raises:
        ValueError: it has no known kind.
    """
    if callable(job):
        name = getattr(job, "__qualname__", "<")
        if "<" in name or "." in name:
            raise ValueError(f"{name}: a process of its own imports only functions of a module")
        return Described(function=f"{job.__module__}:{name}")
    if isinstance(job, Path) or (isinstance(job, str) and job.endswith(".toml")):
        path = Path(job).absolute()
        if not path.is_file():
            raise ValueError(f"there is no job file {path}")
        return Described(job_file=str(path))
    if isinstance(job, str):
        module, _, name = job.partition(":")
        if not module or not name.isidentifier():
            raise ValueError(f"{job!r} is neither module:function nor a path that ends in .toml")
        return Described(function=job)
    return Described(command=tuple(map(str, job)))


def child_command(order: Path) -> list[str]:
    """Return the command that runs an order."""
    return [sys.executable, "-m", CHILD_MODULE, str(order)]


def python_path() -> str:
    """Return this process's module path, for a process and its Python workers.

    So the job can import what the test can import (its own folder, pytest's `pythonpath`).
    """
    own = [str(Path(entry or ".").absolute()) for entry in sys.path]
    found = [one for one in own if Path(one).is_dir() and not _installed(one)]
    return os.pathsep.join(dict.fromkeys(found))


def _installed(entry: str) -> bool:
    """Return whether all Python processes have it; repeated, it would precede the stdlib."""
    library = sysconfig.get_path("stdlib") + os.sep
    return entry in sysconfig.get_paths().values() or entry.startswith(library)
