r"""Rows as lines of COPY's text format, converted a whole Arrow column at a time.

==============================  ==================================================================
Arrow                           column of the table
==============================  ==================================================================
int8 .. int64, uint8 .. uint64  smallint, integer, bigint, numeric (too large a value is refused)
float16, float32                real, double precision
float64                         double precision (NaN and both infinities too)
bool                            boolean
string                          text, varchar, char, and types that read its text: json, jsonb,
                                uuid, enums, inet, ...; never bytea
binary                          bytea
timestamp with a zone (s .. us) timestamp with time zone: the instant
timestamp without one (s .. us) timestamp without time zone
date32, date64                  date
decimal                         numeric
==============================  ==================================================================

Nothing is converted silently: an instant does not become a wall clock, nor a float a decimal. A
column's own length, scale and precision act as in any INSERT. Null is ``\N``. No value looks like
it, because backslashes are doubled.

A line contains the whole row, and is the same in every batch and at every replay. So the
fingerprint of a transaction is computed from its lines.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.records.fingerprint import TextFingerprint
from transactions.errors import ConfigurationError

#: Types that take any text; the type's category says which. bytea would read backslashes in it.
TEXT: Final = ("text and what reads text",)
_TEXT_CATEGORIES: Final = frozenset("SEIU")  # string, enum, network, user-defined (json, uuid, ...)

#: Input bytes of one piece: the lines of a piece stay below Arrow's 2 GiB per array.
_PIECE_BYTES: Final = 1 << 26


def _is_text(one: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(one) or pa.types.is_large_string(one) or pa.types.is_string_view(one)
    )


def _is_bytes(one: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(one)
        or pa.types.is_large_binary(one)
        or pa.types.is_fixed_size_binary(one)
        or pa.types.is_binary_view(one)
    )


def _is_time(one: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(one) and one.unit != "ns")


#: Arrow type -> names by `format_type`; the first that fits counts.
_SQL_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], tuple[str, ...]], ...]] = (
    (pa.types.is_integer, ("smallint", "integer", "bigint", "numeric")),
    (pa.types.is_float64, ("double precision",)),
    (pa.types.is_floating, ("real", "double precision")),
    (pa.types.is_boolean, ("boolean",)),
    (pa.types.is_decimal, ("numeric",)),
    (pa.types.is_date, ("date",)),
    (_is_text, TEXT),
    (_is_bytes, ("bytea",)),
    (lambda one: _is_time(one) and one.tz is not None, ("timestamp with time zone",)),
    (lambda one: _is_time(one) and one.tz is None, ("timestamp without time zone",)),
)


def sql_types(arrow_type: pa.DataType) -> tuple[str, ...]:
    """Return the SQL types that take an Arrow type without loss; none if COPY cannot write it."""
    return next((names for fits, names in _SQL_TYPES if fits(arrow_type)), ())


def takes(sql_type: str, category: str, arrow_type: pa.DataType) -> bool:
    """Return whether a column of a table takes an Arrow type; see the module.

    Args:
        sql_type: its name by `format_type`.
        category: PostgreSQL's `typcategory`.
        arrow_type: the type of the column to write.
    """
    names = sql_types(arrow_type)
    if names == TEXT:
        return category in _TEXT_CATEGORIES and sql_type != "bytea"
    return sql_type in names


def check_types(schema: pa.Schema, where: str) -> None:
    """Check that COPY can write every column.

    Raises:
        ConfigurationError: it cannot, or there is no column, or two columns have the same name.
    """
    if not schema.names:
        raise ConfigurationError(
            "Rows without columns cannot be written.", where=where, cause="no column is selected"
        )
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise ConfigurationError(
                f"Two columns have the name {field.name!r}.",
                where=where,
                cause="the columns of a table have different names",
                option=f"columns={', '.join(schema.names)}",
            )
        if not sql_types(field.type):
            raise ConfigurationError(
                f"The column {field.name!r} has a type that the sink does not support.",
                where=where,
                cause="lists, structs and maps: write them as text with to_json; a time in "
                "nanoseconds: cast it to microseconds",
                option=f"{field.name}: {field.type}",
            )


def copy_lines(batch: pa.RecordBatch) -> Iterator[pa.Array]:
    """Yield the lines of a batch, in pieces: one text per row, with its newline.

    Args:
        batch: its schema has passed `check_types`.
    """
    rows = batch.num_rows
    step = max(1, rows * _PIECE_BYTES // max(batch.nbytes, 1))
    for begin in range(0, rows, step):
        columns = [_text(column).fill_null("\\N") for column in batch.slice(begin, step).columns]
        line = pc.binary_join_element_wise(*columns, "\t") if columns[1:] else columns[0]
        yield pc.binary_join_element_wise(line, "", "\n")


def payload(lines: pa.Array) -> memoryview:
    """Return a piece as bytes for COPY, without a copy: Arrow keeps its lines contiguous."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]


def _text(column: pa.Array) -> pa.Array:
    if _is_text(column.type):
        text = column.cast(pa.string())
        for raw, escaped in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
            text = pc.replace_substring(text, raw, escaped)
        return text
    if _is_bytes(column.type):
        return _hex(column.cast(pa.large_binary()))
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # Arrow keeps the instant; the zone only concerns how it is shown.
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    if pa.types.is_date64(column.type):
        column = column.cast(pa.date32())
    return column.cast(pa.string())


def _hex(column: pa.Array) -> pa.Array:
    r"""Return bytea's own notation, ``\x00ff``, with COPY's doubled backslash."""
    valid, _, data = column.buffers()
    ends = np.frombuffer(column.buffers()[1], np.int64)
    ends = ends[column.offset : column.offset + len(column) + 1]
    digits = binascii.hexlify(memoryview(data)[int(ends[0]) : int(ends[-1])]) if data else b""
    offsets = pa.py_buffer((2 * (ends - ends[0])).astype(np.int64))
    text = pa.Array.from_buffers(
        pa.large_string(), len(column), [None, offsets, pa.py_buffer(digits)]
    ).cast(pa.string())
    framed = pc.binary_join_element_wise("\\\\x", text, "")
    return framed if valid is None else pc.if_else(column.is_valid(), framed, None)


class LinesFingerprint(TextFingerprint):
    """Accumulates lines, over the batches of one transaction; made in the task."""

    texts = staticmethod(copy_lines)
