"""`make parity`: the table of tests/parity/table.py with the result of each row at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from connectors.spark.data_source import NAME
from tests.parity.table import DIFFERS, ROWS

_ROW = "parity"
#: The same rows in the continuous mode: `@pytest.mark.parity(1, mode="continuous")`.
_CONTINUOUS = "parity, continuous"


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
    if not results:
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


@pytest.fixture
def source(spark: SparkSession, bootstrap: str) -> Callable[..., DataFrame]:
    """Read as a user of Spark's own source does, but for the one word."""

    def load(*, stream: bool, **options: object) -> DataFrame:
        reader = spark.readStream if stream else spark.read
        given = {name: str(value) for name, value in options.items()}
        return (
            reader.format(NAME).option("kafka.bootstrap.servers", bootstrap).options(**given).load()
        )

    return load


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """The checkpoint of a query."""
    return str(tmp_path / "checkpoint")
