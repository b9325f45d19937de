"""A user's Arrow function as a stage of a micro-batch; the same function as in continuous mode.

It has its own file because a Python worker imports the whole module, and needs no driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa

from connectors.records.arrow_transform import ArrowFunction, complete, load_function, normalised
from connectors.records.message_schema import SINK_SCHEMA, SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS


@dataclasses.dataclass(frozen=True, slots=True)
class ArrowStage:
    """The function of the stage; importable, so Spark pickles only the user's function.

    Attributes:
        transform: the user's function, or its ``module:name``.
        schema: what the stage yields; a column that the function does not return is null.
    """

    transform: str | ArrowFunction
    schema: pa.Schema = dataclasses.field(default_factory=lambda: SINK_SCHEMA)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task."""
        function = load_function(self.transform)
        for batch in batches:
            # Spark's schema is declared before the function runs, and each batch must match it.
            yield complete(normalised(function(as_read(batch))), self.schema)


def as_read(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of Spark's with the exact types of the source, as in a continuous task.
    Spark's types differ in the time zone and in the names inside lists.
    """
    headers = "headers" in batch.schema.names
    return complete(batch, SOURCE_SCHEMA_WITH_HEADERS if headers else SOURCE_SCHEMA)
