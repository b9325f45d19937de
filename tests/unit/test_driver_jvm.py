"""What the driver does while its JVM starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from connectors.spark.driver_jvm import _imported_meanwhile
from tests.waiting import until

#: Says whether the process of the test was there when it was imported.
MODULE = """
import psutil
CHILDREN = [one.name() for one in psutil.Process().children()]
"""


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_modules_are_imported_only_when_the_process_is_there(importable):
    """A fork in the middle of an import could copy a lock that is held."""
    (importable / "imported_beside_a_sleep.py").write_text(MODULE)
    with _imported_meanwhile(["imported_beside_a_sleep"]):
        child = subprocess.Popen(["sleep", "60"])
        until(lambda: "imported_beside_a_sleep" in sys.modules)
    try:
        assert "sleep" in sys.modules["imported_beside_a_sleep"].CHILDREN
    finally:
        child.kill()
        child.wait()


def test_a_module_that_cannot_be_imported_is_left_to_who_needs_it(importable):
    (importable / "half_a_module.py").write_text("HALF = 1\nraise RuntimeError('no')")
    (importable / "a_good_module.py").write_text("")
    with _imported_meanwhile(["half_a_module", "no_such_module", "a_good_module"]):
        child = subprocess.Popen(["sleep", "60"])
        until(lambda: "a_good_module" in sys.modules)
    child.kill()
    child.wait()
    with pytest.raises(RuntimeError, match="no"):
        __import__("half_a_module")


def test_a_start_that_fails_imports_nothing(importable):
    (importable / "never_imported.py").write_text("")
    with pytest.raises(OSError, match="no JVM"), _imported_meanwhile(["never_imported"]):
        raise OSError("no JVM")
    assert "never_imported" not in sys.modules


def test_where_processes_cannot_be_seen_nothing_is_imported_early(importable, monkeypatch):
    (importable / "not_early.py").write_text("")
    monkeypatch.setattr(psutil.Process, "children", unseen)
    with _imported_meanwhile(["not_early"]):
        subprocess.run(["true"], check=True)
    assert "not_early" not in sys.modules


def unseen(*_: object) -> None:
    raise psutil.AccessDenied
