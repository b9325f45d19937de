"""What a user says in ``writeStream.format("kafka-exactly-once")`` or ``df.write``: its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import orjson

from connectors.kafka.sink.kafka_sink import PLACE, KafkaSink
from connectors.machine.user_folders import checkpoint_folder
from connectors.options.java_settings import tell_elsewhere
from connectors.options.option import checked_app_id
from connectors.options.query_table import QUERY
from transactions.errors import ConfigurationError

#: Spark's `DataStreamWriter.queryName` puts it among the options, in small letters for PySpark.
_NAME_OF_QUERY: Final = "queryname"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """The target of one query or job. Read where Spark plans the write; plain data.

    Attributes:
        sink: the Kafka sink.
        checkpoint: the folder of the user's ``checkpointLocation``.
        app_id: the application: of a query, or the ``job.id`` of a job.
        is_job: it is a job of ``df.write``, not a streaming query.
        checkpoint_timeout_s: how long one batch may take, from its plan to its commit; the commit
            has as long again.
        restart_budget_s: how long a restart may take.
        accept_duplicates: see `RunOptions`.
    """

    sink: KafkaSink
    checkpoint: Path
    app_id: str
    is_job: bool
    checkpoint_timeout_s: float
    restart_budget_s: float
    accept_duplicates: bool

    @classmethod
    def of_query(cls, options: Mapping[str, str]) -> Self:
        """Read the options of ``writeStream``. A name of the query changes nothing, as in Spark: it
        is no application, because it can change, and two queries can have the same.

        Raises:
            ConfigurationError: an option is missing, unknown or wrong.
        """
        values, sink = _values({k: v for k, v in options.items() if k.lower() != _NAME_OF_QUERY})
        _refuse(values, "job_id", "it names a job of df.write; a query has app.id")
        folder = _folder(values, "option('checkpointLocation', FOLDER) of writeStream")
        app_id = values.pop("app_id") or _id_of_query(folder)
        return cls(
            sink=sink, checkpoint=folder, app_id=checked_app_id(str(app_id)), is_job=False, **values
        )

    @classmethod
    def of_job(cls, options: Mapping[str, str]) -> Self:
        """Read the options of ``df.write``.

        Raises:
            ConfigurationError: an option is missing, unknown or wrong.
        """
        values, sink = _values(options)
        _refuse(values, "app_id", "it names a streaming query; a job has job.id")
        folder = _folder(values, "option('checkpointLocation', FOLDER) of df.write")
        job_id = values.pop("job_id")
        if not job_id:
            raise ConfigurationError(
                "A batch write needs a name.",
                where="options of df.write",
                cause="after a crash only its name tells that a job was written before; without "
                "it a second run would write everything twice",
                option="job.id=(absent): a name that each run of this job has, such as load-7",
            )
        return cls(
            sink=sink, checkpoint=folder, app_id=checked_app_id(str(job_id)), is_job=True, **values
        )


def _values(options: Mapping[str, str]) -> tuple[dict[str, Any], KafkaSink]:
    """Return the values of `QUERY`, by their names in Python, and the sink of all other options."""
    values = {row.python_name: row.value_in("") for row in QUERY.options}
    others: dict[str, str] = {}
    for name, text in options.items():
        row = QUERY.find(name)
        if row is None:
            others[name] = text
            continue
        try:
            values[row.python_name] = row.kind.parse(text)
        except ValueError as error:
            raise ConfigurationError(
                f"The value of {row.name} cannot be used: {row.kind.problem}.",
                where="options of kafka-exactly-once",
                cause="a wrong option",
                option=f"{row.name}={text}",
            ) from error
    tell_elsewhere(PLACE)  # the commit process does it: Spark reads these options in any worker
    return values, KafkaSink.from_options(others, also=QUERY.names)


def _refuse(values: dict[str, Any], name: str, cause: str) -> None:
    value = values.pop(name)
    if value:
        row = next(one for one in QUERY.options if one.python_name == name)
        raise ConfigurationError(
            f"The option {row.name} does not belong here.",
            where="options of kafka-exactly-once",
            cause=cause,
            option=f"{row.name}={value}",
        )


def _folder(values: dict[str, Any], option: str) -> Path:
    checkpoint = values.pop("checkpoint")
    if not checkpoint:
        raise ConfigurationError(
            "An exactly-once write needs a checkpoint of its own.",
            where="options of kafka-exactly-once",
            cause="what is decided must be known after a crash; the setting "
            "spark.sql.streaming.checkpointLocation does not reach the sink",
            option=option,
        )
    return checkpoint_folder(str(checkpoint))


def _id_of_query(checkpoint: Path) -> str:
    """Return the default application of a query. Spark has written its id before it plans."""
    return f"query-{query_id(checkpoint)}"


def query_id(checkpoint: Path) -> str:
    """Return Spark's id of the query of a checkpoint.

    Raises:
        ConfigurationError: the folder is not the checkpoint of a query.
    """
    path = checkpoint / "metadata"
    try:
        return str(orjson.loads(path.read_bytes())["id"])
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigurationError(
            "The checkpoint does not say which query it is of.",
            where=f"{path}: {error}",
            cause="Spark keeps the query's checkpoint in another place, or on another host",
            option=f"checkpointLocation={checkpoint}",
        ) from error
