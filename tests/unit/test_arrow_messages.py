"""Addresses computed from Arrow buffers, read back from memory; and rows grouped by partition."""

from __future__ import annotations

import ctypes

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.native import librdkafka
from connectors.native.arrow_messages import (
    MessageRows,
    groups,
    numbers,
    partitions_of,
    times_of,
    topics_of,
)

KINDS = (
    pa.binary(),
    pa.large_binary(),
    pa.string(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.binary()),
)
#: ASCII, so that the same bytes are text as well; some longer than a view holds inline.
VALUES = st.lists(st.none() | st.binary(max_size=40).map(lambda raw: raw.hex().encode()))


def read_back(messages, address: str, length: str) -> list[bytes | None]:
    return [
        ctypes.string_at(int(one[address]), int(one[length])) if one[address] else None
        for one in messages
    ]


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, list[bytes | None]]:
    """Draw a column of any kind, perhaps a slice, with what it holds."""
    values = draw(VALUES)
    kind = draw(st.sampled_from(KINDS))
    column = pa.array(values, pa.binary())
    if kind == pa.dictionary(pa.int32(), pa.binary()):
        column = column.dictionary_encode()
    else:
        text = column.cast(pa.string())
        column = (text if "string" in str(kind) else column).cast(kind)
    start = draw(st.integers(0, len(values)))
    count = draw(st.integers(0, len(values) - start))
    return column.slice(start, count), values[start : start + count]


@given(columns(), st.data())
def test_every_row_is_found_where_its_address_says(drawn, data):
    column, values = drawn
    keys = data.draw(st.permutations(values))
    batch = pa.record_batch({"value": column, "key": pa.array(keys, pa.binary())})
    rows = MessageRows(batch)
    assert read_back(rows.messages, "payload", "len") == values
    assert read_back(rows.messages, "key", "key_len") == list(keys)


def test_null_and_empty_differ_also_without_any_bytes():
    for kind in (pa.binary(), pa.large_string()):
        for column in (pa.array(["", None], kind), pa.array([None, ""], kind).slice(0, 2)):
            rows = MessageRows(pa.record_batch({"value": column}))
            assert read_back(rows.messages, "payload", "len") == [
                None if one is None else b"" for one in column.to_pylist()
            ]
            assert not rows.messages["key"].any()
    empty = pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.zeros(2, np.int32)), pa.py_buffer(b"")]
    )
    assert MessageRows(pa.record_batch({"value": empty})).messages["payload"][0] != 0


@pytest.mark.parametrize("column", [pa.array([1]), pa.array([[b"a"]]), pa.array([1.5])])
def test_what_is_neither_bytes_nor_text_is_refused(column):
    with pytest.raises(TypeError, match="not bytes or text"):
        MessageRows(pa.record_batch({"value": column}))


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)), st.data())
def test_numbers_of_a_slice(values, data):
    start = data.draw(st.integers(0, len(values)))
    for kind in (pa.int32(), pa.int64()):
        found = numbers(pa.array(values, kind).slice(start), -1)
        assert found.tolist() == [-1 if one is None else one for one in values[start:]]
    assert numbers(pa.nulls(2), 7).tolist() == [7, 7]


def test_columns_that_are_missing():
    batch = pa.record_batch({"value": pa.array([b"a", b"b"])})
    assert topics_of(batch, "t")[0] == ["t"]
    assert partitions_of(batch).tolist() == [librdkafka.ANY_PARTITION] * 2
    assert times_of(batch).tolist() == [0, 0]


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 3)), min_size=1, max_size=60)


@given(ROWS)
def test_each_partition_gets_its_rows_in_order(rows):
    """A row that leaves it to its key may meet any other of its topic in a partition."""
    topics, partitions = (np.array(column) for column in zip(*rows, strict=True))
    sent = []
    for topic, partition, members in groups(topics, partitions):
        numbers_of_rows = np.arange(len(rows))[members].tolist()
        assert {rows[number] for number in numbers_of_rows} == {(topic, partition)}
        sent += numbers_of_rows
    assert sorted(sent) == list(range(len(rows)))
    for topic in range(3):
        mixed = any(row[1] == -1 for row in rows)
        for partition in range(-1, 4):
            meeting = {-1, partition} if mixed else {partition}
            order = [n for n in sent if rows[n][0] == topic and rows[n][1] in meeting]
            assert order == sorted(order)


def test_alternating_partitions_are_one_group_each():
    partitions = np.array([0, 1] * 50)
    found = list(groups(np.zeros(100, np.int64), partitions))
    assert [(topic, partition) for topic, partition, _ in found] == [(0, 0), (0, 1)]
