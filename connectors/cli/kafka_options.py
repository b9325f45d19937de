"""How commands take Kafka client settings: one by one, from a properties file, from a job file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from connectors.options.job_definition import JobDefinition

F = TypeVar("F", bound=Callable[..., Any])

#: The parameters of `client_options`.
_CLIENT_OPTIONS = ("bootstrap", "pairs", "config")
_COMMAND_LINE = "the command line"


def kafka_options(function: F) -> F:
    """Add --bootstrap, --kafka, --config and --job to a command."""
    job = click.option(
        "--job",
        "job_file",
        metavar="JOB.toml",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Take everything from a job file, as `sparkonce run` would.",
    )
    return client_options(job(function))


def client_options(function: F) -> F:
    """Add --bootstrap, --kafka and --config to a command; `kafka_settings` merges them."""
    for option in (
        click.option(
            "--config",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Kafka client settings as a properties file.",
        ),
        click.option(
            "--kafka", "pairs", multiple=True, metavar="KEY=VALUE", help="Any Kafka client setting."
        ),
        click.option("--bootstrap", help="Brokers, host:port separated by commas."),
    ):
        function = option(function)
    return function


def kafka_settings(
    bootstrap: str | None, pairs: Iterable[str] = (), config: Path | None = None
) -> dict[str, str]:
    """Merge the settings of the command line; `--kafka` overrides the file.

    Raises:
        ConfigurationError: a setting has no value, is given twice, or the file cannot be read.
    """
    from transactions.errors import ConfigurationError

    given: dict[str, str] = {} if bootstrap is None else {"bootstrap.servers": bootstrap}
    for pair in pairs:
        name, value = _pair(pair, f"--kafka {pair.partition('=')[0]}")
        if name in given:
            raise ConfigurationError(
                "A Kafka setting is given twice.",
                where=_COMMAND_LINE,
                cause="two --kafka name it, or --bootstrap and --kafka",
                option=f"--kafka {name}: leave one of them out",
            )
        given[name] = value
    return {**_from_file(config), **given}


def job_of(path: Path) -> JobDefinition:
    """Read a job file with the environment of this process. Functions that it names can lie beside
    it.

    Raises:
        ConfigurationError: the job file is wrong.
    """
    from connectors.options.job_file import load_job
    from connectors.records.named_function import make_importable

    job = load_job(path, os.environ)
    make_importable(job.path.parent)
    return job


def refuse_beside_job(path: Path, *names: str, beside: str = "--job") -> None:
    """Refuse options of the running command that are given beside --job and would have no effect.

    Args:
        path: the job file.
        names: the parameters that the job file answers, beside those of `client_options`.
        beside: the option that names the job file.

    Raises:
        ConfigurationError: one of them is given.
    """
    from click.core import ParameterSource

    from transactions.errors import ConfigurationError

    context = click.get_current_context()
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name in (*_CLIENT_OPTIONS, *names)
        and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT
    ]
    if given:
        raise ConfigurationError(
            f"{', '.join(given)} cannot be given beside {beside}.",
            where=str(path),
            cause="the job file says all that is needed, and the option would have no effect",
            option=f"leave out {', '.join(given)}, or change the job file",
        )


def _from_file(path: Path | None) -> dict[str, str]:
    """Read a properties file as Java does; the text is UTF-8."""
    if path is None:
        return {}
    from javaproperties import InvalidUEscapeError, KeyValue, parse

    from transactions.errors import ConfigurationError

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            "The file of client settings cannot be read.",
            where=str(path),
            cause=str(error),
            option=f"--config {path}",
        ) from error
    settings: dict[str, str] = {}
    line = 1
    try:
        for element in parse(text):
            if isinstance(element, KeyValue):
                # Java takes a name alone for one with an empty value; here it is a slip.
                given = bool(element.value) or element.source.rstrip().endswith(("=", ":"))
                name, value = _setting(
                    element.key,
                    element.value if given else None,
                    where=f"{path}, line {line}",
                    option=f"--config {path}",
                )
                settings[name] = value
            line += element.source.count("\n")
    except InvalidUEscapeError:
        # Not chained: the text of the library's error can be a part of a password.
        raise ConfigurationError(
            "A backslash with u is no character of Java.",
            where=f"{path}, line {line}",
            cause="four hexadecimal digits must follow it; a backslash itself is written twice",
            option=f"--config {path}",
        ) from None
    return settings


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    return _setting(name, value if equals else None, where=_COMMAND_LINE, option=option)


def _setting(name: str, value: str | None, *, where: str, option: str) -> tuple[str, str]:
    from transactions.errors import ConfigurationError

    name = name.strip().removeprefix("kafka.")
    if value is None or not name:
        raise ConfigurationError(
            "A Kafka setting has no name or no value.",
            where=where,
            cause="the form is name=value",
            option=option,
        )
    return name, value.strip()
