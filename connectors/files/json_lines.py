"""JSON lines: one object per row, as in Spark's `to_json`, but null fields are kept.

====================  =============================================================
binary                base64
timestamp             ISO 8601 in UTC: ``2024-05-01T12:00:00.000001Z``
timestamp without zone, date, time    ISO 8601 without a zone
decimal               a number with all of its digits
NaN, infinite         the strings ``NaN``, ``Infinity``, ``-Infinity``
map                   an object; its keys must be strings
====================  =============================================================
"""

from __future__ import annotations

import base64
import math
from decimal import Decimal
from typing import Any, BinaryIO, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

_OPTIONS: Final = orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE
_SIMPLE: Final = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string,
    pa.types.is_large_string,
)


class JsonLines:
    """Writes batches to a file; the caller keeps the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch.

        Raises:
            ValueError, TypeError, OverflowError: JSON cannot express a value, such as a string that
                is not UTF-8, or a year after 9999.
        """
        batch = batch.cast(pa.schema([_in_utc(field) for field in batch.schema]))
        rows = batch.to_pylist()
        if any(_needs_walk(column) for column in batch.columns):
            kinds = {field.name: field.type for field in batch.schema}
            rows = [{name: _plain(value, kinds[name]) for name, value in r.items()} for r in rows]
        self._file.writelines(orjson.dumps(row, _default, _OPTIONS) for row in rows)

    def close(self) -> None:
        """Do nothing: no row is held back."""


def problem_of(kind: pa.DataType) -> str:
    """Return why a column of this type cannot be written as JSON, "" if it can."""
    t = pa.types
    if t.is_map(kind) and not _is_text(kind.key_type):
        return f"the keys of a map must be strings, not {kind.key_type}"
    if t.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            return f"a struct has two fields with the same name: {', '.join(names)}"
        return next(filter(None, (problem_of(field.type) for field in kind)), "")
    if t.is_map(kind) or _is_list(kind):
        return problem_of(kind.item_type if t.is_map(kind) else kind.value_type)
    if (t.is_timestamp(kind) or t.is_time(kind)) and kind.unit == "ns":
        return "its ISO 8601 text cannot hold nanoseconds"
    return "" if any(fits(kind) for fits in _SIMPLE) else f"JSON has no type for {kind}"


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _default(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return orjson.Fragment(format(value, "f").encode())
    raise TypeError(f"{type(value).__name__} has no JSON")


def _in_utc(field: pa.Field) -> pa.Field:
    """Convert every instant to UTC, whatever the session's time zone is."""
    return field.with_type(_type_in_utc(field.type))


def _type_in_utc(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, tz="UTC")
    if t.is_struct(kind):
        return pa.struct([_in_utc(field) for field in kind])
    if t.is_map(kind):
        return pa.map_(kind.key_field, _in_utc(kind.item_field))
    if t.is_fixed_size_list(kind):
        return pa.list_(_in_utc(kind.value_field), kind.list_size)
    if t.is_list(kind):
        return pa.list_(_in_utc(kind.value_field))
    return kind


def _needs_walk(column: pa.Array) -> bool:
    """Return whether orjson would write a column differently: a map, or a float not finite."""
    t, kind = pa.types, column.type
    if t.is_map(kind):
        return True
    if t.is_floating(kind):
        finite = pc.all(pc.is_finite(column), min_count=0).as_py()
        return not finite
    if t.is_struct(kind):
        return any(_needs_walk(field) for field in column.flatten())
    if _is_list(kind):
        return _needs_walk(column.flatten())
    return False


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _plain(one, kind.field(name).type) for name, one in value.items()}
    if pa.types.is_map(kind):
        return {key: _plain(one, kind.item_type) for key, one in value}
    if isinstance(value, list):
        return [_plain(one, kind.value_type) for one in value]
    return value
