"""A `BatchWriter` whose start failed: what its next start looks at, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from connectors import KafkaSink
from connectors.spark import BatchWriter, batch_writer
from transactions.errors import DecisionLogError


class FailedRun:
    """A run whose Fence is written, and whose start then fails."""

    made: list[FailedRun]

    def __init__(self, _options: object = None, before: FailedRun | None = None) -> None:
        self.before = before
        self.looked = False
        self.made.append(self)

    def check_newest(self) -> None:
        self.looked = True

    def open(self, *, finished: int) -> None:
        raise DecisionLogError(f"The decision log does not answer, after {finished}.")


def test_b8_the_next_start_looks_with_the_log_of_the_start_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """To the log before it, the Fence of that start is a newer run's."""
    monkeypatch.setattr(FailedRun, "made", [], raising=False)
    monkeypatch.setattr(batch_writer, "Run", FailedRun)
    monkeypatch.setattr(batch_writer, "refuse_sources_of_query", lambda _: None)
    writer = BatchWriter(KafkaSink(bootstrap_servers="b:1", topic="out"), app_id="app")
    good: Any = FailedRun()
    writer._before = good
    nothing: Any = MagicMock(checkpoint=tmp_path, path=tmp_path)
    for _ in range(2):
        with pytest.raises(DecisionLogError):
            writer._begin(nothing, nothing, nothing, 0)
    _, first, second = FailedRun.made
    assert first.before is good
    assert first.looked
    assert second.before is first
