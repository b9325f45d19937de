"""What `python -m tests.chaos` does with a report; the run itself is `test_chaos.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos import __main__ as command
from tests.chaos.runner import Options, Report


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Run the command with a report instead of a run; figures are kept in `tmp_path`."""

    def run(report: Report, *arguments: str) -> int:
        def a_run(options: Options, _say: Callable[[str], None]) -> Report:
            report.seed, report.seconds = options.seed, options.seconds
            report.mode, report.stateful = options.mode, options.stateful
            (options.folder / "checkpoints").mkdir()
            (options.folder / "driver-0.log").touch()
            return report

        monkeypatch.setattr(command, "run", a_run)
        monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
        monkeypatch.setattr(command.tempfile, "tempdir", str(tmp_path))  # logs are left there
        monkeypatch.setattr(command.signal, "signal", lambda *_: None)
        monkeypatch.setattr(sys, "argv", ["chaos", "--seed", "7", *arguments])
        return command.main()

    return run


def figures(folder: Path) -> list[dict[str, object]]:
    """Return the lines that were kept."""
    (file,) = (folder / "results").glob("*.jsonl")
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_keep_appends_the_figures_of_each_run(chaos, tmp_path, capsys):
    """Faults by kind, records, recoveries and heals are printed and kept, one line a run."""
    for recoveries in (3, 4):
        report = Report(0, 0.0, 3, faults={"DRIVER_KILL": 2}, records_in=5, records_out=5)
        report.recoveries = recoveries
        report.heals = 1
        assert chaos(report, "--minutes", "0.5", "--keep", "an-hour") == 0
        printed = json.loads(capsys.readouterr().out)
        assert figures(tmp_path)[-1] == printed
    first, second = figures(tmp_path)
    assert (first["recoveries"], second["recoveries"]) == (3, 4)
    assert first["faults"] == {"DRIVER_KILL": 2}
    assert (first["seed"], first["seconds"], first["heals"]) == (7, 30.0, 1)
    assert first["date"]


def test_a_violation_is_kept_as_well_and_the_exit_code_says_it(chaos, tmp_path, capsys):
    report = Report(0, 0.0, 3, violations=["duplicate: b'0-1'"], duplicates=1)
    assert chaos(report, "--keep", "an-hour", "--mode", "continuous", "--brokers", "1") == 1
    (kept,) = figures(tmp_path)
    assert (kept["violations"], kept["mode"]) == (["duplicate: b'0-1'"], "continuous")
    told = capsys.readouterr().err
    assert "VIOLATION  duplicate: b'0-1'" in told
    assert "make chaos MINUTES=10 SEED=7 MODE=continuous BROKERS=1" in told
    (logs,) = (line for line in told.splitlines() if line.startswith("logs of the drivers: "))
    assert (Path(logs.partition(": ")[2]) / "driver-0.log").exists()


def test_a_run_says_how_it_counted(chaos, capsys):
    report = Report(0, 0.0, 3, violations=["count went back"])
    assert chaos(report, "--stateful", "transform-with-state") == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["stateful"] == "transform-with-state"
    assert 'make chaos MINUTES=10 SEED=7 ARGS="--stateful transform-with-state"' in said.err


def test_state_in_the_mode_that_has_none_is_refused(chaos, capsys):
    with pytest.raises(SystemExit):
        chaos(Report(0, 0.0, 3), "--mode", "continuous", "--stateful", "transform-with-state")
    assert "keeps no state" in capsys.readouterr().err


def test_nothing_is_kept_unless_it_is_asked_for(chaos, tmp_path):
    assert chaos(Report(0, 0.0, 3)) == 0
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", ["a/b", "", "..", "-x y"])
def test_a_name_that_is_no_file_name_is_refused_before_the_run(chaos, name, capsys):
    report = Report(0, 0.0, 3)
    with pytest.raises(SystemExit):
        chaos(report, f"--keep={name}")
    assert "--keep" in capsys.readouterr().err
    assert report.seed == 0  # the run has not begun
