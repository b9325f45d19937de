"""Runs a job file: a session, the branches it describes, one driver of its mode."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.options.job_definition import JobDefinition
from connectors.options.table import CONTINUOUS, DEFAULT_LOG_LEVEL
from connectors.records.arrow_transform import ArrowFunction, copy_records, load_function
from connectors.spark import driver_jvm
from connectors.spark.class_archive import made_meanwhile
from connectors.spark.failures import error_in, reason
from connectors.spark.session import pipeline_session
from connectors.spark.submitted import is_submitted, stop_requests_forwarded
from transactions.coordinator import CheckpointReport
from transactions.errors import ConfigurationError, SparkOnceError, StoppedError
from transactions.sink import Sink

if TYPE_CHECKING:
    from connectors.pipeline.restoring import FromSavepoint
    from connectors.spark.pipeline import ArrowPipeline
    from connectors.spark.streaming_driver import StreamingDriver

#: PySpark logs an error of SQL as one line of JSON, 13,000 characters of Java's stack in it. The
#: job's error has the reason.
_QUERY_CONTEXT: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_NO_SESSION: Final = "SESSION_OR_CONTEXT_NOT_EXISTS"
SOURCE_VIEW = "source"
TRANSFORMED_VIEW = "transformed"


class Stop(Protocol):
    """Can request the stop of a job; see `connectors.cli.stop_switch`."""

    asked: bool

    def install(self) -> None:
        """Take the signals again."""

    def attach(self, carry_out: Callable[[], None]) -> None:
        """Set what a request does from now on."""


@stop_requests_forwarded()
def run_job(
    job: JobDefinition,
    *,
    stop: Stop,
    on_started: Callable[[int], None],
    on_checkpoint: Callable[[CheckpointReport], None],
    from_savepoint: FromSavepoint | None = None,
    accept_duplicates: bool = False,
) -> None:
    """Run a job until a stop is requested, or until it has read all data (`available-now`).

    Args:
        job: the job.
        stop: checked at each step here, and by the driver between two checkpoints.
        on_started: called once, with the number of transactions of an earlier run that this run
            committed.
        on_checkpoint: see `StreamingDriver`.
        from_savepoint: see `StreamingDriver`.
        accept_duplicates: see `StreamingDriver`.

    Raises:
        ConfigurationError: something was wrong before any data moved.
        SparkOnceError: the error that ended the job.
    """
    session: SparkSession | None = None
    driver: ArrowPipeline | None = None
    for name in _QUERY_CONTEXT:
        PySparkLogger.getLogger(name).addFilter(lambda _: False)
    try:
        session = pipeline_session(job.app_id, job.mode, master=job.master, conf=_conf(job))
        if is_submitted() and job.log_level is not None:
            session.sparkContext.setLogLevel(job.log_level)
        stop.install()  # Spark takes over ctrl-C when it makes its context
        if not stop.asked:
            make = _continuous if job.mode == CONTINUOUS else _micro_batches
            driver = make(job, session, on_checkpoint, from_savepoint, accept_duplicates)
            stop.attach(driver.request_stop)
            driver.start()
            on_started(driver.recommitted)
            wanted = job.class_archive and not is_submitted()
            with made_meanwhile() if wanted else nullcontext():
                driver.wait()
    except KeyboardInterrupt:  # from Spark's handler, before ours is installed again
        return
    except StoppedError:
        return
    except SparkOnceError:
        raise
    except Exception as error:
        if not stop.asked:
            raise _explained(error, job) from error
        # A stop that also reached the JVM: a good end, if no transaction waits for another run.
        if driver is not None and driver.unfinished is not None:
            raise driver.unfinished from error
    finally:
        if session is not None:
            driver_jvm.end(session)


def _micro_batches(
    job: JobDefinition,
    session: SparkSession,
    on_checkpoint: Callable[[CheckpointReport], None],
    from_savepoint: FromSavepoint | None,
    accept_duplicates: bool,
) -> ArrowPipeline:
    from connectors.spark.streaming_driver import StreamingDriver  # noqa: PLC0415 - see `_DRIVERS`

    driver = StreamingDriver(
        session,
        app_id=job.app_id,
        checkpoint=job.location,
        on_checkpoint=on_checkpoint,
        decision_log=job.decision_log,
        from_savepoint=from_savepoint,
        accept_duplicates=accept_duplicates,
        **job.driver,
    )
    if _is_one_pipe(job):
        _pipe(job, driver)
        return driver
    for frame, sink in branches(job, session, driver.read(job.source)):
        driver.write(frame, sink)
    for name, value in job.spark.items():  # a builder in the user's module has less to say
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return driver


def _pipe(job: JobDefinition, driver: StreamingDriver) -> None:
    find_arrow_function(job)
    transform = job.arrow or copy_records
    driver.pipe(job.source, job.sinks[0].sink, transform=transform, columns=job.columns)


def _is_one_pipe(job: JobDefinition) -> bool:
    """Return whether a job copies, or has an Arrow function, for one sink: no part of it needs
    Spark's SQL.
    """
    return job.function is None and job.sql is None and [one.sql for one in job.sinks] == [None]


def _continuous(
    job: JobDefinition,
    session: SparkSession,
    on_checkpoint: Callable[[CheckpointReport], None],
    from_savepoint: FromSavepoint | None,
    accept_duplicates: bool,
) -> ArrowPipeline:
    from connectors.spark.pipeline import arrow_pipeline  # noqa: PLC0415 - see `_DRIVERS`

    find_arrow_function(job)
    return arrow_pipeline(
        session,
        app_id=job.app_id,
        checkpoint=job.location,
        source=job.source,
        transform=job.arrow or copy_records,
        columns=job.columns,
        sink=job.sinks[0].sink,
        mode=CONTINUOUS,
        on_checkpoint=on_checkpoint,
        decision_log=job.decision_log,
        from_savepoint=from_savepoint,
        accept_duplicates=accept_duplicates,
        **job.driver,
    )


def find_function(job: JobDefinition) -> Callable[[DataFrame], Any] | None:
    """Import the transform function, None when the job has none.

    Raises:
        ConfigurationError: there is no such module or function.
    """
    if job.function is None:
        return None
    module, _, name = job.function.partition(":")
    with _user_code(job, "The transform function cannot be imported."):
        function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise ConfigurationError(
            "The transform is not a function.",
            where=f"{job.path}, [transform]",
            cause=f"it is of the type {type(function).__name__}",
            option=f"function = {job.function}",
        )
    found: Callable[[DataFrame], Any] = function
    return found


def find_arrow_function(job: JobDefinition) -> ArrowFunction | None:
    """Import the Arrow function, None when the job has none.

    Raises:
        ConfigurationError: there is no such module or function.
    """
    if job.arrow is None:
        return None
    with _user_code(job, "The Arrow function cannot be imported.", f"arrow = {job.arrow}"):
        try:
            return load_function(job.arrow)
        except ConfigurationError as error:
            raise ConfigurationError(
                error.what,
                where=f"{job.path}, [transform]",
                cause=error.cause,
                option=f"arrow = {job.arrow}",
            ) from error


def branches(
    job: JobDefinition, session: SparkSession, source: DataFrame
) -> Iterator[tuple[DataFrame, Sink]]:
    """Yield the DataFrame of every sink.

    Raises:
        ConfigurationError: a query does not fit the source, the function failed, or it returned
            neither a DataFrame nor one DataFrame per sink without a query of its own.
    """
    source.createOrReplaceTempView(SOURCE_VIEW)
    frames = _transformed(job, session, source)
    if isinstance(frames, DataFrame):
        frames.createOrReplaceTempView(TRANSFORMED_VIEW)
    for definition in job.sinks:
        sink = definition.sink
        if definition.sql is not None:
            with _user_code(job, f"The query of the sink {sink.name!r} fails.", "sql"):
                frame = session.sql(definition.sql)
            yield frame, sink
        elif isinstance(frames, DataFrame):
            yield frames, _as_returned(sink) if job.arrow else sink
        else:
            yield frames[sink.name], sink


def _as_returned(sink: Sink) -> Sink:
    """Return a sink that writes all that an Arrow function returns, as in one step: the frame has
    each column of a record, and null where the function returns none.
    """
    return dataclasses.replace(sink, write_timestamp=True) if isinstance(sink, KafkaSink) else sink


def _transformed(
    job: JobDefinition, session: SparkSession, source: DataFrame
) -> DataFrame | Mapping[str, DataFrame]:
    if job.arrow is not None or job.columns is not None:
        from connectors.spark.pipeline import transformed  # noqa: PLC0415 - see `_DRIVERS`

        find_arrow_function(job)
        return transformed(source, job.arrow or copy_records, job.columns)
    function = find_function(job)
    if job.sql is not None:
        with _user_code(job, "The transform query fails.", "sql"):
            return session.sql(job.sql)
    if function is None:
        copied = [name for name in ("key", "value", "headers") if name in source.columns]
        return source.select(*copied)
    with _user_code(job, "The transform function failed."):
        made = function(source)
    if isinstance(made, DataFrame):
        return made
    wanted = {one.sink.name for one in job.sinks if one.sql is None}
    if isinstance(made, Mapping) and set(made) == wanted:  # noqa: SIM102 - two questions
        if all(isinstance(frame, DataFrame) for frame in made.values()):
            return made
    returned = sorted(map(str, made)) if isinstance(made, Mapping) else type(made).__name__
    raise ConfigurationError(
        "The transform function must return a DataFrame, or a dict with one DataFrame for each "
        "sink.",
        where=f"{job.path}, [transform]",
        cause=f"it returned {returned}; sinks without a query: {sorted(wanted)}",
        option=f"function = {job.function}",
    )


@contextmanager
def before_session() -> Iterator[None]:
    """Look at the user's module in this block: it cannot start a session.

    `SparkSession.builder.getOrCreate()` in a module would start a JVM with none of the settings of
    a pipeline, even for a mere check. Here it fails as `@udf("string")` does (see `wants_session`);
    when the module is imported again, it gets the session of the job.
    """

    def refuse(*_: object, **__: object) -> None:
        raise PySparkRuntimeError(errorClass=_NO_SESSION, messageParameters={})

    start = SparkContext.__dict__["_ensure_initialized"]
    if SparkContext._gateway is None:  # noqa: SLF001 - else there is a session
        SparkContext._ensure_initialized = classmethod(refuse)  # noqa: SLF001
    try:
        yield
    finally:
        SparkContext._ensure_initialized = start  # noqa: SLF001


def wants_session(error: ConfigurationError) -> bool:
    """Return whether a module could not be imported because there is no session yet.

    `@udf("string")` lets the session read the type while the module is imported. Tasks import the
    module of an Arrow function where there is never a session.
    """
    cause = error.__cause__
    return isinstance(cause, PySparkException) and cause.getCondition() == _NO_SESSION


@contextmanager
def _user_code(job: JobDefinition, what: str, key: str = "function") -> Iterator[None]:
    """Run the user's code: whatever it raises happened before any data moved."""
    try:
        yield
    except SparkOnceError:
        raise
    except Exception as error:
        raise ConfigurationError(
            what,
            where=f"{job.path}, [transform]",
            cause=reason(error),
            option=f"function = {job.function}" if key == "function" else key,
        ) from error


def _conf(job: JobDefinition) -> dict[str, str]:
    if is_submitted():
        return {**job.spark}  # its JVM has the log that spark-submit was told
    # At the default level log4j2-quiet.properties leaves out what the job's error tells.
    wanted = job.log_level or DEFAULT_LOG_LEVEL
    told = "off" if wanted == DEFAULT_LOG_LEVEL else wanted
    level = f"-Dsparkonce.log.level={wanted} -Dsparkonce.log.told={told}"
    name = "spark.driver.extraJavaOptions"
    return {**job.spark, name: f"{level} {job.spark.get(name, '')}".rstrip()}


def _explained(error: Exception, job: JobDefinition) -> SparkOnceError:
    found = error_in(str(error))
    if found is not None:
        return found
    return SparkOnceError(
        "Spark ended the job.",
        where=f"application {job.app_id!r}, {job.path}",
        cause=reason(error),
        option=f"log_level = {job.log_level or DEFAULT_LOG_LEVEL}: WARN shows more",
    )
