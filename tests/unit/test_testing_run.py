"""A pipeline's process as a test sees it: what it said is there when its end is."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from connectors.testing.run import Run, running

SOON_S = 30.0
LAST_WORDS = "import sys; print('{\"checkpoint\": 1}'); sys.stderr.write('last words'); sys.exit(3)"


def a_process(code: str, folder: Path):
    return running([sys.executable, "-c", code], environment={}, folder=folder)


def nobody_listens_until_it_has_ended(run: Run) -> threading.Thread:
    """The thread that collects its output comes late, as on a busy machine."""
    busy = threading.Event()

    def hold() -> None:
        with run._news:
            busy.set()
            run.process.wait(SOON_S)

    holding = threading.Thread(target=hold)
    holding.start()
    busy.wait(SOON_S)
    return holding


def test_the_last_words_are_there_when_the_exit_code_is(tmp_path: Path):
    with a_process(f"import time; time.sleep(0.5); {LAST_WORDS}", tmp_path) as run:
        holding = nobody_listens_until_it_has_ended(run)
        assert run.wait(SOON_S) == 3
        assert run.checkpoints() == [1]
        assert "last words" in run.text()
        holding.join(SOON_S)


def test_who_waits_for_words_gets_those_of_an_ended_process(tmp_path: Path):
    with a_process(LAST_WORDS, tmp_path) as run:
        run.process.wait(SOON_S)
        run.until(lambda one: "last words" in one.text(), SOON_S)
        with pytest.raises(AssertionError, match="last words"):
            run.until(lambda one: "other words" in one.text(), SOON_S)


def test_a_child_that_lives_on_keeps_nobody_waiting_for_long(tmp_path: Path):
    """It was killed, and what it started holds the other end of its output still."""
    child = "import time; time.sleep(600)"
    code = f"import signal, subprocess, sys; subprocess.Popen([sys.executable, '-c', '{child}']); "
    code += "print('{\"checkpoint\": 1}', flush=True); signal.pause()"
    with a_process(code, tmp_path) as run:
        run.until(lambda one: one.checkpoints() == [1], SOON_S)
        run.kill()
        assert run.wait(SOON_S) == -9
