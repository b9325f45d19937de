"""Branches: several DataFrames, each with a sink, in one query under one decision.

Each branch has a struct column of its own, beside a routing column. So stateless and stateful
branches of one source share the batch, the state and the decision.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from connectors.options.kafka_source import KafkaSource
from connectors.options.modes import refuse_columns
from connectors.options.sink import MessageSink, takes_messages
from connectors.records.arrow_transform import (
    ArrowFunction,
    columns_of,
    copy_records,
    fitted,
    load_function,
)
from connectors.spark.fused_stage import FusedStage, ReadingStage
from connectors.spark.sink_stage import ROUTE, SinkStage
from transactions.errors import ConfigurationError
from transactions.sink import Sink

logger = logging.getLogger(__name__)

#: A column that a record has a place for, and that Spark's own sink leaves out.
TIMESTAMP: Final = "timestamp"

_CTE_REFERENCE: Final = "CTERelationRef"
_BYTES: Final = (t.BinaryType, t.StringType)
_ACCEPTED: Final[dict[str, tuple[type[t.DataType], ...]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": (t.ArrayType,),
    "topic": (t.StringType,),
    "partition": (t.IntegerType, t.ShortType, t.ByteType),
    "timestamp": (t.TimestampType,),
}
_CASTS: Final = {
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """A DataFrame in the sink's columns, and its sink.

    Attributes:
        frame: the records; with `reading`, the ranges of a source.
        sink: the target.
        reading: gives the records of the ranges in the sink's own stage.
    """

    frame: DataFrame
    sink: Sink
    reading: ReadingStage | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema that its record batches have in a task."""
        if self.reading is not None:
            return self.reading.written
        return schema_in_a_task(self.frame.schema, self.frame.sparkSession)

    def last_stage(self, sink: SinkStage) -> SinkStage | FusedStage:
        """Return the function of the stage that writes the branch, if it is the only branch."""
        return sink if self.reading is None else FusedStage(reading=self.reading, sink=sink)


def schema_in_a_task(schema: t.StructType, spark: SparkSession) -> pa.Schema:
    """Return the schema that record batches of a Spark schema have in a task."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    return to_arrow_schema(schema, timezone=zone)


def told_columns(
    sink: Sink, columns: Sequence[str] | None, spark: SparkSession
) -> dict[str, pa.Schema]:
    """Return the exact schema that a micro-batch would have, for a sink that is not Kafka's.

    Raises:
        ConfigurationError: the sink cannot write these columns.
    """
    refuse_columns(columns, sink)
    if takes_messages(sink):
        return {}
    schema = schema_in_a_task(from_arrow_schema(columns_of(columns)), spark)
    sink.check_columns(schema)
    return {sink.name: schema}


def make_branch(frame: DataFrame, sink: Sink, *, warn: bool = True) -> Branch:
    """Check the columns for a sink. Kafka's columns are key, value, headers, topic, partition and
    timestamp (with `write_timestamp`), and are cast; other columns are left out, as in Spark's own
    sink, and named in the log. A sink that is not Kafka's checks its columns itself.

    Args:
        frame: what is written.
        sink: the target.
        warn: False where the columns that are left out were named before.

    Raises:
        ConfigurationError: a column is missing, or has a type that the sink cannot write; the text
            names the column.
    """
    branch = Branch(_as_messages(frame, sink, warn=warn) if takes_messages(sink) else frame, sink)
    sink.check_columns(branch.schema)
    return branch


def make_reading(
    spark: SparkSession,
    source: KafkaSource,
    sink: Sink,
    transform: str | ArrowFunction,
    columns: Sequence[str] | None,
) -> ReadingStage:
    """Return what reads and transforms in the sink's stage, with the columns that three stages give
    the sink.

    Args:
        spark: the session.
        source: what is read.
        sink: the target.
        transform: see `connectors.records.arrow_transform`.
        columns: see `columns_of`; by default those of a plain copy, or all.

    Raises:
        ConfigurationError: `columns` is wrong; the sink cannot write these columns; the function is
            not there, or cannot be sent to a worker.
    """
    load_function(transform)
    if columns is None and transform is copy_records:
        columns = ["key", "value", *(["headers"] if source.include_headers else [])]
    declared = columns_of(columns)
    schema = from_arrow_schema(declared)
    if takes_messages(sink):
        kept = kept_columns(schema, sink, warn=False, timestamps=True)
        schema = t.StructType([schema[name] for name in kept])
    reading = ReadingStage(
        source=source,
        transform=fitted(transform, columns),
        declared=declared,
        written=schema_in_a_task(schema, spark),
    )
    sink.check_columns(reading.written)
    _check_sendable(reading)
    return reading


def _check_sendable(reading: ReadingStage) -> None:
    """Check what Spark would find out after the start: then this run has fenced the older one."""
    try:
        CloudPickleSerializer().dumps(reading)
    except Exception as error:
        raise ConfigurationError(
            "The Arrow function cannot be sent to Spark's workers.",
            where=str(reading.transform),
            cause=f"{type(error).__name__}: {error}",
            option="transform: a function without live objects (locks, clients, the session), or "
            "its module:name",
        ) from error


def kept_columns(
    schema: t.StructType, sink: MessageSink, *, warn: bool, timestamps: bool | None = None
) -> list[str]:
    """Return the columns of a frame that are written, in the order of the record.

    Args:
        schema: of the frame.
        sink: the target; its topic wins over a column `topic`, as in Spark's sink.
        warn: name the other columns in the log.
        timestamps: write the column `timestamp`; None: as the sink's option says.

    Raises:
        ConfigurationError: a column is missing, or has a type that the sink cannot write.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if warn:
        tell_left_out(sink.name, left_out(schema, sink))
    if not (sink.write_timestamp if timestamps is None else timestamps):
        types.pop(TIMESTAMP, None)
    for name, kind in types.items():
        if name in _ACCEPTED and not isinstance(kind, _ACCEPTED[name]):
            raise _wrong(
                sink,
                f"The column {name!r} has the type {kind.simpleString()}.",
                f"it must be {' or '.join(one.typeName() for one in _ACCEPTED[name])}",
            )
    if "value" not in types:
        raise _wrong(
            sink, "The required column 'value' is missing.", f"the columns are {list(types)}"
        )
    if sink.topic is None and "topic" not in types:
        raise _wrong(sink, "A topic is needed: as an option, or as a column.", "there is neither")
    return [name for name in _CASTS if name in types and (name != "topic" or sink.topic is None)]


def left_out(schema: t.StructType, sink: MessageSink) -> list[str]:
    """Return the columns of a frame that are not written."""
    written = _ACCEPTED.keys() - (set() if sink.write_timestamp else {TIMESTAMP})
    return sorted(set(schema.names) - written)


def tell_left_out(sink: str, columns: Sequence[str]) -> None:
    """Name these columns in the log, if there are any."""
    if others := [name for name in columns if name != TIMESTAMP]:
        logger.warning(
            "sink %s: a Kafka record has no place for the columns %s; they are not written",
            sink,
            ", ".join(others),
        )
    if TIMESTAMP in columns:
        logger.warning(
            "sink %s: the column timestamp is not written, as in Spark's own sink: a record has "
            "the time of its writing; writeTimestamp=true gives it the time of the column",
            sink,
        )


def _as_messages(frame: DataFrame, sink: MessageSink, *, warn: bool) -> DataFrame:
    kept = kept_columns(frame.schema, sink, warn=warn)
    return frame.select(*(f.col(n).cast(_CASTS[n]).alias(n) for n in kept))


def unite(branches: list[Branch]) -> DataFrame:
    """Return the one DataFrame of the query; see `SinkStage` for its columns."""
    if len(branches) == 1:
        return branches[0].frame
    routed = [
        branch.frame.select(
            f.lit(number).cast("int").alias(ROUTE), f.struct("*").alias(str(number))
        )
        for number, branch in enumerate(branches)
    ]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), routed)


def places_of_sources(frame: DataFrame) -> int:
    """Return how many sources Spark counts in a plan: it counts each use of a streaming frame. Of a
    common table expression (`WITH`) it counts the definition, and no reference to it.
    """
    found = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - no public way
    leaves = [found.apply(number) for number in range(found.size())]
    return sum(one.isStreaming() and one.nodeName() != _CTE_REFERENCE for one in leaves)


def _wrong(sink: MessageSink, what: str, cause: str) -> ConfigurationError:
    return ConfigurationError(
        what, where=f"sink {sink.name!r}", cause=cause, option=f"topic={sink.topic}"
    )
