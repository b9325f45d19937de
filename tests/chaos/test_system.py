"""What the harness does for a driver that has ended: it starts another, and follows the runbook."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.system import System

OPTIONS = {"bootstrap": "127.0.0.1:1", "checkpoint": "state/of-this-test"}


def a_process(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("last_words", "said_by_the_command", "repairs"),
    [
        ("sparkonce event=hidden_commit app=a", "committed: out-0 from offset 7", 1),
        ("sparkonce event=hidden_commit app=a", "Nothing is hidden.", 0),
        ("sparkonce event=fenced app=a", "committed: out-0 from offset 7", 0),
    ],
)
def test_a_driver_that_asks_for_markers_gets_them(
    last_words, said_by_the_command, repairs, tmp_path
):
    system = System("continuous", OPTIONS, tmp_path)
    assert system._write_markers[-4:] == [
        *("--checkpoint", OPTIONS["checkpoint"], "--bootstrap", OPTIONS["bootstrap"])
    ]
    system._write_markers = a_process(f"print({said_by_the_command!r})")
    system._command = a_process(f"print({last_words!r})")
    system.start()
    try:
        said: list[str] = []
        while len(system.drivers) < 2:
            said.append(system.look_after())
            time.sleep(0.01)
        assert system.repairs == repairs
        asked = "hidden_commit" in last_words
        assert (tmp_path / "write-markers.log").exists() == asked
        assert (said_by_the_command in said[-1]) == asked, said[-1]
    finally:
        system.end()


def test_a_driver_that_was_started_to_die_lives_once_it_is_disarmed(tmp_path: Path):
    """It may reach its point long after the faults are over, when it is asked to stop."""
    go, arrive = tmp_path / "go", "from transactions.crash_points import reach"
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    for disarmed, code in ((False, -signal.SIGKILL), (True, 0)):
        system = System("continuous", OPTIONS, tmp_path / str(disarmed))
        (tmp_path / str(disarmed)).mkdir()
        system._command = a_process(f"{arrive}\n{wait}\nreach('one_committed', 7)")
        system.crash_next = ["one_committed", "all_committed"]
        driver = system.start()
        try:
            if disarmed:
                system.disarm()
                assert system.crash_next == []
            go.touch()
            assert driver.process.wait(30) == code
        finally:
            system.end()
            go.unlink()


def test_the_command_is_the_one_of_the_runbook(tmp_path: Path):
    """It runs, and says what is wrong: there is no such checkpoint."""
    system = System("continuous", OPTIONS | {"checkpoint": str(tmp_path / "none")}, tmp_path)
    assert "exit code 2" in system._repair()
    assert "no decision log" in (tmp_path / "write-markers.log").read_text("utf-8").lower()
