"""A crash point stops the thread that came to it, before its next line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROCESS = """
import os, threading
from transactions import crash_points
def protocol():
    crash_points.reach("decision_durable")
    os.write(1, b"went on")
threading.Thread(target=protocol).start()
while True:
    pass
"""


@pytest.mark.parametrize("signal_name", ["STOP", "KILL"])
def test_the_thread_of_the_protocol_goes_no_further(signal_name):
    """A SIGSTOP to the process stopped another thread first: 58 of 60 times this one went on."""
    variables = {"SPARKONCE_CRASH_AT": "decision_durable", "SPARKONCE_CRASH_SIGNAL": signal_name}
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", PROCESS], env=os.environ | variables, stdout=subprocess.PIPE
        ) as process:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            process.kill()
            assert process.stdout is not None
            assert process.stdout.read() == b""


def test_nothing_crashes_before_its_time_has_come(tmp_path):
    due, script = tmp_path / "due", "import pathlib; from transactions import crash_points as c\n"
    script += f"c.reach('batch_started'); pathlib.Path({str(due)!r}).touch()\n"
    script += "print('early', flush=True); c.reach('batch_started'); print('late')"
    variables = {"SPARKONCE_CRASH_AT": "batch_started", "SPARKONCE_CRASH_WHEN": str(due)}
    process = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | variables,
        capture_output=True,
        check=False,
    )
    assert (process.returncode, process.stdout) == (-signal.SIGKILL, b"early\n")
