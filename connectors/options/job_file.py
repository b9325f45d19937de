"""A job file: the whole pipeline as TOML, parsed once into one frozen object. It reads only the
file.

    [app]        id, checkpoint, store.* (options of the object store of the checkpoint), guarantee
                 (of every sink: exactly-once, at-least-once, none; a sink can have its own), mode,
                 checkpoint_timeout, restart_budget, master, restart_strategy ("none",
                 "fixed-delay(attempts=3, delay=10s)", ...), log_level; of one mode only: see
                 `connectors.options.modes`
    [source]     Spark's option names: kafka.bootstrap.servers, subscribe, startingOffsets, ...
    [transform]  sql = "SELECT ... FROM source", function = "module:name" (DataFrames), or
                 arrow = "module:name" (record batches, in both modes); without it a copy;
                 columns = "key, value": what an arrow function, or the copy, gives to the sinks
    [[sink]]     Spark's option names: kafka.bootstrap.servers, topic, ...; name; a sql of its own;
                 or another kind of sink (see `connectors.options.sink_kinds`) and its options
    [decision_log]  address = "s3://bucket/prefix" and options of the object store; without it the
                 log lies in the checkpoint folder (see `transactions.log_location`)
    [spark]      Spark settings, with or without "spark." before them

An unknown key is an error, never ignored. `${NAME}` in a value is an environment variable,
`${file:PATH}` the content of a file without the line end, `$${` a literal `${`. Relative paths are
relative to the job file; an address (`file:/data`, `s3://bucket/prefix`) stays as it is.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from connectors.options.client_options import is_secret
from connectors.options.guarantee import GUARANTEES
from connectors.options.job_definition import JobDefinition, SinkDefinition
from connectors.options.kafka_source import KafkaSource
from connectors.options.modes import check_mode, check_options
from connectors.options.option import Option, checked_app_id
from connectors.options.sink_kinds import sink_from_options
from connectors.options.table import (
    APP,
    CLASS_ARCHIVE,
    LOG_LEVELS,
    MICRO_BATCH,
    PIPELINE,
    TRANSFORM,
)
from transactions.errors import ConfigurationError, nearest
from transactions.log_location import SCHEME, LogLocation, refuse_home

_TABLES: Final = ("app", "source", "transform", "sink", "decision_log", "spark")
_VARIABLE: Final = re.compile(r"\$(\$)?\{([^{}]*)\}")
_FILE: Final = "file:"
_LOGIN_FILE: Final = re.compile(r"kafka\.(ssl\..*|https\.ca)\.location")
_HDFS: Final = "hdfs://"
_HADOOP: Final = "spark.hadoop."
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

#: How tomllib's errors begin -> a hint that can help.
_HINTS: Final = {
    ("Invalid value", "Expected newline"): 'quote text values: checkpoint = "state/flights"',
    ("Cannot", "Duplicate"): "give each key and [table] once; each sink begins with [[sink]]",
}


def load_job(path: Path, environment: Mapping[str, str]) -> JobDefinition:
    """Read a job file.

    Args:
        path: the file.
        environment: for `${NAME}`.

    Raises:
        ConfigurationError: it cannot be read, or something in it is wrong.
    """
    path = path.absolute()
    try:
        text = path.read_text("utf-8-sig")  # some editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            "The job file cannot be read.",
            where=str(path),
            cause=str(error),
            option=f"sparkonce run {path.name}",
        ) from error
    return parse_job(text, path, environment)


def parse_job(text: str, path: Path, environment: Mapping[str, str]) -> JobDefinition:
    """Parse the text of a job file; errors name `path`, and paths are relative to its folder.

    Raises:
        ConfigurationError: the first thing that is wrong.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(
            "The job file is not valid TOML.",
            where=str(path),
            cause=str(error),
            option=_hint(str(error)) or f"sparkonce run {path.name} --check",
        ) from error
    return _Parser(path, environment).job(tables)


class _Parser:
    """One parse; it knows the file, for the texts of errors."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self._path = path
        self._environment = environment

    def job(self, tables: Mapping[str, Any]) -> JobDefinition:
        self._only(tables, _TABLES, "the file", "table")
        app, store = self._app(tables)
        for name in ("id", "checkpoint"):
            if not app.get(name, "").strip():
                what = f"[app] needs {name!r}."
                raise self._wrong(what, "app", "it is absent or empty", f"{name} = ...")
        guarantee = app.get("guarantee", GUARANTEES[0])
        if guarantee not in GUARANTEES:
            known = f"known: {', '.join(GUARANTEES)}"
            raise self._wrong("There is no such guarantee.", "app", known, f"guarantee={guarantee}")
        mode = self._mode(app)
        transform = self._transform(self._table(tables, "transform", TRANSFORM.names))
        spark = {
            name if name.startswith("spark.") else f"spark.{name}": value
            for name, value in self._table(tables, "spark").items()
        }
        optional = {
            "master": app.get("master"),
            "log_level": self._log_level(app),
            "class_archive": self._parsed(CLASS_ARCHIVE, app.get(CLASS_ARCHIVE.name, "true")),
            "decision_log": self._decision_log(tables, spark),
            **transform,
        }
        job = JobDefinition(
            path=self._path,
            app_id=self._app_id(app["id"]),
            checkpoint=self._relative(app["checkpoint"]),
            store=_hadoop_settings(app["checkpoint"], spark) | store,
            mode=mode,
            driver=self._driver(app),
            source=self._source(tables),
            sinks=self._sinks(tables, guarantee),
            spark=spark,
            **{name: value for name, value in optional.items() if value is not None},  # type: ignore[arg-type]
        )
        job.validate()
        return job

    # -- tables -------------------------------------------------------------------------------

    def _table(
        self, tables: Mapping[str, Any], name: str, known: Iterable[str] = ()
    ) -> dict[str, str]:
        table = tables.get(name, {})
        if not isinstance(table, dict):
            raise self._wrong(f"{name!r} must be a table.", name, f"write [{name}]", f"{name} = ")
        if known:
            self._only(table, known, f"[{name}]", "key")
        return self._flat(table, name)

    def _app(self, tables: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the options of [app], and those of the object store of its checkpoint."""
        table, store = tables.get("app", {}), {}
        if isinstance(table, dict):
            name = APP.prefix.removesuffix(".")
            is_store = {
                key: APP.passes(key) or (key == name and isinstance(value, dict))
                for key, value in table.items()
            }
            store = self._flat({k: v for k, v in table.items() if is_store[k]}, "app")
            table = {k: v for k, v in table.items() if not is_store[k]}
        app = self._table({"app": table}, "app", (*APP.names, *PIPELINE.names))
        return app, {k.lower().removeprefix(APP.prefix): value for k, value in store.items()}

    def _source(self, tables: Mapping[str, Any]) -> KafkaSource:
        if isinstance(tables.get("source"), list):
            raise self._wrong(
                "A job has one source.",
                "source",
                "subscribe takes several topics; several sources need Python",
                "[source], not [[source]]",
            )
        options = self._table(tables, "source")
        try:
            source = KafkaSource.from_options(options)
            source.check_stream()
        except ConfigurationError as error:
            raise self._from(error, "source") from error
        return source

    def _sinks(self, tables: Mapping[str, Any], guarantee: str) -> tuple[SinkDefinition, ...]:
        rows = tables.get("sink", [])
        if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
            raise self._wrong("A job needs a sink.", "sink", "there is none", "[[sink]]")
        found: dict[str, SinkDefinition] = {}
        for number, row in enumerate(rows, 1):
            place = f"[sink] {number}"
            options = self._flat(row, place)
            sql = options.pop("sql", None)
            if sql is not None and not sql.strip():
                raise self._wrong("The query of a sink is empty.", place, "no text", "sql")
            try:
                sink = sink_from_options(options, guarantee=guarantee, absolute=self._relative)
            except ConfigurationError as error:
                raise self._from(error, place, ("sql", "kind")) from error
            if sink.name in found:
                raise self._wrong(
                    "Two sinks have the same name.",
                    place,
                    "a sink without a name has the name of its target",
                    f"name = {sink.name}",
                )
            found[sink.name] = SinkDefinition(sink=sink, sql=sql)
        return tuple(found.values())

    def _decision_log(
        self, tables: Mapping[str, Any], spark: Mapping[str, str]
    ) -> LogLocation | None:
        if "decision_log" not in tables:
            return None
        options: dict[str, str | float] = {**self._table(tables, "decision_log")}
        address = str(options.pop("address", ""))
        if not address.strip():
            what = "[decision_log] needs an address."
            raise self._wrong(what, "decision_log", "it is absent or empty", "address = ...")
        given = {**_hadoop_settings(address, spark), **options}
        return LogLocation(self._relative(address, "decision_log"), given)

    def _transform(self, table: Mapping[str, str]) -> dict[str, str | tuple[str, ...]]:
        kinds = {name: text for name, text in table.items() if name != "columns"}
        if len(kinds) > 1:
            raise self._wrong(
                "The transform is given twice.", "transform", "use one of them", ", ".join(kinds)
            )
        found: dict[str, str | tuple[str, ...]] = {**kinds}
        if "columns" in table:
            if not kinds.keys() <= {"arrow"}:
                raise self._wrong(
                    "The option columns needs an Arrow function, or a plain copy.",
                    "transform",
                    "a query or a function of DataFrames chooses its columns itself",
                    f"columns = {table['columns']}, {', '.join(kinds)}",
                )
            found["columns"] = tuple(name.strip() for name in table["columns"].split(","))
        for kind, text in kinds.items():
            if not text.strip():
                raise self._wrong("The transform is empty.", "transform", "no text", kind)
            if kind != "sql" and not _FUNCTION.fullmatch(text):
                raise self._wrong(
                    "The transform function must be written as module:name.",
                    "transform",
                    "the module is imported from the file's folder, or from the environment",
                    f"{kind} = {text}",
                )
        return found

    # -- values -------------------------------------------------------------------------------

    def _app_id(self, app_id: str) -> str:
        try:
            return checked_app_id(app_id)
        except ConfigurationError as error:
            raise self._wrong(error.what, "app", error.cause, f"id = {app_id}") from error

    def _mode(self, app: Mapping[str, str]) -> str:
        mode = app.get("mode", MICRO_BATCH)
        try:
            check_mode(mode)
            check_options(mode, app)
        except ConfigurationError as error:
            raise self._from(error, "app") from error
        return mode

    def _driver(self, app: Mapping[str, str]) -> dict[str, object]:
        """Return the file's options for the driver, by the names of its arguments."""
        found: dict[str, object] = {}
        for option in PIPELINE.options:
            text = app.get(option.name)
            if text is None:
                continue
            found[option.python_name] = self._parsed(option, text)
        return found

    def _parsed(self, option: Option, text: str) -> object:
        try:
            return option.kind.parse(text)
        except ConfigurationError as error:
            raise self._from(error, "app") from error
        except ValueError:
            raise self._wrong(
                f"{option.name} cannot be used: {option.kind.problem}.",
                "app",
                option.says,
                f"{option.name} = {text}",
            ) from None

    def _log_level(self, app: Mapping[str, str]) -> str | None:
        level = app.get("log_level")
        if level is not None and level.upper() not in LOG_LEVELS:
            raise self._wrong(
                "The log level is unknown.",
                "app",
                f"known: {', '.join(LOG_LEVELS)}",
                f"log_level = {level}",
            )
        return None if level is None else level.upper()

    def _relative(self, path: str, place: str = "app") -> str:
        try:
            refuse_home(path)
        except ConfigurationError as error:
            raise self._from(error, place) from error
        return path if SCHEME.match(path) else str(self._path.parent / path)

    def _flat(self, table: Mapping[str, Any], place: str, prefix: str = "") -> dict[str, str]:
        """Turn a table into options: without quotes `kafka.bootstrap.servers` is three tables."""
        flat: dict[str, str] = {}
        for key, value in table.items():
            name = prefix + key
            if isinstance(value, dict):
                below = self._flat(value, place, f"{name}.")
            elif isinstance(value, bool):
                below = {name: str(value).lower()}
            elif isinstance(value, int | float):
                below = {name: str(value)}
            elif isinstance(value, str):
                text = self._expanded(value, name, place)
                is_file = text and _LOGIN_FILE.fullmatch(name)  # an empty one is refused later
                below = {name: self._relative(text, place) if is_file else text}
            elif isinstance(value, list) and all(isinstance(one, str) for one in value):
                below = {name: ",".join(self._expanded(one, name, place) for one in value)}
            else:
                raise self._wrong(
                    f"The value of {name!r} is of the type {type(value).__name__}.",
                    place,
                    "a value is text, a number, true, false, or a list of texts",
                    f"{name} = {value}",
                )
            if twice := flat.keys() & below.keys():
                raise self._wrong(
                    "A key is given twice.", place, "once with quotes and once without", min(twice)
                )
            flat |= below
        return flat

    def _expanded(self, text: str, name: str, place: str) -> str:
        def value_of(match: re.Match[str]) -> str:
            if match[1]:
                return match[0][1:]
            if match[2].startswith(_FILE):
                return self._content(match[2].removeprefix(_FILE), f"{name} = {text}", place)
            if match[2] not in self._environment:
                raise self._wrong(
                    f"The environment variable {match[2]!r} is not set.",
                    place,
                    "the value names it; $${ is a literal ${",
                    f"{name} = {text}",
                )
            return self._environment[match[2]]

        return _VARIABLE.sub(value_of, text)

    def _content(self, path: str, option: str, place: str) -> str:
        """Return what a secret's file holds; an editor or `echo` puts a line end behind it."""
        try:
            return Path(self._relative(path, place)).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            what = f"The file {path!r} of a value cannot be read."
            raise self._wrong(what, place, str(error), option) from error

    # -- errors -------------------------------------------------------------------------------

    def _only(self, table: Mapping[str, Any], known: Iterable[str], place: str, kind: str) -> None:
        for name, value in table.items():
            if name in known:
                continue
            shown = f"[{name}]" if isinstance(value, dict | list) else f"{name} = {value}"
            raise ConfigurationError(
                f"There is no {kind} {name!r} in {place}.",
                where=str(self._path),
                cause=nearest(name, known),
                option=shown,
            )

    def _wrong(self, what: str, place: str, cause: str, option: str) -> ConfigurationError:
        place = place if place.startswith("[") else f"[{place}]"
        return ConfigurationError(
            what, where=f"{self._path}, {place}", cause=cause, option=_without_secret(option)
        )

    def _from(
        self, error: ConfigurationError, place: str, more: tuple[str, ...] = ()
    ) -> ConfigurationError:
        hint = nearest(error.option.partition("=")[0], more) if more else ""
        cause = hint if hint.startswith("did") else error.cause
        return self._wrong(error.what, place, cause, error.option)


def _hint(error: str) -> str:
    return next((hint for begins, hint in _HINTS.items() if error.startswith(begins)), "")


def _without_secret(option: str) -> str:
    name = option.partition("=")[0].strip()
    return f"{name}=[hidden]" if is_secret(name) else option


def _hadoop_settings(address: str, spark: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's settings of a job for an address in HDFS: a command has no Spark session."""
    if not address.strip().lower().startswith(_HDFS):
        return {}
    given = {k.removeprefix(_HADOOP): v for k, v in spark.items() if k.startswith(_HADOOP)}
    return {name: value for name, value in given.items() if "." in name}  # the others are Spark's
