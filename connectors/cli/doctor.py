"""`sparkonce doctor`: check a cluster before a pipeline runs on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connectors.cli.duration_option import DURATION
from connectors.cli.kafka_options import job_of, kafka_options, kafka_settings, refuse_beside_job
from connectors.kafka.sink.kafka_sink import kafka_sinks, offsets_sink

if TYPE_CHECKING:
    from connectors.doctor.facts import Wanted
    from connectors.doctor.verdict import Verdict
    from connectors.options.job_definition import JobDefinition
    from transactions.checkpoint_location import CheckpointLocation

ALL_WELL = 0
REFUSED = 1
NO_ANSWER = 1
BAD_USAGE = 2

#: The parameters that a job file answers, beside those of the clients.
_OF_JOB = (
    "app",
    "checkpoint",
    "inputs",
    "outputs",
    "timeout_ms",
    "checkpoint_timeout",
    "restart_budget",
    "barrier_interval",
)

_STYLE = {"ok": "green", "warn": "yellow", "refuse": "red"}

_EPILOG = """\b
Examples:
  A cluster alone
    sparkonce doctor --bootstrap localhost:9092
  With the rights and topics that a pipeline needs
    sparkonce doctor --bootstrap localhost:9092 --app flights \\
        --input flights --output flights-clean
  Everything from a job file
    sparkonce doctor --job job.toml
  An object store, before a checkpoint or a decision log lies in it
    sparkonce doctor --checkpoint s3://state/flights
  The ACLs that this job needs, as commands of Kafka; nothing is asked
    sparkonce doctor --acls job.toml
  A secured cluster
    sparkonce doctor --bootstrap broker:9093 --app flights --config client.properties

\b
Exit codes: 0 ok or warnings only, 1 refused or no broker, 2 bad usage.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    """What is asked of one cluster.

    Attributes:
        settings: client settings, the brokers among them.
        wanted: what is wanted from it with these settings.
        used_by: who has these settings in a job.
    """

    settings: Mapping[str, str]
    wanted: Wanted
    used_by: Sequence[str] = ()

    @property
    def bootstrap(self) -> str:
        return self.settings.get("bootstrap.servers", "")


@click.command(name="doctor", epilog=_EPILOG)
@kafka_options
@click.option("--app", default="", help="Application id, to try its rights and read the clock.")
@click.option(
    "--checkpoint",
    metavar="FOLDER|URL",
    help="Try what a storage must promise to hold a checkpoint's decision log. The options of a "
    "store come from the environment.",
)
@click.option("--input", "inputs", multiple=True, help="Topic to read; repeatable.")
@click.option("--output", "outputs", multiple=True, help="Topic to write; repeatable.")
@click.option(
    "--transaction-timeout",
    "timeout_ms",
    type=click.IntRange(min=1000),
    metavar="MS",
    help="transactionTimeoutMs of the sinks.  [default: the broker's maximum]",
)
@click.option("--checkpoint-timeout", type=DURATION, default="10min", show_default=True)
@click.option("--restart-budget", type=DURATION, default="1min", show_default=True)
@click.option(
    "--barrier-interval",
    type=DURATION,
    default=0.0,
    help="In continuous mode: the longest time between two barriers.",
)
@click.option(
    "--timeout",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long to wait for answers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--acls",
    "acls_file",
    metavar="JOB.toml",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Print the ACLs that a job file needs, as kafka-acls.sh commands, and connect to nothing.",
)
@click.option(
    "--principal",
    metavar="TYPE:NAME",
    help="With --acls: the principal of all logins.  [default: what each login says]",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    bootstrap: str | None,
    pairs: tuple[str, ...],
    config: Path | None,
    job_file: Path | None,
    checkpoint: str | None,
    timeout: float,
    as_json: bool,
    acls_file: Path | None,
    principal: str | None,
    **wanted: Any,
) -> None:
    """Check a cluster before a pipeline runs on it. A driver makes the same checks at its start,
    without the rows "open transactions" and "transaction ends", which are about all clients.

    The doctor changes nothing. With --app it begins and aborts one transaction without records
    under the id <app>.doctor, to try the rights and to read the broker's clock. With --checkpoint,
    or if the job keeps its checkpoint or its log in a store, it puts and deletes names of
    its own below that place.
    """
    import logging

    if acls_file is not None:
        _print_acls(acls_file, principal, as_json=as_json)
        return
    if principal is not None:
        raise click.UsageError("--principal needs --acls.")
    from connectors.doctor.probe import gather
    from connectors.doctor.storage import check_storage
    from connectors.doctor.verdict import Level
    from connectors.doctor.verdicts import judge, worst
    from transactions.checkpoint_location import CheckpointLocation
    from transactions.clock import Deadline

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # our errors report it once
    if job_file is not None:
        refuse_beside_job(job_file, *_OF_JOB)
        job = job_of(job_file)
        cases, places = _cases(job), _addresses(job)
    else:
        settings = kafka_settings(bootstrap, pairs, config)
        places = [] if checkpoint is None else [CheckpointLocation.of(checkpoint)]
        # A storage can be tried without a cluster.
        cases = [_Case(settings, _wanted(**wanted))] if settings or not places else []
    storages = [(place, check_storage(place, timeout_s=timeout)) for place in places]
    reports = [
        (case, judge(gather(case.settings, case.wanted, Deadline(timeout)), case.wanted))
        for case in cases
    ]
    if as_json:
        click.echo(_json(reports, storages))
    else:
        for case, verdicts in reports:
            _show(": ".join(filter(None, [case.bootstrap, ", ".join(case.used_by)])), verdicts)
        for place, verdicts in storages:
            _show(str(place), verdicts)
    everything = [one for _, verdicts in [*reports, *storages] for one in verdicts]
    context.exit(REFUSED if worst(everything) is Level.REFUSE else ALL_WELL)


def _print_acls(path: Path, principal: str | None, *, as_json: bool) -> None:
    from connectors.cli.acl_output import commands, to_json
    from connectors.doctor.acls import acls_of

    refuse_beside_job(path, "job_file", "timeout", *_OF_JOB, beside="--acls")
    if principal is not None and not all(principal.partition(":")):
        raise click.UsageError("--principal has the form TYPE:NAME, such as User:flights.")
    job = job_of(path)
    show = to_json if as_json else commands
    click.echo(show(job.app_id, acls_of(job, principal or "")))


def _wanted(
    *,
    app: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    timeout_ms: int | None,
    checkpoint_timeout: float,
    restart_budget: float,
    barrier_interval: float,
) -> Wanted:
    """Return what the command line wants from a cluster."""
    from connectors.doctor.facts import Wanted

    return Wanted(
        application_id=app,
        inputs=inputs,
        outputs=outputs,
        timeout_ms=timeout_ms,
        checkpoint_timeout_s=checkpoint_timeout,
        restart_budget_s=restart_budget,
        interval_s=barrier_interval,
    )


def _addresses(job: JobDefinition) -> list[CheckpointLocation]:
    """Return the stores (of objects, or HDFS) in which a job keeps its checkpoint and its log."""
    from connectors.pipeline.checkpoint_address import location_in
    from transactions.checkpoint_location import CheckpointLocation

    places = [location_in(job.mode, job.location, job.targets)]
    if (log := job.decision_log) is not None:
        places.append(CheckpointLocation(str(log.address), log.options))
    return [place for place in places if place.folder is None]


def _cases(job: JobDefinition) -> list[_Case]:
    """Return what a job needs, for each set of client settings in it; the driver groups as well."""
    from connectors.doctor.facts import Wanted
    from connectors.doctor.preflight import by_settings

    source, sinks = job.source, kafka_sinks(job.targets)
    carrier = offsets_sink(sinks, source.bootstrap_servers)  # it must read the inputs, too
    all_of_them = Wanted(
        application_id=job.app_id,
        checkpoint_timeout_s=job.option("checkpoint_timeout"),
        restart_budget_s=job.option("restart_budget"),
        interval_s=job.interval_s,
    )
    read = Wanted(
        inputs=source.topics,
        input_pattern=source.subscribe_pattern or "",
        strangers=False,
        transactions=False,
    )
    cases: list[_Case] = []
    for here, written in by_settings(sinks, all_of_them):
        settings = here[0].settings
        is_sources = settings == source.client_settings
        timeouts = [one.transaction_timeout_ms for one in here if one.transaction_timeout_ms]
        wanted = dataclasses.replace(written, timeout_ms=min(timeouts, default=None))
        if is_sources or carrier in here:
            wanted = dataclasses.replace(
                wanted, inputs=read.inputs, input_pattern=read.input_pattern
            )
        used_by = ["source"] * is_sources + [f"sink {one.name!r}" for one in here]
        cases.append(_Case(settings, wanted, used_by))
    if source.client_settings not in [case.settings for case in cases]:
        cases.append(_Case(source.client_settings, read, ["source"]))
    return cases


def _json(
    reports: Sequence[tuple[_Case, list[Verdict]]],
    storages: Sequence[tuple[CheckpointLocation, list[Verdict]]],
) -> str:
    import orjson

    from connectors.doctor.verdicts import worst

    clusters = [
        {
            "bootstrap": case.bootstrap,
            "used_by": case.used_by,
            "level": worst(verdicts).value,
            "checks": _rows(verdicts),
        }
        for case, verdicts in reports
    ]
    tried = [
        {"address": str(place), "level": worst(verdicts).value, "checks": _rows(verdicts)}
        for place, verdicts in storages
    ]
    told = {"clusters": clusters, "storages": tried}
    return orjson.dumps(told, option=orjson.OPT_INDENT_2).decode()


def _rows(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    return [
        {
            "check": one.check,
            "level": one.level.value,
            "found": one.found,
            "reason": one.reason,
            "option": one.option,
        }
        for one in verdicts
    ]


def _show(title: str, verdicts: list[Verdict]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a file or a pipe gets the whole text
    table = Table(title=title, title_justify="left")
    table.add_column("check", overflow="fold")
    table.add_column("")
    table.add_column("found", overflow="fold")
    table.add_column("why, and what to change", overflow="fold")
    for one in verdicts:
        advice = f"{one.reason}\nchange: {one.option}" if one.option else one.reason
        level = f"[{_STYLE[one.level.value]}]{one.level.value}[/]"
        table.add_row(escape(one.check), level, escape(one.found), escape(advice))
    console.print(table)
