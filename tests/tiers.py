"""Two runs: `make test` before every change lands, and `make test-all`, which leaves nothing out.

A test with the marker `long` runs in `make test-all` only: a storm, a soak, a benchmark, or a point
of a matrix where `make test` has another point of its class. The closing lines count them.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

long = pytest.mark.long


def sampled(values: Iterable[object], *kept: object) -> list[object]:
    """Return all parameters; of a matrix of equal cases `make test` runs those that are `kept`."""
    found = list(values)
    unknown = [value for value in kept if value not in found]
    assert not unknown, f"not among the parameters: {unknown}"
    return [value if value in kept else _long(value) for value in found]


def _long(value: object) -> object:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=long)
