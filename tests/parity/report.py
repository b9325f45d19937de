"""`make parity`: the table of tests/parity/table.py with the result of each row at the end.

A plugin of all tests, not the conftest of this folder: that one is unknown to the process that
prints, since only the processes of xdist collect.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final, TypeAlias

import pytest

from tests.parity.table import DIFFERS, NOT_CONTINUOUS, ROWS, WITHOUT_TEST

_ROW: Final = "parity"
#: The same rows in the continuous mode: `@pytest.mark.parity(1, mode="continuous")`.
_CONTINUOUS: Final = "parity, continuous"

#: How often a row had an outcome, by kind and number of the row.
Results: TypeAlias = dict[tuple[str, int], Counter[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write the rows of each test into its reports, which cross processes; markers do not."""
    for item in items:
        for mark in item.iter_markers("parity"):
            for row in mark.args:
                assert row in ROWS, f"{item.nodeid}: the table has no row {row}"
                name = _CONTINUOUS if mark.kwargs.get("mode") == "continuous" else _ROW
                item.user_properties.append((name, row))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a whole run of `make parity` that has lost the last test of a row."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    whole = session.config.args == ["tests"] and not session.config.option.keyword
    if reporter is not None and whole and _is_asked(session.config):
        results = _results(reporter)
        if any(_has_no_test(results, *one) for one in _wanted()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _is_asked(terminalreporter.config):
        return
    results = _results(terminalreporter)
    terminalreporter.section("parity with Spark's own Kafka connector")
    terminalreporter.line(f"{'':4}{'batches':10}  {'continuous':10}")
    for row, says in ROWS.items():
        both = "  ".join(f"{_counted(results, name, row):10}" for name in (_ROW, _CONTINUOUS))
        terminalreporter.line(f"{row:2}  {both}  {says}")
        if row in DIFFERS:
            terminalreporter.line(f"{'':28}{DIFFERS[row]}")


def _is_asked(config: pytest.Config) -> bool:
    return config.option.markexpr == _ROW


def _results(reporter: pytest.TerminalReporter) -> Results:
    results: Results = defaultdict(Counter)
    for outcome in ("passed", "failed", "error"):
        for report in reporter.stats.get(outcome, []):
            for name, row in getattr(report, "user_properties", ()):
                if name in (_ROW, _CONTINUOUS):
                    results[name, row][outcome] += 1
    return results


def _wanted() -> Iterator[tuple[str, int]]:
    """Give each row that must have a test, for each mode in which it means something."""
    for row in ROWS:
        if row not in WITHOUT_TEST:
            yield _ROW, row
        if row not in NOT_CONTINUOUS:
            yield _CONTINUOUS, row


def _has_no_test(results: Results, name: str, row: int) -> bool:
    return not results[name, row]


def _counted(results: Results, name: str, row: int) -> str:
    if _has_no_test(results, name, row):
        return "NO TEST" if (name, row) in {*_wanted()} else "-"
    return ", ".join(f"{n} {what}" for what, n in results[name, row].items())
