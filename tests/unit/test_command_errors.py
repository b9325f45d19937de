"""How `sparkonce` ends on an error that no subcommand handles."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from connectors.cli import main as command_line
from connectors.cli.main import main
from transactions.errors import SavepointError, SavepointNotMadeError


def ended(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sparkonce", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code


def ending_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    @click.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(command_line, "cli", fail)


def test_a_path_that_cannot_be_used_is_an_error_in_four_parts(monkeypatch, capsys, tmp_path: Path):
    """The state of a user whose home is a file."""
    home = tmp_path / "home"
    home.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    assert ended(monkeypatch, "kafka", "down") == 1
    said = capsys.readouterr().err
    assert said.startswith("SparkOnceError: ")
    assert f"where:  {home}/sparkonce\n" in said
    assert f"cause:  {os.strerror(errno.ENOTDIR)}\n" in said
    assert "look at: " in said


def test_a_path_without_permission_is_wrong_configuration(monkeypatch, capsys):
    ending_with(monkeypatch, PermissionError(errno.EACCES, "Permission denied", "/secret"))
    assert ended(monkeypatch) == 2
    said = capsys.readouterr().err
    assert said.startswith("ConfigurationError: ")
    assert "where:  /secret\n  cause:  Permission denied\n" in said


@pytest.mark.parametrize(("kind", "code"), [(SavepointError, 2), (SavepointNotMadeError, 1)])
def test_a_savepoint_that_could_not_be_made_is_no_wrong_configuration(monkeypatch, kind, code):
    ending_with(monkeypatch, kind("what"))
    assert ended(monkeypatch) == code


def test_both_paths_of_a_rename_are_named(monkeypatch, capsys):
    ending_with(monkeypatch, OSError(errno.EXDEV, "Invalid cross-device link", "/a", None, "/b"))
    assert ended(monkeypatch) == 1
    assert "where:  /a -> /b\n" in capsys.readouterr().err


@pytest.mark.parametrize("error", [TimeoutError(), OSError(errno.ENOSPC, "No space left")])
def test_an_error_that_names_no_path_keeps_its_traceback(monkeypatch, error):
    """It can be a bug of ours, and only the traceback says where it was."""
    ending_with(monkeypatch, error)
    monkeypatch.setattr(sys, "argv", ["sparkonce"])
    with pytest.raises(type(error)):
        main()


def test_a_reader_that_has_gone_away_is_not_an_error():
    """`sparkonce --help | head`: quiet, as click ends then."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        words = [sys.executable, "-m", "connectors.cli.main", "--help"]
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"")
