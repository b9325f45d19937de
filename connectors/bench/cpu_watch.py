"""Measures the CPU time per record of a job's processes and of the embedded broker.

If every core is busy, the figures show which part to make cheaper. If not, `idle` shows that some
part waits.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Final

import psutil

from connectors.bench.job_process import tree_of

#: A look at all processes of a machine takes some milliseconds.
_EVERY_S: Final = 0.25

#: CPU seconds of each role.
Seconds = Mapping[str, float]


class CpuWatch:
    """Samples CPU times; the caller calls `sample` again and again while a job works.

    Args:
        job_pid: process id of the job's Python.
    """

    def __init__(self, job_pid: int) -> None:
        self._job_pid = job_pid
        self._due = 0.0
        self._samples: list[tuple[int, Seconds]] = []

    def sample(self, visible: int) -> None:
        """Take a sample if records are visible and the last sample is old enough.

        Args:
            visible: number of visible records.
        """
        if visible == 0 or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _EVERY_S
        self._samples.append((visible, self._seconds()))

    def per_record(self) -> dict[str, float] | None:
        """Return microseconds of CPU a record: `driver` (the job's Python), `jvm`, `tasks` (its
        other processes), `broker` (Java that is not the job's, among our descendants), `bench`
        (this process) and `idle` (of the whole machine).

        The interval is from the first visible records to the last; None when all came at once.
        """
        most = self._samples[-1][0] if self._samples else 0
        moved = [one for one in self._samples if one[0] < most]
        if not moved:
            return None
        # The end rests for some seconds: the first sample that sees all records ends the interval.
        (came, before), (all_came, after) = moved[0], self._samples[len(moved)]
        return {
            role: round(1e6 * max(0.0, after[role] - before[role]) / (all_came - came), 3)
            for role in after
        }

    def _seconds(self) -> Seconds:
        idle = psutil.cpu_times()
        found = dict.fromkeys(("driver", "jvm", "tasks", "broker", "bench"), 0.0)
        own = os.getpid()
        job = self._job_pid
        of_job = {job, *(one.pid for one in tree_of(job))}
        for one in [psutil.Process(own), *tree_of(own)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                java = one.name() == "java"
                if one.pid == job:
                    role = "driver"
                elif one.pid in of_job:
                    role = "jvm" if java else "tasks"
                else:
                    role = "broker" if java else "bench"
                found[role] += times.user + times.system
        return {**found, "idle": idle.idle + getattr(idle, "iowait", 0.0)}
