"""The command `sparkonce`.

Exit codes of every subcommand: 0 done, 1 failed, 2 wrong configuration or usage.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from typing import NoReturn

import click

from transactions.errors import ConfigurationError, SparkOnceError

# name -> (place of the click command, its line in `--help`); the help imports no subcommand.
SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "kafka": ("connectors.cli.kafka:command", "Run a real Apache Kafka on this machine."),
    "run": ("connectors.cli.run:command", "Run a pipeline that a TOML file describes."),
    "demo": ("connectors.cli.demo:command", "Crash a pipeline twice and prove its output."),
    "doctor": ("connectors.cli.doctor:command", "Check a cluster before a pipeline runs on it."),
    "transactions": (
        "connectors.cli.transactions:command",
        "List and repair the transactions of a pipeline.",
    ),
    "savepoint": ("connectors.cli.savepoint:command", "Make, list and delete savepoints."),
    "migrate": (
        "connectors.cli.migrate:command",
        "Begin a pipeline where a query on Spark's own source has ended.",
    ),
    "bench": ("connectors.cli.bench:command", "Measure latency, throughput and the commit."),
    "verify": ("connectors.cli.verify:command", "Prove exactly-once on your own topics."),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand only when it is run, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the table: the order in which a user needs them."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a subcommand, None for a name that is not in the table."""
        if cmd_name not in SUBCOMMANDS:
            return None
        module_name, attribute = SUBCOMMANDS[cmd_name][0].split(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise click.UsageError(
                f"'{cmd_name}' is not usable in this installation: {error}"
            ) from error
        command = getattr(module, attribute)
        assert isinstance(command, click.Command), f"{module_name}:{attribute} is no command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table of subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in SUBCOMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("sparkonce"), prog_name="sparkonce")
def cli() -> None:
    """Exactly-once Kafka-to-Kafka pipelines on Spark."""


def main() -> None:
    """Run the command; print our own errors, and those of a path, as text without a traceback."""
    # Processes that it starts with `python -m` import nothing from the folder it is typed in.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    try:
        cli(prog_name="sparkonce")
    except SparkOnceError as error:
        _end(error)
    except OSError as error:
        if error.filename is None:
            raise  # a timeout, a socket: perhaps a bug of ours, and only the traceback tells where
        _end(_of_path(error))


def _of_path(error: OSError) -> SparkOnceError:
    """Return the error about a path that the system refuses; without permission: correct it."""
    kind = ConfigurationError if isinstance(error, PermissionError) else SparkOnceError
    paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
    return kind(
        "A file or a folder cannot be used.",
        where=" -> ".join(paths),
        cause=error.strerror or str(error),
        option="the option or the variable that names it, the rights of this user, and the disk",
    )


def _end(error: SparkOnceError) -> NoReturn:
    click.echo(f"{type(error).__name__}: {error}", err=True)
    sys.exit(2 if isinstance(error, ConfigurationError) and error.permanent else 1)


if __name__ == "__main__":
    main()
