"""`sparkonce transactions`: list decided transactions with their broker state, and repair them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from connectors.cli.duration_option import DURATION
from connectors.cli.kafka_options import job_of, kafka_options, kafka_settings, refuse_beside_job
from connectors.cli.transaction_output import head, plain, show, text, to_json
from connectors.kafka.sink.kafka_sink import kafka_sinks

if TYPE_CHECKING:
    from connectors.operations.transaction_reader import TransactionReader
    from connectors.operations.transaction_table import Row
    from transactions.clock import Deadline
    from transactions.decision_log import DecisionLog

F = TypeVar("F", bound=Callable[..., Any])


@click.group(name="transactions")
def command() -> None:
    """List and repair the transactions of a pipeline.

    The checkpoint folder holds the decisions. The brokers know the state of each transaction. The
    folder does not hold the broker addresses: give --bootstrap, or --job if the sinks are on
    several clusters.
    """
    import logging

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # our errors report it once


def _place(function: F) -> F:
    """Add the options that choose the checkpoint and the brokers."""
    for option in (
        click.option(
            "--timeout",
            type=DURATION,
            default="1min",
            show_default=True,
            help="Limit for the whole command.",
        ),
        kafka_options,
        click.option(
            "--checkpoint",
            metavar="FOLDER|URL",
            help="Checkpoint of the driver; a store's options come from the environment.",
        ),
    ):
        function = option(function)
    return function


_YES = click.option("--yes", is_flag=True, help="Do not ask.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def _reader(
    *,
    checkpoint: str | None,
    bootstrap: str | None,
    pairs: tuple[str, ...],
    config: Path | None,
    job_file: Path | None,
    brokers_needed: bool = True,
) -> TransactionReader:
    from connectors.operations.transaction_reader import TransactionReader
    from transactions.errors import ConfigurationError

    if job_file is not None:
        refuse_beside_job(job_file, "checkpoint")
        job = job_of(job_file)
        sinks = {sink.name: sink for sink in kafka_sinks(job.targets)}
        return TransactionReader(job.location, {}, sinks, job.decision_log)
    if checkpoint is None:
        raise ConfigurationError(
            "No checkpoint is given.", option="--checkpoint FOLDER, or --job JOB.toml"
        )
    settings = kafka_settings(bootstrap, pairs, config)
    if "bootstrap.servers" not in settings:
        if brokers_needed or settings:
            raise ConfigurationError(
                "No Kafka cluster is given.",
                cause="the checkpoint folder does not hold the broker addresses",
                option="--bootstrap HOST:PORT, or --job JOB.toml",
            )
        click.echo("No broker was asked: give --bootstrap or --job.", err=True)
    return TransactionReader(checkpoint, settings)


# -- reading ---------------------------------------------------------------------------------------


@command.command(name="list")
@_place
@_JSON
def list_command(*, timeout: float, as_json: bool, **place: Any) -> None:
    """Show every transaction of the last decision and every open one; change nothing."""
    from transactions.clock import Deadline

    with _reader(**place, brokers_needed=False) as reader:
        rows = reader.rows(Deadline(timeout))
        if as_json:
            click.echo(to_json({**head(reader), "transactions": [plain(row) for row in rows]}))
        else:
            show(reader, rows)


@command.command()
@click.argument("transactional_id", metavar="ID")
@_place
@_JSON
def describe(*, transactional_id: str, timeout: float, as_json: bool, **place: Any) -> None:
    """Show one transaction: its partitions, offsets, and the marker that proves its commit."""
    from rich.console import Console
    from rich.table import Table

    from connectors.operations.transaction_table import absent
    from transactions.clock import Deadline

    with _reader(**place) as reader:
        rows = [one for one in reader.rows(Deadline(timeout)) if one.is_called(transactional_id)]
    if not rows:
        raise absent(transactional_id)
    if as_json:
        click.echo(to_json([plain(row) for row in rows]))
        return
    console = Console()
    for row in rows:
        table = Table(show_header=False)
        for name, value in plain(row).items():
            table.add_row(name, text(value))
        (console if console.is_terminal else Console(width=200)).print(table)


# -- repairing -------------------------------------------------------------------------------------


@command.command()
@_place
@_YES
def commit(*, timeout: float, yes: bool, **place: Any) -> None:
    """Commit the transactions of the last decision, as the next start of the pipeline would.

    It fails if readers do not see the records afterwards: see write-markers. The command fences a
    driver that runs on this checkpoint, and the driver stops.
    """
    from connectors.operations.transaction_table import Standing, unsettled
    from connectors.pipeline.repair import refuse_hidden
    from transactions.clock import Deadline
    from transactions.recovery import settle_last_decision

    deadline = Deadline(timeout)
    with _reader(**place) as reader:
        rows = reader.rows(deadline)
        lost = [row.transactional_id for row in rows if row.standing is Standing.ABORTED]
        pending = unsettled(rows)
        if pending:
            reader.refuse_others()
            log = _take_over(reader, yes, deadline)
            settlement = settle_last_decision(log, reader.sinks, deadline)
            lost = [one.transactional_id for one in settlement.lost]
            click.echo(f"{settlement.recommitted} transaction(s) committed.")
            rows = reader.rows(deadline)
        refuse_hidden(reader, rows, deadline)
        if not (pending or lost):
            click.echo("Nothing is pending.")
    if lost:
        raise _lost(lost)


@command.command()
@click.argument("transactional_ids", nargs=-1, metavar="[ID]...")
@_place
@_YES
def abort(*, transactional_ids: tuple[str, ...], timeout: float, yes: bool, **place: Any) -> None:
    """Abort lingering transactions: open ones of this log that no checkpoint owns; default: all.

    The command never aborts a decided transaction. It fences a driver that runs on this
    checkpoint, and the driver stops.
    """
    from connectors.operations.transaction_table import abortable, refuse_to_abort
    from connectors.pipeline.repair import abort_lingering
    from transactions.clock import Deadline

    deadline = Deadline(timeout)
    with _reader(**place) as reader:
        rows = reader.rows(deadline)
        refuse_to_abort(rows, transactional_ids)
        if not abortable(rows, transactional_ids):
            click.echo("Nothing lingers.")
            return
        swept = 0
        for name in abort_lingering(
            reader, _take_over(reader, yes, deadline), transactional_ids, deadline
        ):
            click.echo(f"aborted: {name}")
            swept += 1
        click.echo(f"{swept} transaction(s) aborted.")


@command.command()
@click.argument("transactional_ids", nargs=-1, metavar="[ID]...")
@_place
@click.option("--accept-loss", "verdict", flag_value="accept-loss", help="Continue without them.")
@click.option("--replay", "verdict", flag_value="replay", help="Commit the result of a replay.")
@click.option(
    "--accept-state",
    "verdict",
    flag_value="accept-state",
    help="Continue with a state whose replay differs from the output.",
)
@click.option("--note", default="", help="The reason; the log keeps it.")
@_YES
def resolve(
    *,
    transactional_ids: tuple[str, ...],
    verdict: str | None,
    note: str,
    timeout: float,
    yes: bool,
    **place: Any,
) -> None:
    """Decide about decided transactions whose checkpoint a start cannot finish.

    --accept-loss: their records stay out, and the pipeline continues behind them. --replay: the
    next start produces them again from their source offsets, even if the records differ. Both hold
    unless the next start can still prove or commit them. Default: all that are aborted. An unknown
    one needs its ID: it can be in the output, so look there first. --accept-state: nothing is lost,
    but a replay for the state gives other records than the output has; the pipeline accepts that
    state. The command stops a driver that runs on this checkpoint.
    """
    from transactions.clock import Deadline
    from transactions.log_entries import ACCEPT_LOSS, ACCEPT_STATE, Resolved

    if verdict is None:
        raise click.UsageError("Choose one: --accept-loss, --replay or --accept-state.")
    deadline = Deadline(timeout)
    with _reader(**place) as reader:
        if verdict == ACCEPT_STATE:
            _accept_state(reader, note, yes, deadline)
            return

        rows = reader.rows(deadline)
        if not _chosen(rows, transactional_ids):
            raise _nothing_chosen(reader, rows, verdict)
        log = _take_over(reader, yes, deadline)
        rows = _chosen(reader.rows(deadline), transactional_ids)
        decision = log.state.decision
        assert decision is not None
        tokens = tuple(row.decided.token for row in rows if row.decided is not None)
        if not tokens:
            click.echo("Nothing is lost any more.")
            return
        log.resolve(
            Resolved(
                checkpoint_id=decision.checkpoint_id, verdict=verdict, tokens=tokens, note=note
            )
        )
        records = sum(row.decided.record_count for row in rows if row.decided is not None)
        click.echo(f"{len(tokens)} transaction(s) with {records} records resolved: {verdict}.")
        does = (
            "continues without their records"
            if verdict == ACCEPT_LOSS
            else "produces their records again and commits the result"
        )
        click.echo(f"The next start {does}, unless it can still prove or commit them.")


def _chosen(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return what a person may decide about. An unknown one can be committed: its proof has
    expired, or nobody asked its cluster. So only its own name chooses it.
    """
    from connectors.operations.transaction_table import Standing

    open_to_choice = {Standing.ABORTED, Standing.UNKNOWN} if names else {Standing.ABORTED}
    return [row for row in rows if row.standing in open_to_choice and row.is_chosen(names)]


def _accept_state(reader: TransactionReader, note: str, yes: bool, deadline: Deadline) -> None:
    from transactions.errors import ConfigurationError
    from transactions.log_entries import ACCEPT_STATE, Resolved

    if not reader.state.decided:
        raise ConfigurationError(
            "No checkpoint with records is decided: there is nothing to accept.",
            where=reader.backend.describe(),
            cause="the last checkpoint of this log wrote nothing",
            option="sparkonce transactions list",
        )
    log = _take_over(reader, yes, deadline)
    last = log.state.decision
    assert last is not None
    tokens = tuple(one.token for one in log.state.decided)
    number = last.checkpoint_id
    log.resolve(Resolved(checkpoint_id=number, verdict=ACCEPT_STATE, tokens=tokens, note=note))
    click.echo(
        f"Checkpoint {number}: the next start builds its state from the result of a replay; "
        "the output does not change."
    )


@command.command(name="write-markers")
@_place
@_YES
def write_markers(*, timeout: float, yes: bool, **place: Any) -> None:
    """Write the commit markers that a broker did not write, so that readers see the records.

    Only for transactions of the last decision that the coordinator has committed. The command
    fences a driver that runs on this checkpoint, and the driver stops: nobody else may write under
    these producer ids. It needs ALTER or CLUSTER_ACTION on the cluster, and READ on the topics.
    """
    from transactions.clock import Deadline

    deadline = Deadline(timeout)
    with _reader(**place) as reader:
        if not reader.hidden_places(reader.rows(deadline), deadline):
            click.echo("Nothing is hidden.")
            return
        _take_over(reader, yes, deadline)
        # Read again behind the Fence, immediately before each marker is written.
        for name, hidden in reader.hidden(reader.rows(deadline), deadline).items():
            for one in hidden:
                reader.sinks[name].visibility.write_commit(one, deadline)
                click.echo(f"committed: {one}")
        if left := reader.hidden_places(reader.rows(deadline), deadline):
            raise _still_hidden(left)
        click.echo("Readers see the records now.")


def _take_over(reader: TransactionReader, yes: bool, deadline: Deadline) -> DecisionLog:
    """Ask, then fence."""
    from connectors.pipeline.repair import take_over

    state = reader.state
    alive = {True: "it runs now", False: "it is gone", None: "it may be running"}
    who = f"run {state.run_epoch} of {state.application_id} ({state.host}: "
    who += f"{alive[reader.run_alive()]})"
    if yes:
        click.echo(f"fencing {who}", err=True)
    else:
        click.echo(f"This fences {who}; a driver that runs there stops.", err=True)
        click.confirm("Go on?", abort=True, err=True)
    return take_over(reader, deadline)


def _nothing_chosen(reader: TransactionReader, rows: Sequence[Row], verdict: str) -> Exception:
    from connectors.operations.transaction_table import Standing
    from transactions.errors import ConfigurationError

    unknown = [row.transactional_id for row in rows if row.standing is Standing.UNKNOWN]
    if unknown:
        return ConfigurationError(
            f"{len(unknown)} decided transaction(s) are unknown, and none of them was named.",
            where=", ".join(unknown),
            cause="each can be in the output: its proof has expired, or its sink is on another "
            "cluster, or is not Kafka's",
            option=f"look into the output, then: sparkonce transactions resolve ID --{verdict}; "
            "--job JOB.toml asks each Kafka sink at its own cluster",
        )
    return ConfigurationError(
        "No decided transaction is lost: there is nothing to resolve.",
        where=reader.backend.describe(),
        cause="all transactions of the last decision are committed, pending or resolved",
        option="sparkonce transactions list",
    )


def _lost(names: Sequence[str]) -> Exception:
    from transactions.errors import TransactionLostError

    return TransactionLostError(
        f"{len(names)} decided transaction(s) had been aborted by the broker.",
        where=", ".join(names),
        cause="the downtime was longer than the transaction timeout, or somebody aborted them",
        option="start the pipeline: it heals them from their source offsets; if it cannot, use "
        "sparkonce transactions resolve [ID]...",
    )


def _still_hidden(places: Sequence[str]) -> Exception:
    from transactions.errors import HiddenCommitError

    return HiddenCommitError(
        f"{len(places)} partition(s) still hide committed records from readers.",
        where="; ".join(places),
        cause="a leader moved, or somebody writes under the same producer id",
        option="stop every driver and worker of the pipeline, then repeat this command",
    )
