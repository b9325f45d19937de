"""A user's Arrow function as a stage of a micro-batch; the same function as in continuous mode.

A file of its own: a Python worker imports what stands beside the stage, and needs no driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa

from connectors.records.arrow_transform import ArrowFunction, complete, load_function, normalised
from connectors.records.message_schema import SINK_SCHEMA, SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS


@dataclasses.dataclass(frozen=True, slots=True)
class ArrowStage:
    """The function of the stage; importable, so that only the user's function is pickled.

    Attributes:
        transform: the user's function, or its ``module:name``.
        schema: what it yields, with nulls for what the function does not return.
    """

    transform: str | ArrowFunction
    schema: pa.Schema = dataclasses.field(default_factory=lambda: SINK_SCHEMA)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task."""
        function = load_function(self.transform)
        for batch in batches:
            # Spark's schema is declared before the function has run, and a batch must match it.
            yield complete(normalised(function(as_read(batch))), self.schema)


def as_read(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of Spark's with the very types that the source has, as a continuous task
    sees them: Spark's own differ in the time zone and in the names inside of lists.
    """
    headers = "headers" in batch.schema.names
    return complete(batch, SOURCE_SCHEMA_WITH_HEADERS if headers else SOURCE_SCHEMA)
