"""The live line of `sparkonce run` on a terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connectors.cli.run import Progress


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (80, "checkpoint 43200: 500 records, 2 transactions, commit 24 ms; 21,600,500 so far"),
        (50, "checkpoint 43200: 500 records, 2 transactions, …"),
    ],
)
def test_a_checkpoint_is_one_line_of_the_terminal(columns: int, shown: str):
    lines: list[str] = []
    report: Any = SimpleNamespace(
        checkpoint_id=43_200, records=500, transactions=2, recommitted=0, commit_ms=23.9
    )
    progress = Progress()
    terminal: Any = SimpleNamespace(update=lines.append, console=SimpleNamespace(width=columns))
    progress._status, progress._records = terminal, 21_600_000
    progress.checkpoint(report)
    assert lines == [shown]
