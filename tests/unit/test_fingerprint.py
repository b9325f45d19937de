"""The fingerprint: same records, same value, in any order and any batches; else another value."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.records.fingerprint import Fingerprint
from connectors.records.message_schema import SINK_SCHEMA

values = st.one_of(st.none(), st.binary(max_size=40))
rows = st.lists(st.tuples(values, values), min_size=1, max_size=30)


def batch(records, **columns):
    keys, contents = zip(*records, strict=True)
    data = {"key": pa.array(keys, pa.binary()), "value": pa.array(contents, pa.binary()), **columns}
    return pa.record_batch(data)


def fingerprint(*batches, topic="t"):
    """Each batch is hashed by itself, though it is a small one."""
    one = Fingerprint()
    for part in batches:
        one.add(part, topic)
        one.hex()
    return one.count, one.hex()


parts = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), st.sampled_from(["t", "u"])), max_size=12
)


@given(parts)
@settings(max_examples=80, deadline=None)
def test_small_batches_are_hashed_together_as_if_alone(given):
    """Beside large ones, of many rows or many bytes, other columns and other topics."""
    together, apart = Fingerprint(), Fingerprint()
    for number, (with_key, size, topic) in enumerate(given):
        count, width = [(1, 5), (700, 9), (3000, 3), (2, 200_000)][size]
        one = batch([(b"%d" % row, b"%d" % number + b"v" * width) for row in range(count)])
        one = one if with_key else one.select(["value"])
        for each in (together, apart):
            each.add(one, topic)
        apart.hex()
        assert together.count == apart.count
    assert together.hex() == apart.hex()


def test_a_small_batch_is_part_of_a_larger_one():
    """Sliced, as a function may return it: what is around the slice is not hashed."""
    whole = batch([(b"%d" % row, b"v%d" % row) for row in range(40)])
    together = Fingerprint()
    for begin in (0, 7, 20):
        together.add(whole.slice(begin, 7), "t")
    apart = fingerprint(*(whole.slice(begin, 7) for begin in (0, 7, 20)))
    assert (together.count, together.hex()) == apart


@given(rows, st.randoms(use_true_random=False), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_order_and_batches_do_not_matter(records, random, cut):
    shuffled = list(records)
    random.shuffle(shuffled)
    parts = [part for part in (shuffled[:cut], shuffled[cut:]) if part]
    assert fingerprint(batch(records)) == fingerprint(*(batch(part) for part in parts))


@given(rows, rows)
@settings(max_examples=60, deadline=None)
def test_other_records_have_another_value(one, other):
    same = sorted(map(repr, one)) == sorted(map(repr, other))
    assert (fingerprint(batch(one)) == fingerprint(batch(other))) is same


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_records_of_uneven_lengths_are_hashed_as_if_alone(contents):
    """Those of like length are hashed together; none is changed by what it is hashed with."""
    together = [(b"k", value) for value in [*contents, b"x" * 20_000]]
    assert fingerprint(batch(together)) == fingerprint(*(batch([row]) for row in together))


DIFFERENT = [
    [(None, b"a")],
    [(b"", b"a")],
    [(b"a", None)],
    [(b"a", b"")],
    [(b"a", b"\0")],
    [(b"a\0", b"")],
    [(b"", b"a" * 8)],
    [(b"", b"a" * 8 + b"\0")],
    [(b"", b"a" * 9)],
    [(b"a", b"b"), (b"a", b"b")],
    [(b"a", b"b"), (b"a", b"c")],
]


def test_null_empty_padding_and_pairs_are_told_apart():
    assert len({fingerprint(batch(records))[1] for records in DIFFERENT}) == len(DIFFERENT)


def test_equal_records_do_not_cancel():
    """XOR would give {a,b,c,c} and {a,b,d,d} one value."""
    one = [(b"a", b""), (b"b", b""), (b"c", b""), (b"c", b"")]
    other = [(b"a", b""), (b"b", b""), (b"d", b""), (b"d", b"")]
    assert fingerprint(batch(one)) != fingerprint(batch(other))


def test_topic_headers_and_partition_count():
    records = [(b"k", b"v")]
    headers = SINK_SCHEMA.field("headers").type
    seen = {
        fingerprint(batch(records))[1],
        fingerprint(batch(records), topic="u")[1],
        fingerprint(batch(records, partition=pa.array([1], pa.int32())))[1],
        fingerprint(batch(records, partition=pa.array([2], pa.int32())))[1],
        fingerprint(batch(records, headers=pa.array([[{"key": "h", "value": b"1"}]], headers)))[1],
        fingerprint(batch(records, headers=pa.array([[{"key": "h", "value": None}]], headers)))[1],
    }
    assert len(seen) == 6


@pytest.mark.parametrize("start", [0, 1, 7])
def test_a_slice_is_the_records_it_shows(start):
    records = [(b"k%d" % n, b"v" * n) for n in range(20)]
    assert fingerprint(batch(records).slice(start)) == fingerprint(batch(records[start:]))


def test_more_rows_than_are_hashed_at_a_time():
    records = [(b"%d" % number, b"v" * (number % 90)) for number in range(5_000)]
    parts = [batch(records[start : start + 777]) for start in range(0, 5_000, 777)]
    assert fingerprint(batch(records)) == fingerprint(*parts)


def test_a_record_that_is_hashed_in_pieces():
    """Of 650 kB, which is more words than a matrix has; the value is that of the first version."""
    records = [(b"k", b"0123456789abc" * 50_000), (b"k", b"short")]
    assert fingerprint(batch(records)) == (2, "9b229620985b10fcdfd61061736a2a86")


def test_values_that_logs_hold_do_not_change():
    """A replay by a newer version must agree with the decision of an older one."""
    records = [(None, b""), (b"key", b"0123456789"), (b"k" * 16, None), (b"", b"v" * 1000)]
    columns = {
        "partition": pa.array([0, 1, None, 300], pa.int32()),
        "headers": pa.array(
            [None, [], [{"key": "h", "value": b"1"}], [{"key": "h", "value": None}]],
            SINK_SCHEMA.field("headers").type,
        ),
    }
    assert fingerprint(batch(records, **columns)) == (4, "794435e67b7837deb90202551c92b4b0")
