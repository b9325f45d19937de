"""A signal may ask for a stop at any moment, also while the main thread looks at the flag."""

from __future__ import annotations

import subprocess
import sys

#: Signals come a thousand times a second, and the main thread waits on the flag all the time.
SCRIPT = """
import faulthandler, signal, sys, threading, time
from connectors.spark.stop_signals import StopFlag

faulthandler.dump_traceback_later(20, exit=True)
flag = {kind}()
signal.signal(signal.SIGALRM, lambda *_: flag.set())
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
end = time.monotonic() + 2.0
while time.monotonic() < end:
    flag.wait(0.00001)
signal.setitimer(signal.ITIMER_REAL, 0)
print("through")
"""


def comes_through(kind: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(kind=kind)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return (done.returncode, done.stdout) == (0, "through\n")


def test_a_handler_may_set_it_while_it_is_waited_for():
    assert comes_through("StopFlag")


def test_the_test_can_fail_an_event_locks_itself_out():
    assert not comes_through("threading.Event")
