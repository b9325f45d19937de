"""What asks a process to stop: ctrl-C, SIGTERM, and a terminal that is closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from connectors.bench.interruption import Interruption
from connectors.cli.stop_switch import StopSwitch
from connectors.spark.stop_signals import stop_signals

ASKED = """
from connectors.machine.stop_requests import stop_requests
print(*(one.name for one in stop_requests()))
"""


@pytest.fixture(autouse=True)
def _no_nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_of_them_asks_for_a_stop(number: signal.Signals):
    told: list[str] = []
    with StopSwitch(told.append) as switch:
        switch.install()  # as after Spark's start
        os.kill(os.getpid(), number)
        assert switch.asked
    assert len(told) == 1
    asked: list[bool] = []
    with stop_signals(lambda: asked.append(True)):
        os.kill(os.getpid(), number)
    assert asked == [True]
    with pytest.raises(KeyboardInterrupt), Interruption(told.append):
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_was_there_before_is_there_again(number: signal.Signals):
    before = signal.getsignal(number)
    with StopSwitch(lambda _text: None) as switch:
        switch.install()  # as after Spark's start
    assert signal.getsignal(number) is before


def test_a_handler_of_the_users_stays():
    reloads = []
    signal.signal(signal.SIGHUP, lambda *_: reloads.append(True))
    with stop_signals(lambda: pytest.fail("it was stopped")):
        os.kill(os.getpid(), signal.SIGHUP)
    assert reloads == [True]


def test_under_nohup_a_closed_terminal_asks_for_nothing():
    def names(how: str) -> str:
        command = ["env", f"--{how}-signal=HUP", sys.executable, "-c", ASKED]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    assert names("default") == "SIGINT SIGTERM SIGHUP\n"
    assert names("ignore") == "SIGINT SIGTERM\n"
