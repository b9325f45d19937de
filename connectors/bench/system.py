"""What can be measured: a command that does a task. Our two modes stand here."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

#: What a job is told: where from, where to, how often to commit, and its folder.
Task = Mapping[str, Any]

#: In a job's folder, readable by its owner only: client settings may hold a password, and
#: arguments are for everybody to see.
TASK_FILE: Final = "task.json"

_PACKAGES: Final = ("sparkonce", "pyspark", "confluent-kafka")


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


def our_system(mode: str, *, name: str = "", **settings: Any) -> System:
    """Return one of our modes.

    Args:
        mode: one of `connectors.options.modes`.
        name: as it stands in the results; the mode's own when empty.
        settings: `master`, and in continuous mode the driver's `parallelism`, `barrier_interval_s`
            and `target_latency_s`.
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
