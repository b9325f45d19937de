"""Whose CPU a record takes: real processes, one that works and one that waits."""

import subprocess
import sys
import time

import psutil
import pytest

from connectors.bench import cpu_watch
from connectors.bench.cpu_watch import CpuWatch
from connectors.bench.job_process import tree_of

BURNS = "import sys\nprint(flush=True)\nwhile True: pass"
WAITS = "import sys\nprint(flush=True)\nsys.stdin.read()"
#: A job whose work is done by its child.
PARENT = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {BURNS!r}]).wait()"


def started(script):
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def user_s(processes):
    return sum(one.cpu_times().user for one in processes)


def watched(job, monkeypatch):
    """Watch until half a second of CPU went into the processes; 1,000 records came meanwhile."""
    family = [psutil.Process(job.pid), *tree_of(job.pid)]
    # A broker or a JVM that this process has started for other tests works, too.
    monkeypatch.setattr(
        cpu_watch, "tree_of", lambda pid: tree_of(pid) if pid == job.pid else family
    )
    monkeypatch.setattr(cpu_watch, "_EVERY_S", 0.0)
    watch = CpuWatch(job.pid)
    watch.sample(1)
    begin, before_s = time.monotonic(), user_s(family)
    while user_s(family) < before_s + 0.5:
        assert time.monotonic() < begin + 60
        if job.args[2] == WAITS:
            break
    watch.sample(1001)
    watch.sample(1001)  # the end is at rest
    return watch.per_record()


@pytest.mark.parametrize(("script", "role"), [(BURNS, "driver"), (PARENT, "tasks"), (WAITS, "")])
def test_cpu_is_that_of_who_works(script, role, monkeypatch):
    job = started(script)
    try:
        assert job.stdout.read(1) == b"\n"
        found = watched(job, monkeypatch)
    finally:
        family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
        for one in family:
            one.kill()
        job.wait()
        psutil.wait_procs(family, timeout=20)
    mine = {name: value for name, value in found.items() if name not in ("idle", "bench")}
    # Half a second over a thousand records; the clock of CPU times ticks every 10 ms.
    assert {name for name, value in mine.items() if value > 250} == ({role} if role else set())
    assert found["idle"] >= 0


def test_nothing_is_said_of_what_came_at_once():
    watch = CpuWatch(1)
    assert watch.per_record() is None
    watch.sample(0)
    watch.sample(5)
    assert watch.per_record() is None
