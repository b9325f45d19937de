"""A user's Arrow function: record batch to record batch, the same in both modes.

In micro-batches it runs in `mapInArrow`, continuously in a task's own loop. It sees the columns of
`SOURCE_SCHEMA` and returns columns of `SINK_SCHEMA`; `value` must be among them. It may drop rows
and make several of one, but must keep nothing from one call to the next: batches begin and end at
random places, and a replay cuts them elsewhere. A batch of the continuous mode has rows of several
partitions and topics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from connectors.records.message_schema import SINK_SCHEMA
from connectors.records.named_function import named_function
from transactions.errors import ConfigurationError

ArrowFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


def load_function(function: str | ArrowFunction) -> ArrowFunction:
    """Return the function; a text names it as ``module:name``.

    Raises:
        ConfigurationError: there is no such function.
    """
    if callable(function):
        return function
    return named_function(function, what="The Arrow function", option="transform")


def copy_records(
    batch: pa.RecordBatch, among: Sequence[str] = ("key", "value", "headers")
) -> pa.RecordBatch:
    """Hand key, value and headers on as they are: the transform of a plain copy.

    Args:
        batch: of the source.
        among: columns that are not among these are left out.
    """
    names = [name for name in ("key", "value", "headers") if name in among]
    return batch.select([name for name in names if name in batch.schema.names])


def fitted(transform: str | ArrowFunction, columns: Sequence[str] | None) -> str | ArrowFunction:
    """Return a transform that gives only a pipeline's columns, if the transform is our plain copy.
    A user's function is not changed: what it returns is checked.
    """
    if transform is not copy_records or columns is None:
        return transform
    return functools.partial(copy_records, among=tuple(columns))


def normalised(batch: object) -> pa.RecordBatch:
    """Check what a function returned.

    Raises:
        ConfigurationError: it is no record batch, or a column is missing, unknown or of a wrong
            type.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise _wrong(f"it returned {type(batch).__name__}, not pyarrow.RecordBatch")
    wanted = {field.name: field.type for field in SINK_SCHEMA}
    for field in batch.schema:
        if field.name not in wanted:
            raise _wrong(f"the sink has no column {field.name!r}; it has {', '.join(wanted)}")
    if "value" not in batch.schema.names:
        raise _wrong("it returned no column 'value'")
    try:
        columns = [batch.column(field.name).cast(wanted[field.name]) for field in batch.schema]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _wrong(f"a column has a wrong type: {error}") from error
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def columns_of(names: Sequence[str] | None) -> pa.Schema:
    """Return the columns of `SINK_SCHEMA` that a pipeline's rows have.

    Args:
        names: the wanted ones; None for all. A sink with columns of its own may lack some of them.

    Raises:
        ConfigurationError: a name is unknown or given twice, or `value` is missing.
    """
    if names is None:
        return SINK_SCHEMA
    known = SINK_SCHEMA.names
    wrong = [name for name in names if name not in known or list(names).count(name) > 1]
    if wrong or "value" not in names:
        raise ConfigurationError(
            "The columns of a pipeline are wrong.",
            where="columns",
            cause=f"{wrong[0]!r} is unknown or twice" if wrong else "'value' must be among them",
            option=f"columns={', '.join(names)}; known: {', '.join(known)}",
        )
    return pa.schema([field for field in SINK_SCHEMA if field.name in names])


def complete(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a normalised batch with all columns of a sink, null where the batch has none: a sink
    with columns of its own gets the schema before the function runs.

    Args:
        batch: columns of the schema, by name, in types that can be cast to the schema's.
        schema: the schema that the sink got.

    Raises:
        ConfigurationError: the batch has a column that is not in the schema.
    """
    if more := set(batch.schema.names) - set(schema.names):
        raise _wrong(f"it returned {min(more)!r}, which `columns` leaves out")
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _wrong(cause: str) -> ConfigurationError:
    return ConfigurationError(
        "The Arrow function returned something that cannot be written.",
        cause=cause,
        option="transform",
    )
