"""`sparkonce kafka up | down | status`: a real Apache Kafka on this machine, without Docker."""

from __future__ import annotations

from pathlib import Path

import click


@click.group(name="kafka")
def command() -> None:
    """Run a real Apache Kafka on this machine, without Docker."""


def _topics(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    topics = {}
    for each in given:
        name, _colon, partitions = each.partition(":")
        if not name or not (partitions or "1").isdecimal() or int(partitions or 1) < 1:
            raise click.BadParameter(f"{each!r} is not NAME or NAME:PARTITIONS")
        topics[name] = int(partitions or 1)
    return topics


@command.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    default=9092,
    show_default=True,
    help="Client port of the first broker; the others take free ones.",
)
@click.option("--brokers", type=click.Choice(["1", "3"]), default="1", show_default=True)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data folder; `down` keeps it.  [default: in the user's state folder]",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[:PARTITIONS]",
    callback=_topics,
    help="Make this topic if it does not exist, with one partition by default; repeatable.",
)
def up(port: int, brokers: str, directory: Path | None, topics: dict[str, int]) -> None:
    """Start the brokers and return when they serve; they run until `sparkonce kafka down`.

    If brokers run already, the command only makes the topics.
    """
    from connectors.cluster import running_cluster
    from connectors.cluster.local_cluster import LocalCluster
    from connectors.machine.user_folders import state_folder

    with running_cluster.locked_state():
        running = running_cluster.read_state()
        if running is not None:
            click.echo(f"Kafka runs already: {running.bootstrap_servers}")
            _make(running.bootstrap_servers, topics)
            return
        folder = directory or state_folder() / f"kafka-{brokers}"
        cluster = LocalCluster(brokers=int(brokers), port=port, directory=folder)
        try:
            cluster.start()
            # Write the state before the detach: a kill between them leaves a file, not a broker.
            running_cluster.write_state(running_cluster.RunningCluster.of(cluster))
            cluster.detach()
        finally:
            cluster.stop()
        click.echo(f"Kafka is up: {cluster.bootstrap_servers}")
        click.echo(f"data and logs: {folder}", err=True)
        _make(cluster.bootstrap_servers, topics)


def _make(bootstrap_servers: str, topics: dict[str, int]) -> None:
    from connectors.cluster.running_cluster import make_topic

    for name, partitions in topics.items():
        made = make_topic(bootstrap_servers, name, partitions)
        click.echo(f"topic {name}: {'made' if made else 'was there already'}", err=True)


@command.command()
def down() -> None:
    """Stop the brokers that `up` started and keep their data; do nothing if none runs."""
    from connectors.cluster import running_cluster

    with running_cluster.locked_state():
        running = running_cluster.read_state()
        if running is None:
            click.echo("no Kafka runs")
        else:
            running.end()
            click.echo(f"Kafka is down: {running.bootstrap_servers}")
        running_cluster.forget_state()


@command.command()
@click.pass_context
def status(context: click.Context) -> None:
    """Show the brokers that `up` started; exit code 1 when none runs."""
    from rich.console import Console
    from rich.table import Table

    from connectors.cluster import running_cluster

    running = running_cluster.read_state()
    if running is None:
        click.echo("no Kafka runs")
        context.exit(1)
    table = Table("broker", "port", "pid", "state", "data folder")
    for broker in running.brokers:
        process = str(broker.process.pid)
        table.add_row(str(broker.broker), str(broker.port), process, broker.state(), broker.folder)
    console = Console()
    # A file or a pipe gets the whole text, without folds.
    (console if console.is_terminal else Console(width=250)).print(table)
