"""Ranges as rows: what the source hands on when the stage that writes also reads.

A file of its own: the worker of the source needs nothing of that stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa

from connectors.kafka.source.message_columns import text_constant
from connectors.kafka.source.offsets import OffsetRange

#: One row per range, as JSON.
RANGES_SCHEMA: Final = pa.schema([pa.field("range", pa.string())])


def range_row(wanted: OffsetRange) -> pa.RecordBatch:
    """Return the row of a range."""
    text = msgspec.json.encode(wanted).decode()
    return pa.RecordBatch.from_arrays([text_constant(text, 1)], schema=RANGES_SCHEMA)


def ranges_in(rows: pa.RecordBatch) -> Iterator[OffsetRange]:
    """Yield the ranges of rows that `range_row` has made."""
    for text in rows.column(0):
        yield msgspec.json.decode(text.as_py(), type=OffsetRange)
