"""A system that can be measured: a command that does a task. Our two modes are here."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

#: The task of a job: input, output, commit interval, folder.
Task = Mapping[str, Any]

#: File in a job's folder that only its owner can read: client settings may hold a password, and
#: every user of the machine can read command line arguments.
TASK_FILE: Final = "task.json"

_PACKAGES: Final = ("sparkonce", "pyspark", "confluent-kafka")


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """Something that runs the measured job.

    Attributes:
        name: its name in the results.
        command: makes sure that the system is installed, and returns the command of a task.
        versions: versions that a result must name.
        settings: settings that its tasks have besides the common ones.
    """

    name: str
    command: Callable[[Task], list[str]]
    versions: Mapping[str, str]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def our_system(mode: str, *, name: str = "", **settings: Any) -> System:
    """Return one of our modes.

    Args:
        mode: one of `connectors.options.modes`.
        name: its name in the results; by default the name of the mode.
        settings: `master`; in continuous mode the driver's `parallelism`, `barrier_interval_s` and
            `target_latency_s`, and `available_now`: read what is there, then end; in micro-batches
            `stages`, 1 or 3: an Arrow function in as many Python stages, not Spark's SQL.
    """
    return System(
        name=name or f"sparkonce {mode}",
        command=_our_job,
        versions={one: importlib.metadata.version(one) for one in _PACKAGES},
        settings={"mode": mode, **settings},
    )


def _our_job(task: Task) -> list[str]:
    file = Path(task["folder"]) / TASK_FILE
    return [sys.executable, "-m", "connectors.bench.bench_job", str(file)]
