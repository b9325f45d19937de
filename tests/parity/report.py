"""`make parity`: the table of tests/parity/table.py with the result of each row at the end.

A plugin of all tests, not the conftest of this folder: that one is unknown to the process that
prints, since only the processes of xdist collect.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

import pytest

from tests.parity.table import DIFFERS, ROWS

_ROW: Final = "parity"
#: The same rows in the continuous mode: `@pytest.mark.parity(1, mode="continuous")`.
_CONTINUOUS: Final = "parity, continuous"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write the rows of each test into its reports, which cross processes; markers do not."""
    for item in items:
        for mark in item.iter_markers("parity"):
            for row in mark.args:
                assert row in ROWS, f"{item.nodeid}: the table has no row {row}"
                name = _CONTINUOUS if mark.kwargs.get("mode") == "continuous" else _ROW
                item.user_properties.append((name, row))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    results: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, row in getattr(report, "user_properties", ()):
                if name in (_ROW, _CONTINUOUS):
                    results[name, row][outcome] += 1
    if terminalreporter.config.option.markexpr != _ROW or not results:
        return
    terminalreporter.section("parity with Spark's own Kafka connector")
    terminalreporter.line(f"{'':4}{'batches':10}  {'continuous':10}")
    for row, says in ROWS.items():
        both = "  ".join(f"{_counted(results[name, row]):10}" for name in (_ROW, _CONTINUOUS))
        terminalreporter.line(f"{row:2}  {both}  {says}")
        if row in DIFFERS:
            terminalreporter.line(f"{'':28}{DIFFERS[row]}")


def _counted(results: Counter[str]) -> str:
    return ", ".join(f"{n} {what}" for what, n in results.items()) or "-"
