"""A user's Arrow function as a stage of a micro-batch; the same function as in continuous mode.

A file of its own: a Python worker imports what stands beside the stage, and needs no driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa

from connectors.arrow_transform import ArrowFunction, load_function, normalised
from connectors.records import SINK_SCHEMA, SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS


@dataclasses.dataclass(frozen=True, slots=True)
class ArrowStage:
    """The function of the stage; importable, so that only the user's function is pickled."""

    transform: str | ArrowFunction

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task."""
        function = load_function(self.transform)
        for batch in batches:
            yield complete(normalised(function(as_read(batch))))


def as_read(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of Spark's with the very types that the source has, as a continuous task
    sees them: Spark's own differ in the time zone and in the names inside of lists.
    """
    headers = "headers" in batch.schema.names
    return _as(batch, SOURCE_SCHEMA_WITH_HEADERS if headers else SOURCE_SCHEMA)


def complete(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a normalised batch with all columns of the sink: Spark's schema is declared before
    the function has run, and a batch must match it.
    """
    return _as(batch, SINK_SCHEMA)


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
