"""The fingerprint of rows of any schema: `TextFingerprint` over one framed text per row.

It depends only on the rows: not on their order, on batches, on the file's format or compression,
nor on the time zone in which a timestamp is shown. Every value is framed by its length and null by
``-``, so that no two rows share a text. A decision log holds the sums, so the texts must not
change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.records.fingerprint import TextFingerprint
from transactions.errors import ConfigurationError

_ROWS: Final = 1 << 12  # a binary array ends at two gigabytes


class RowFingerprint(TextFingerprint):
    """Accumulates over the batches of one transaction; made in the task."""

    @staticmethod
    def texts(batch: pa.RecordBatch) -> Iterator[pa.Array]:
        """See `TextFingerprint.texts`; of a batch with at least one column.

        Raises:
            pa.ArrowException: a column has a type without a text.
        """
        for begin in range(0, batch.num_rows, _ROWS):
            part = batch.slice(begin, _ROWS)
            yield _joined([_text(column) for column in part.columns])


def check_comparable(schema: pa.Schema, where: str) -> None:
    """Check that rows of a schema have a fingerprint.

    Raises:
        ConfigurationError: a column has a type without a text; `where` is in the error.
    """
    for field in schema:
        try:
            _text(pa.array([], field.type))
        except (pa.ArrowException, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"Rows with a column of type {field.type} cannot be compared.",
                where=f"{where}, column {field.name!r}: {error}",
                cause="a replay is compared with what was decided",
                option="cast or drop the column in the frame",
            ) from error


def _joined(columns: list[pa.Array]) -> pa.Array:
    """Frame the texts of each row and join them."""
    frames: list[Any] = []
    for column in columns:
        frames += [pc.binary_length(column).cast(pa.string()).cast(pa.binary()), column]
    return pc.binary_join_element_wise(
        *frames, b":", null_handling="replace", null_replacement=b"-"
    )


def _text(column: pa.Array) -> pa.Array:
    """Return a binary array of the same length, null where the column is null."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _text(column.storage)
    if pa.types.is_dictionary(kind):
        return _text(column.dictionary_decode())
    if pa.types.is_struct(kind):
        return _with_nulls_of(column, _joined([_text(field) for field in column.flatten()]))
    if pa.types.is_map(kind):
        column = column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        return _with_nulls_of(column, _list_text(column))
    if _is_list(kind):
        return _with_nulls_of(column, _list_text(column))
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif pa.types.is_float16(kind):
        column = column.cast(pa.float32())
    if not _is_binary(kind):
        column = column.cast(pa.string())
    return column.cast(pa.binary())


def _list_text(column: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    # Each element has its own frame: an empty list differs from a list of an empty text.
    elements = _joined([_text(column.flatten())])  # without those of null lists
    return pc.binary_join(pa.ListArray.from_arrays(offsets, elements), b",")


def _with_nulls_of(column: pa.Array, texts: pa.Array) -> pa.Array:
    if not column.null_count:
        return texts
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.binary()))


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def _is_binary(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind))
