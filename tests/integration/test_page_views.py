"""The example of keyed state passes its own tests: five kills, and the counter that is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_page_view_example_proves_its_counts():
    words = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "examples/page_views"]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stdout[-6000:]
    assert "test_counts_are_exact_after_five_kills PASSED" in run.stdout
    assert "test_a_counter_outside_counts_too_much PASSED" in run.stdout
