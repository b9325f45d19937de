"""What `make test` leaves out is counted, and `make test-all` leaves nothing out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest
from tests.tiers import long, sampled

ROOT = Path(__file__).parents[2]


def collected(what: str) -> str:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, what], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_what_was_left_out_is_counted():
    said = collected("tests/unit/test_sink_contract.py")
    found = re.search(r"^(\d+) tests .*make test-all", said, re.MULTILINE)
    assert found, said
    assert int(found[1]) > 20


def test_what_is_named_is_not_left_out():
    name = "tests/unit/test_sink_contract.py::test_a_failure_quotes_the_contract"
    assert "make test-all" not in collected(name)


@pytest.mark.parametrize(("target", "everything"), [("test", False), ("test-all", True)])
def test_make_test_all_leaves_nothing_out(target: str, everything: bool):
    command = ["make", "--dry-run", "PYTHON=python3", target]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "ruff check" in made
    assert "pytest" in made
    assert ("-m ''" in made) is everything


@pytest.mark.parametrize("processes", [(), ("--numprocesses", "1")])
def test_make_parity_prints_its_table(tmp_path: Path, processes: tuple[str, ...]):
    """The process that prints has collected nothing if others run the tests."""
    assert "tests.parity.report" in conftest.pytest_plugins
    row = '@pytest.mark.parity(4, mode="continuous")\ndef test_it(): pass\n'
    (tmp_path / "test_row.py").write_text(f"import pytest\n{row}")
    command = [sys.executable, "-m", "pytest", "-m", "parity", "-p", "tests.parity.report"]
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", *processes]
    command = [*command, *options, str(tmp_path / "test_row.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(r"^ 4  NO TEST +1 passed  +from a timestamp", done.stdout, re.MULTILINE)


def test_make_parity_fails_when_a_row_has_lost_its_last_test(tmp_path: Path):
    """Here all rows but one have lost theirs."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = parity\npythonpath = " + str(ROOT))
    test = "import pytest\n@pytest.mark.parity(4)\ndef test_it(): pass\n"
    (tmp_path / "tests/test_row.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-m", "parity", "-p", "tests.parity.report"]
    command += ["-p", "no:cacheprovider", "-n0", "tests"]
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=path)  # noqa: PLW1510
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^ 5  NO TEST +NO TEST ", done.stdout, re.MULTILINE)
    assert re.search(r"^13  - +-  ", done.stdout, re.MULTILINE)
    assert re.search(r"^43  NO TEST +-  ", done.stdout, re.MULTILINE)


def test_sampled_marks_all_but_those_that_are_kept():
    assert sampled(["a", "b"], "b") == [pytest.param("a", marks=long), "b"]
    assert sampled([("a", 1)], ("a", 1)) == [("a", 1)]
    assert sampled([("a", 1)]) == [pytest.param("a", 1, marks=long)]


def test_a_point_that_is_gone_cannot_be_kept():
    with pytest.raises(AssertionError, match="elsewhere"):
        sampled(["here"], "elsewhere")
