"""`sparkonce bench`: measure the cost of exactly-once on your cluster, and check every record."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from connectors.cli.duration_option import DURATION
from connectors.cli.kafka_options import client_options, kafka_settings

if TYPE_CHECKING:
    from rich.console import Console

    from connectors.bench.options import BenchOptions
    from transactions.errors import SparkOnceError

F = TypeVar("F", bound=Callable[..., Any])

DONE = 0
FAILED = 1
BAD_CONFIGURATION = 2
INTERRUPTED = 130

_EPILOG = """\b
Examples:
  On this machine; the command starts a broker
    sparkonce bench latency --mode continuous --slowest 20
  On your cluster; the command makes its own topics and deletes them at the end
    sparkonce bench throughput --bootstrap broker:9092 --partitions 8 --replication-factor 3
  The cost of a commit for several numbers of subtasks
    sparkonce bench commit --mode continuous --subtasks 1,2,4,8 --plot commit.svg

\b
Exit codes: 0 done, 1 failed, or a record was lost or duplicated, 2 bad configuration,
130 interrupted. The command always removes the topics, groups and folders of the run.
"""


@click.group(name="bench", epilog=_EPILOG)
def command() -> None:
    """Measure a plain copy job: latency, throughput, or the commit alone.

    The job runs on its own topics, which have random names. Each record has an id. The command
    looks for every id in the output. A lost or duplicated record is a failure.
    """


def _subtasks(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in text.split(",")) if text else ()
    except ValueError:
        raise click.BadParameter("whole numbers, separated by commas") from None


def _common(function: F) -> F:
    """Add the options of all three commands; click shows them in this order."""
    for option in reversed(
        (
            click.option(
                "--mode",
                type=click.Choice(["micro-batch", "continuous"]),
                default="micro-batch",
                show_default=True,
            ),
            click.option(
                "--record-size", default=100, show_default=True, help="Key and value, bytes."
            ),
            click.option(
                "--partitions", type=int, help="For each topic.  [default: 2, or subtasks]"
            ),
            click.option(
                "--subtasks",
                default="",
                callback=_subtasks,
                help="Number of writing tasks.  [default: one for each partition]",
            ),
            click.option(
                "--replication-factor", type=int, help="For each topic.  [default: the brokers']"
            ),
            click.option(
                "--barrier-interval",
                "barrier_interval_s",
                type=DURATION,
                help="Fixed barrier interval; continuous mode only.",
            ),
            click.option(
                "--target-latency",
                "target_latency_s",
                type=DURATION,
                help="Target of the adaptive barrier interval; continuous mode only.",
            ),
            click.option(
                "--master",
                help="Spark's master URL.  [default: local[N], a slot for each subtask]",
            ),
            click.option(
                "--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; repeatable."
            ),
            click.option(
                "--json",
                "json_file",
                type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
                help="Also write JSON lines to a file; - is stdout.",
            ),
        )
    ):
        function = option(function)
    return client_options(function)


_seconds = click.option("--seconds", default=30.0, show_default=True, help="Seconds to measure.")
_warmup = click.option(
    "--warmup", "warmup_s", default=10.0, show_default=True, help="Seconds before the measurement."
)
_plot = click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg|png|html",
    help="Draw the distribution; needs the extra `demo`.",
)


@command.command()
@_common
@click.option("--rate", default=2000, show_default=True, help="Records per second.")
@click.option(
    "--slowest",
    default=0,
    metavar="N",
    help="Also show the N slowest checkpoints, and how long the broker stood still in each.",
)
@_seconds
@_warmup
@_plot
@click.pass_context
def latency(context: click.Context, /, **given: Any) -> None:
    """Measure the time from produce until a read_committed reader has the record."""
    _run(context, "latency", given)


@command.command()
@_common
@click.option("--records", default=1_000_000, show_default=True, help="Records in the backlog.")
@click.option(
    "--batch-records", default=250_000, show_default=True, help="Maximum per micro-batch."
)
@click.pass_context
def throughput(context: click.Context, /, **given: Any) -> None:
    """Measure how fast a backlog becomes visible to a read_committed reader."""
    _run(context, "throughput", given)


@command.command()
@_common
@_seconds
@_warmup
@_plot
@click.pass_context
def commit(context: click.Context, /, **given: Any) -> None:
    """Measure many small checkpoints, phase by phase; --subtasks 1,2,4,8 measures a series."""
    _run(context, "commit", given)


def _run(context: click.Context, what: str, given: dict[str, Any]) -> None:
    from transactions.errors import ConfigurationError, SparkOnceError

    try:
        errors, wrong = _measured(*_options(what, given))
    except ConfigurationError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        context.exit(BAD_CONFIGURATION)
    except SparkOnceError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        context.exit(FAILED)
    except KeyboardInterrupt:
        click.echo("interrupted: topics, groups and folders of the run are removed", err=True)
        context.exit(INTERRUPTED)
    for one in errors:
        click.echo(f"{type(one).__name__}: {one}", err=True)
    if any(isinstance(one, ConfigurationError) for one in errors):
        context.exit(BAD_CONFIGURATION)
    context.exit(FAILED if errors or wrong else DONE)


def _options(what: str, given: dict[str, Any]) -> tuple[BenchOptions, Path | None]:
    from connectors.bench import picture
    from connectors.bench.options import BenchOptions

    json_file = given.pop("json_file")
    kafka = kafka_settings(given.pop("bootstrap"), given.pop("pairs"), given.pop("config"))
    record_bytes = given.pop("record_size")
    options = BenchOptions(what=what, kafka=kafka, record_bytes=record_bytes, **given)
    options.validate()
    if options.plot is not None:
        picture.check_installed()
    return options, json_file


def _measured(options: BenchOptions, json_file: Path | None) -> tuple[list[SparkOnceError], bool]:
    """Run, show and draw; return the errors, and whether a line is wrong."""
    import logging

    from rich.console import Console

    from connectors.bench import picture, tables
    from connectors.bench.interruption import Interruption
    from connectors.bench.screen import Screen
    from connectors.bench.workbench import Workbench
    from transactions.errors import SparkOnceError

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # our errors report it once
    to_stdout = json_file == Path("-")
    with ExitStack() as stack:
        lines = stack.enter_context(_writer(json_file))
        screen = stack.enter_context(Screen(Console(stderr=True)))
        interruption = stack.enter_context(Interruption(screen.say))
        with Workbench(
            options,
            emit=lambda line: _write(lines, line),
            watch=screen.watch,
            interruption=interruption,
        ) as bench:
            bench.measure()
    console: Console = Console(stderr=to_stdout)
    tables.show(bench.lines, console)
    if options.plot is not None and picture.curves(bench.lines):
        try:
            picture.draw(bench.lines, options.plot)
        except OSError as error:
            raise SparkOnceError(
                "The picture cannot be written.",
                where=str(options.plot),
                cause=str(error),
                option=f"--plot={options.plot}",
            ) from error
        console.print(f"drawn: {options.plot}", markup=False, highlight=False, soft_wrap=True)
    return bench.errors, any(tables.is_wrong(line) for line in bench.lines)


@contextmanager
def _writer(path: Path | None) -> Iterator[TextIO | None]:
    """Open the target of the lines before the measurement starts."""
    from transactions.errors import ConfigurationError

    if path is None:
        yield None
    elif path == Path("-"):
        yield sys.stdout
    else:
        try:
            stream = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                "The result file cannot be written.",
                where=str(path),
                cause=str(error),
                option=f"--json={path}",
            ) from error
        with stream:
            yield stream


def _write(stream: TextIO | None, line: Mapping[str, Any]) -> None:
    if stream is not None:
        stream.write(json.dumps(line) + "\n")
        stream.flush()
