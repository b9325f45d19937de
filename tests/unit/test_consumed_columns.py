"""Bytes that lie anywhere in memory, copied into a column."""

from __future__ import annotations

import ctypes

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.native.consumed_columns import bytes_column


def column_of(values: list[bytes | None]) -> pa.Array:
    """Put each value into memory of its own and let `bytes_column` collect them."""
    kept = [
        None if one is None else ctypes.create_string_buffer(one, len(one) + 1) for one in values
    ]
    addresses = np.array([0 if one is None else ctypes.addressof(one) for one in kept], np.uint64)
    lengths = np.array([9 if one is None else len(one) for one in values], np.int64)
    return bytes_column(addresses, lengths)


@given(st.lists(st.none() | st.binary(max_size=70)))
def test_values_of_any_length(values):
    column = column_of(values)
    column.validate(full=True)
    assert column.to_pylist() == values


@given(st.lists(st.binary(min_size=100, max_size=100), min_size=1))
def test_values_of_one_length(values):
    assert column_of(values).to_pylist() == values


@pytest.mark.parametrize("size", [2**n + more for n in range(16) for more in (-1, 0, 1)])
def test_every_power_of_two_and_its_neighbours(size):
    values = [bytes((n * 7 + size) % 256 for n in range(size)), b"x", None, b"", b"yz" * size]
    assert column_of(values).to_pylist() == values
    assert column_of(values[:1] * 3).to_pylist() == values[:1] * 3


def test_all_null_all_empty_and_none_at_all():
    for values in ([None, None], [b"", b""], []):
        assert column_of(values).to_pylist() == values
