"""What `make test` leaves out is counted, and `make test-all` leaves nothing out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import long, sampled

ROOT = Path(__file__).parents[2]


def test_what_was_left_out_is_counted():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not long", "tests/unit/test_sink_contract.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    closing = done.stdout.rpartition("= left out =")[2]
    found = re.search(r"^(\d+) tests .*make test-all", closing, re.MULTILINE)
    assert found, done.stdout
    assert int(found[1]) > 20


@pytest.mark.parametrize(("target", "leaves_out"), [("test", True), ("test-all", False)])
def test_make_test_all_leaves_nothing_out(target: str, leaves_out: bool):
    command = ["make", "--dry-run", target]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "ruff check" in made
    assert "pytest" in made
    assert ("-m 'not long'" in made) is leaves_out


def test_sampled_marks_all_but_those_that_are_kept():
    assert sampled(["a", "b"], "b") == [pytest.param("a", marks=long), "b"]
    assert sampled([("a", 1)], ("a", 1)) == [("a", 1)]
    assert sampled([("a", 1)]) == [pytest.param("a", 1, marks=long)]


def test_a_point_that_is_gone_cannot_be_kept():
    with pytest.raises(AssertionError, match="elsewhere"):
        sampled(["here"], "elsewhere")
