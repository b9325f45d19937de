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
            raise ConfigurationError("A Kafka setting is given twice.", option=f"--kafka {name}")
        given[name] = value
    return {**_from_file(config), **given}


def job_of(path: Path) -> JobDefinition:
    """Read a job file with the environment of this process.

    Raises:
        ConfigurationError: the job file is wrong.
    """
    from connectors.options.job_file import load_job

    return load_job(path, os.environ)


def _from_file(path: Path | None) -> dict[str, str]:
    from transactions.errors import ConfigurationError

    if path is None:
        return {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            "The file of client settings cannot be read.",
            where=str(path),
            cause=str(error),
            option=f"--config {path}",
        ) from error
    stripped = (line.strip() for line in lines)
    return dict(
        _pair(line, f"--config {path}") for line in stripped if line and line[0] not in "#!"
    )


def _pair(text: str, option: str) -> tuple[str, str]:
    from transactions.errors import ConfigurationError

    name, equals, value = text.partition("=")
    name = name.strip().removeprefix("kafka.")
    if not equals or not name:
        raise ConfigurationError(
            "A Kafka setting has no value.", cause="the form is name=value", option=option
        )
    return name, value.strip()
