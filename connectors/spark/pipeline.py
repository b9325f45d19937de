"""One pipeline, Kafka source -> Arrow function -> sink, in the mode that an option chooses.

    pipeline = arrow_pipeline(
        spark,
        app_id="flights",
        checkpoint="/data/flights",
        source=KafkaSource(bootstrap_servers=..., subscribe="flights"),
        transform="my_package.flights:clean",
        sink=KafkaSink(bootstrap_servers=..., topic="flights-clean"),
        mode="continuous",
    )
    pipeline.run()

The function sees the same columns in both modes, and its result is checked in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from connectors.options.kafka_source import KafkaSource
from connectors.options.modes import (
    check_mode,
    check_options,
    check_source,
    one_sink,
    refuse_columns,
)
from connectors.options.table import CONTINUOUS, MICRO_BATCH
from connectors.records.arrow_transform import (
    ArrowFunction,
    columns_of,
    copy_records,
    fitted,
    load_function,
)
from connectors.records.message_schema import SINK_SCHEMA
from connectors.spark.arrow_stage import ArrowStage
from connectors.spark.continuous_driver import ContinuousDriver
from connectors.spark.streaming_driver import StreamingDriver
from transactions.checkpoint_location import CheckpointLocation
from transactions.coordinator import CheckpointReport
from transactions.errors import ConfigurationError, nearest
from transactions.sink import Sink

#: Arguments that define the pipeline itself and do not tune its mode.
_PIPELINE: Final = frozenset(
    {"self", "spark", "app_id", "checkpoint", "source", "transform", "columns", "sink"}
)


class ArrowPipeline(Protocol):
    """A pipeline in either mode: the life that `StreamingDriver` and `ContinuousDriver` share."""

    recommitted: int

    @property
    def reports(self) -> Sequence[CheckpointReport]:
        """The last checkpoints, newest last; bounded."""

    @property
    def restarts(self) -> int:
        """How often the restart strategy has started the pipeline again."""

    @property
    def unfinished(self) -> BaseException | None:
        """The reason why an end now is not good; None when everything decided is finished."""

    def start(self) -> None:
        """Check, fence older runs, recover what they decided, begin.

        Raises:
            SparkOnceError: see the drivers.
        """

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the pipeline has ended; return True if it has. Restarts happen in this call.

        Raises:
            SparkOnceError: the error that ended it, when it is not restarted.
        """

    def request_stop(self) -> None:
        """Request a stop and return at once; `wait` performs it. Safe in a signal handler."""

    def stop(self) -> None:
        """Stop between two checkpoints. Safe from any thread."""

    def wait(self) -> None:
        """Wait until the pipeline has ended or a stop was requested; then stop it.

        Raises:
            SparkOnceError: the error that ended it.
        """

    def run(self) -> None:
        """Call start(), then wait; ctrl-C, SIGTERM and SIGHUP stop between two checkpoints.

        Raises:
            SparkOnceError: the error that ended it.
        """


def arrow_pipeline(
    spark: SparkSession,
    *,
    app_id: str,
    checkpoint: str | Path | CheckpointLocation,
    source: KafkaSource,
    sink: Sink,
    transform: str | ArrowFunction = copy_records,
    columns: Sequence[str] | None = None,
    mode: str = MICRO_BATCH,
    **options: Any,
) -> ArrowPipeline:
    """Make a pipeline; nothing moves before `start` or `run`.

    Args:
        spark: a classic session.
        app_id: stable name of the pipeline, unique on its Kafka clusters.
        checkpoint: a folder of its own, or an address in an object store or in HDFS. It belongs to
            one mode. To change its mode, an application takes a new application id and checkpoint,
            and begins at offsets that it names.
        source: what to read.
        sink: what to write; a sink that is not Kafka's refuses here the columns it cannot write.
        transform: see `connectors.records.arrow_transform`; a function or its ``module:name``.
        columns: the columns of `SINK_SCHEMA` for a sink that is not Kafka's; a column that the
            function does not return is null. By default all columns.
        mode: ``micro-batch`` or ``continuous``.
        options: arguments of `StreamingDriver` or `ContinuousDriver`, depending on the mode.

    Raises:
        ConfigurationError: an option is unknown or belongs to the other mode, or a driver
            refuses it.
    """
    check_mode(mode)
    driver = ContinuousDriver if mode == CONTINUOUS else StreamingDriver
    check_options(mode, options)
    _check_known(options, options_of(driver), mode)
    check_source(mode, source)
    load_function(transform)
    refuse_columns(columns, sink)
    if mode == CONTINUOUS:
        return ContinuousDriver(
            spark,
            app_id=app_id,
            checkpoint=checkpoint,
            source=source,
            transform=transform,
            columns=columns,
            sink=one_sink(sink),
            **options,
        )
    batches = StreamingDriver(spark, app_id=app_id, checkpoint=checkpoint, **options)
    batches.pipe(source, sink, transform=transform, columns=columns or SINK_SCHEMA.names)
    return batches


def transformed(
    records: DataFrame, transform: str | ArrowFunction, columns: Sequence[str] | None = None
) -> DataFrame:
    """Return the result of an Arrow function for a source's records, in all columns of a sink or
    in the given ones.

    Raises:
        ConfigurationError: see `connectors.records.arrow_transform.columns_of`.
    """
    schema = columns_of(columns)
    stage = ArrowStage(fitted(transform, columns), schema)
    return records.mapInArrow(stage, from_arrow_schema(schema))


def options_of(driver: type) -> frozenset[str]:
    """Return the options of a driver, without the arguments that define the pipeline."""
    return frozenset(inspect.signature(driver).parameters) - _PIPELINE


def _check_known(given: dict[str, Any], known: frozenset[str], mode: str) -> None:
    for name, value in given.items():
        if name not in known:
            raise ConfigurationError(
                f"A pipeline has no option {name!r}.",
                where=f"a pipeline in {mode} mode",
                cause=nearest(name, sorted(known)),
                option=f"{name}={value}",
            )
