"""Each row of a batch of any schema as bytes, so that rows can be compared by a fingerprint.

`connectors.fingerprint` knows the columns of a Kafka sink; a write-ahead sink takes any. Here a row
becomes one value: every column framed by its length, a null told from an empty value. Numbers are
their bytes in memory, because a text form could change with the version of Arrow, and a decision
log holds what is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from transactions.errors import ConfigurationError


def row_bytes(batch: pa.RecordBatch) -> pa.Array:
    """Return a binary array, a value for each row; two rows have one value if they are equal.

    Raises:
        TypeError: a column has a type that has no bytes of its own here (a union, a run-end
            encoding).
    """
    return _joined(batch.columns, batch.num_rows)


def check_comparable(schema: pa.Schema, where: str) -> None:
    """Check that rows of a schema can be compared.

    Raises:
        ConfigurationError: a column has a type that has no bytes here.
    """
    for field in schema:
        try:
            row_bytes(pa.record_batch({field.name: pa.array([], field.type)}))
        except (pa.ArrowException, TypeError) as error:
            raise ConfigurationError(
                f"Rows with a column of type {field.type} cannot be compared.",
                where=f"{where}, column {field.name!r}: {error}",
                cause="a replay is compared with what was decided",
                option="cast or drop the column in the frame",
            ) from error


def _joined(columns: Sequence[pa.Array], rows: int) -> pa.Array:
    pieces = [piece for column in columns for piece in _framed(_column_bytes(column))]
    if not pieces:
        return pa.array([b""] * rows, pa.binary())
    nothing = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(
        *pieces, nothing, null_handling="replace", null_replacement=b""
    )


def _framed(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """``<length>:<bytes>``, and ``-`` for a null: no two rows of columns give one text."""
    lengths = pc.binary_length(values).cast(pa.string())
    heads = pc.binary_join_element_wise(lengths, pa.scalar(":"), pa.scalar(""))
    return pc.fill_null(heads, "-").cast(pa.binary()), values


def _column_bytes(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _column_bytes(column.dictionary_decode())
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.binary())
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
        kind = column.type
    if _is_text(kind):
        return column.cast(pa.binary())
    if pa.types.is_map(kind):
        pairs = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        column = column.cast(pa.list_(pairs))
        kind = column.type
    if pa.types.is_struct(kind):
        children = _joined(column.flatten(), len(column))
        return pc.if_else(column.is_valid(), children, pa.scalar(None, pa.binary()))
    if _is_list(kind):
        return _list_bytes(column)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return column.view(pa.binary(kind.bit_width // 8)).cast(pa.binary())
    raise TypeError(f"a column of type {kind} cannot be compared")


def _list_bytes(column: pa.Array) -> pa.Array:
    """A list is the framed values of its elements, one after the other."""
    values = _joined([column.flatten()], len(column.flatten())).to_pylist()
    lengths = pc.list_value_length(column).to_pylist()
    found: list[bytes | None] = []
    begin = 0
    for length in lengths:
        if length is None:
            found.append(None)
            continue
        found.append(b"".join(values[begin : begin + length]))
        begin += length
    return pa.array(found, pa.binary())


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
