"""Where a backfill of the continuous mode ends, and what it cannot reach any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from connectors.continuous.checkpoint_loop import CheckpointLoop
from connectors.continuous.partition_shares import PartitionShares
from connectors.spark.continuous_driver import ContinuousDriver
from tests.unit.test_source_planner import FakeCluster
from transactions.errors import DataLossError, MissingTopicError


@pytest.fixture
def driver() -> Any:
    made: Any = object.__new__(ContinuousDriver)
    made._ends, made._begin, made._resting = None, {}, {}
    return made


def holding(**ends: int) -> FakeCluster:
    """A cluster whose topics, of one partition each, end there."""
    return FakeCluster({f"{topic}-0": (0, end) for topic, end in ends.items()})


def test_a_restart_has_the_ends_of_the_start(driver: Any) -> None:
    driver._fix_ends(holding(a=5, b=3))
    driver._fix_ends(holding(a=9, b=3, c=1))
    assert driver._ends == {"a-0": 5, "b-0": 3}


@pytest.mark.parametrize("latest", [{"a": 4, "b": 3}, {"a": 5}])
def test_a_restart_that_can_never_end_is_data_loss(driver: Any, latest: dict[str, int]) -> None:
    driver._fix_ends(holding(a=5, b=3))
    with pytest.raises(DataLossError, match="available"):
        driver._fix_ends(holding(**latest))


def test_a_backfill_ends_without_a_topic_that_was_deleted_before_it(driver: Any) -> None:
    """As every other run, with failOnDataLoss=false; its offset rests in the decisions."""
    left = FakeCluster({"a-0": (0, 5)}, topics=["a", "b"], fail_on_data_loss=False)
    driver._fix_ends(left)
    assert driver._ends == {"a-0": 5}
    shares = PartitionShares({"a-0": 5}, 1, resting={"b-0": 3})
    options = SimpleNamespace(ends=driver._ends)
    loop: Any = SimpleNamespace(_options=options, _shares=shares, drain=Mock())
    CheckpointLoop._drain_at_ends(loop)
    loop.drain.assert_called_once()
    with pytest.raises(MissingTopicError):
        driver._fix_ends(FakeCluster({"a-0": (0, 5)}, topics=["a", "b"]))


def test_a_topic_that_is_deleted_meanwhile_is_data_loss(driver: Any) -> None:
    driver._stream = SimpleNamespace(partitions=lambda _begin: ["a-0"])
    assert driver._new_partitions() == ["a-0"]
    driver._fix_ends(holding(a=5))
    assert driver._new_partitions() == ["a-0"]
    driver._ends["b-0"] = 3
    with pytest.raises(DataLossError, match="available"):
        driver._new_partitions()
