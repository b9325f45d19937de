"""`sparkonce demo`: kill a pipeline twice with SIGKILL, and prove its output exactly-once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from connectors.demo.supervisor import DemoOptions

PROOF_HOLDS = 0
PROOF_FAILS = 1
BAD_CONFIGURATION = 2
INTERRUPTED = 130


@click.command(name="demo")
@click.option(
    "--mode",
    type=click.Choice(["micro-batch", "continuous"]),
    default="micro-batch",
    show_default=True,
    help="Continuous mode has no state: the job only cleans flights.",
)
@click.option("--bootstrap", help="Brokers to use; without this option the demo starts a broker.")
@click.option("--flights", default=336_776, show_default=True, help="Number of flights.")
@click.option("--seconds", default=25.0, show_default=True, help="Duration of the load.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("sparkonce-demo"),
    show_default=True,
    help="Folder for the picture and the log.",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark's master URL.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; repeatable.")
@click.option(
    "--checkpoint",
    metavar="FOLDER|ADDRESS",
    help="Folder that driver and workers share, or hdfs://, s3://, ...; what is there afterwards "
    "stays.  [default: a temporary folder]",
)
@click.option("--sabotage", type=click.Choice(["duplicate", "loss"]), hidden=True)
@click.pass_context
def command(
    context: click.Context,
    *,
    mode: str,
    bootstrap: str | None,
    flights: int,
    seconds: float,
    output: Path,
    master: str,
    conf: tuple[str, ...],
    checkpoint: str | None,
    sabotage: str | None,
) -> None:
    """Load a year of real flights, kill the driver twice, and prove the output exactly-once.

    A plain producer loads the flights that left New York City in 2013. Meanwhile a Spark job
    writes the cleaned flights to one topic and the arrivals per airport to another topic, under
    one decision. The demo kills the job with SIGKILL in phase 1, and again between decision and
    commit. At the end an independent read_committed reader checks the output. The exit code is 1
    when this proof fails.
    """
    from connectors.demo.supervisor import DemoOptions
    from transactions.errors import ConfigurationError, SparkOnceError

    options = DemoOptions(
        mode=mode,
        bootstrap=bootstrap,
        flights=flights,
        seconds=seconds,
        output=output,
        master=master,
        conf=conf,
        checkpoint=checkpoint,
    )
    try:
        with _terminable():
            holds = _run(options, sabotage)
    except ConfigurationError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        context.exit(BAD_CONFIGURATION)
    except SparkOnceError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        context.exit(PROOF_FAILS)
    except KeyboardInterrupt:
        click.echo("interrupted: the demo has ended everything that it started", err=True)
        context.exit(INTERRUPTED)
    context.exit(PROOF_HOLDS if holds else PROOF_FAILS)


def _run(options: DemoOptions, sabotage: str | None) -> bool:
    from rich.console import Console

    from connectors.demo import picture
    from connectors.demo.screen import Screen
    from connectors.demo.supervisor import Supervisor

    picture.check_installed()
    with Screen(Console()) as screen:
        with Supervisor(options, watch=screen.update) as supervisor:
            supervisor.run()
            if sabotage is not None:
                supervisor.sabotage(sabotage)
            checks = supervisor.prove()
        holds = all(check.holds for check in checks)
        path = options.output / "timeline.png"
        picture.draw(supervisor.history, path, holds=holds)
        screen.result(supervisor.history, checks, path)
    return holds


@contextmanager
def _terminable() -> Iterator[None]:
    """Handle SIGTERM like ctrl-C, so that the demo leaves nothing behind."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
