"""A user's Arrow function: how it is found, and what it may return."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors.records.arrow_transform import copy_records, load_function, normalised
from connectors.records.message_schema import SINK_SCHEMA, SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS
from transactions.errors import ConfigurationError

NOT_CALLABLE = 5


def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_a_function_is_taken_as_it_is_or_by_its_name():
    assert load_function(upper) is upper
    assert load_function(f"{__name__}:upper").__code__ is upper.__code__
    assert load_function("connectors.records.arrow_transform:copy_records") is copy_records


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("no_such_package.module:f", "No module named"),
        (f"{__name__}:no_such_function", "no_such_function"),
        (__name__, "attribute"),
        ("", "Empty module name"),
        (":f", "Empty module name"),
        (f"{__name__}:NOT_CALLABLE", "it is of the type int"),
    ],
)
def test_a_name_that_is_no_function_is_a_configuration_error(name, cause):
    with pytest.raises(ConfigurationError, match=cause):
        load_function(name)


@pytest.mark.parametrize("schema", [SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS])
def test_a_copy_keeps_key_value_and_headers(schema):
    rows = [{"key": b"k", "value": b"v", "topic": "t", "partition": 1, "offset": 7}]
    copied = copy_records(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert copied.schema.names == [n for n in ("key", "value", "headers") if n in schema.names]
    assert normalised(copied).column("value").to_pylist() == [b"v"]


def test_columns_get_the_types_of_the_sink():
    made = normalised(
        pa.record_batch(
            {
                "value": pa.array(["text", None], pa.string()),
                "key": pa.array([b"k", None], pa.large_binary()),
                "partition": pa.array([1, None], pa.int64()),
                "timestamp": pa.array([1_000, None], pa.timestamp("ms", tz="UTC")),
            }
        )
    )
    assert made.schema.names == ["value", "key", "partition", "timestamp"]
    for field in made.schema:
        assert field.type == SINK_SCHEMA.field(field.name).type
    assert made.to_pylist()[0]["value"] == b"text"
    assert made.to_pylist()[1] == dict.fromkeys(made.schema.names)


def test_no_row_at_all_is_fine():
    empty = normalised(pa.record_batch({"value": pa.array([], pa.binary())}))
    assert empty.num_rows == 0


@pytest.mark.parametrize(
    ("returned", "cause"),
    [
        (None, "NoneType, not pyarrow.RecordBatch"),
        (pa.table({"value": pa.array([b"v"])}), "Table, not pyarrow.RecordBatch"),
        (pa.record_batch({"key": pa.array([b"k"])}), "no column 'value'"),
        (
            pa.record_batch({"value": pa.array([b"v"]), "offset": pa.array([1])}),
            "no column 'offset'",
        ),
        (pa.record_batch({"value": pa.array([{"a": 1}])}), "wrong type"),
        (
            pa.record_batch({"value": pa.array([b"v"]), "partition": pa.array([2**40])}),
            "wrong type",
        ),
    ],
)
def test_anything_else_is_a_configuration_error_that_says_why(returned, cause):
    with pytest.raises(ConfigurationError, match=cause):
        normalised(returned)
