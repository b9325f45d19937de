"""Where a backfill of the continuous mode ends, and what it cannot reach any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connectors.spark.continuous_driver import ContinuousDriver
from transactions.errors import DataLossError


@pytest.fixture
def driver() -> Any:
    made: Any = object.__new__(ContinuousDriver)
    made._ends, made._begin, made._resting = None, {}, {}
    return made


def test_a_restart_has_the_ends_of_the_start(driver: Any) -> None:
    driver._fix_ends({"a-0": 5, "b-0": 3})
    driver._fix_ends({"a-0": 9, "b-0": 3, "c-0": 1})
    assert driver._ends == {"a-0": 5, "b-0": 3}


@pytest.mark.parametrize("latest", [{"a-0": 4, "b-0": 3}, {"a-0": 5}])
def test_a_restart_that_can_never_end_is_data_loss(driver: Any, latest: dict[str, int]) -> None:
    driver._fix_ends({"a-0": 5, "b-0": 3})
    with pytest.raises(DataLossError, match="available"):
        driver._fix_ends(latest)


def test_a_topic_that_is_deleted_meanwhile_is_data_loss(driver: Any) -> None:
    driver._stream = SimpleNamespace(partitions=lambda _begin: ["a-0"])
    assert driver._new_partitions() == ["a-0"]
    driver._fix_ends({"a-0": 5})
    assert driver._new_partitions() == ["a-0"]
    driver._ends["b-0"] = 3
    with pytest.raises(DataLossError, match="available"):
        driver._new_partitions()
