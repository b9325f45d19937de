"""A session that `build_session` starts maps the class archive; an unusable one changes nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.machine.java import ensure_java_home
from connectors.spark.archived_classes import find_archive, place_of_archive
from connectors.spark.class_archive import ensure_class_archive
from tests.integration.job_process import PATIENCE_S
from tests.pages import block, commands

SESSION = """
import sys
from connectors.spark import build_session
session = build_session("x", master="local[1]")
process = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
print(session.range(7).count(), open(f"/proc/{process}/maps").read())
"""


def output_of_a_session(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("7 ")
    assert "CDS" not in done.stderr
    return done.stdout


@pytest.mark.long
def test_a_session_maps_the_archive_and_starts_with_a_strange_one_too(tmp_path, monkeypatch):
    archive = ensure_class_archive()
    assert str(archive) in output_of_a_session()

    content = b"not one of ours" * 1000
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, stem = place_of_archive(ensure_java_home())
    folder.mkdir(parents=True)
    strange = folder / f"{stem}-{len(content)}.jsa"
    strange.write_bytes(content)
    assert find_archive(ensure_java_home()) == strange
    assert archive.parent.name not in output_of_a_session()


@pytest.mark.long
def test_the_command_of_the_page_makes_it_once(tmp_path):
    page = block("docs/operations.md", "connectors.spark.class_archive")
    (command,) = commands(page)
    python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    root = str(Path(__file__).parents[2])
    here = {**os.environ, **python, "PYTHONPATH": root, "XDG_CACHE_HOME": str(tmp_path)}

    def said() -> list[str]:
        words = command.split()
        done = subprocess.run(
            words, capture_output=True, text=True, env=here, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return without_numbers(f"{done.stdout}{done.stderr}").splitlines()

    def without_numbers(text: str) -> str:
        text = text.replace(str(tmp_path), "~/.cache")
        return re.sub(r"spark-\S+\.jsa|\b\d+(?= s: )", "...", text)

    assert said() == without_numbers(page).splitlines()[1:]
    (made,) = (tmp_path / "sparkonce/class-archives").glob("*.jsa")
    before = made.stat().st_mtime_ns
    said()
    assert made.stat().st_mtime_ns == before, "it is made once"
