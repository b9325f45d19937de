"""`sparkonce verify`: prove that an output topic holds every input record exactly once."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from connectors.cli.duration_option import DURATION
from connectors.cli.kafka_options import job_of, kafka_options, kafka_settings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from connectors.operations.verdict import Verdict
    from connectors.operations.verify_options import VerifyOptions
    from transactions.checkpoint_location import CheckpointLocation

PROOF_HOLDS = 0
PROOF_FAILS = 1
NO_VERDICT = 2

_EPILOG = """\b
Examples:
  The pipeline of a job file; the key identifies a record
    sparkonce verify --job flights.toml --key-id key
  A copy: key and value are the same on both sides
    sparkonce verify --bootstrap localhost:9092 --input flights --output flights-copy
  A pipeline that began at the end of the input (startingOffsets = "latest", the default)
    sparkonce verify --bootstrap localhost:9092 --input flights --output flights-copy \\
        --checkpoint state/flights
  The value changes, but one of its fields identifies the record; order matters
    sparkonce verify --bootstrap localhost:9092 --input flights --output flights-clean \\
        --key-id json:flight_id --ordered
  A secured cluster; the output carries the input's key in a header
    sparkonce verify --bootstrap broker:9093 --input in --output out \\
        --key-id key --output-key-id header:source-key \\
        --kafka security.protocol=SASL_SSL --kafka sasl.mechanism=PLAIN \\
        --kafka sasl.username=me --kafka sasl.password=secret

\b
Exit codes: 0 the proof holds, 1 it fails, 2 no verdict (bad option, no broker, stopped, no record
was compared, or --key-id does not tell all records apart).
"""


@click.command(name="verify", epilog=_EPILOG)
@kafka_options
@click.option("--input", "inputs", multiple=True, help="Source topic; repeatable.")
@click.option("--output", "outputs", multiple=True, help="Sink topic; repeatable.")
@click.option(
    "--key-id",
    default="record",
    show_default=True,
    metavar="record|key|value|header:NAME|json:FIELD",
    help="What identifies a record: key and value together, or one part of it that no other input "
    "record has.",
)
@click.option(
    "--output-key-id",
    default=None,
    metavar="...",
    help="What identifies a record in the output, if that differs.",
)
@click.option(
    "--checkpoint",
    metavar="FOLDER|URL",
    default=None,
    help="The pipeline's checkpoint; older input than its first record does not count. The options "
    "of a store come from the environment. Default with --job: the checkpoint of the job.",
)
@click.option("--ordered", is_flag=True, help="Prove order within each source partition as well.")
@click.option("--allow-missing", is_flag=True, help="The pipeline drops records on purpose.")
@click.option(
    "--allow-repeats",
    is_flag=True,
    help="Several input records may have one identity. Then the loss of one of them and a "
    "duplicate of another are not seen; not with --ordered.",
)
@click.option(
    "--timeout",
    type=DURATION,
    default="1min",
    show_default=True,
    help="How long to wait for open transactions to end, for a pipeline that lags while its topics "
    "grow, and for progress.",
)
@click.option("--examples", type=int, default=5, show_default=True, help="Records named per kind.")
@click.option(
    "--spill",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=None,
    help="Folder for hashes (32 bytes a record) when a search is needed.  [default: system's]",
)
@click.pass_context
def command(
    context: click.Context,
    *,
    bootstrap: str | None,
    pairs: tuple[str, ...],
    config: Path | None,
    job_file: Path | None,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    key_id: str,
    output_key_id: str | None,
    checkpoint: str | None,
    ordered: bool,
    allow_missing: bool,
    allow_repeats: bool,
    timeout: float,
    examples: int,
    spill: Path | None,
) -> None:
    """Prove that the output topics hold every record of the input topics exactly once.

    It reads both sides with read_committed up to their present ends. What was in the input when the
    command began must be in the output; a pipeline that lags has the --timeout to catch up. What
    came later may be there: writers and pipeline may go on.

    It fails, and names the records, on a duplicate, a loss (at the tail or in the middle), a
    foreign record and a change of order (--ordered). It also fails on an open transaction that
    hides records from readers. Where all that is wrong is an identity that records share, or do not
    have, there is no verdict.
    """
    from rich.console import Console

    from connectors.operations.job_topics import JobTopics
    from connectors.operations.pipeline_start import pipeline_start
    from connectors.operations.verify_options import VerifyOptions
    from connectors.options.client_options import ClientOptions

    with _no_verdict(context, spill):
        kafka = ClientOptions(kafka_settings(bootstrap, pairs, config))
        decision_log = None
        place: str | CheckpointLocation | None = checkpoint
        partitions: frozenset[str] = frozenset()
        if job_file is not None:
            job = job_of(job_file)
            of_job = JobTopics.of(job, inputs=inputs, outputs=outputs)
            kafka = ClientOptions({**of_job.kafka, **kafka})
            inputs, outputs, partitions = of_job.inputs, of_job.outputs, of_job.partitions
            if place is None:
                place, decision_log = job.location, job.decision_log
        options = VerifyOptions(
            kafka=kafka,
            inputs=inputs,
            partitions=partitions,
            outputs=outputs,
            key_id=key_id,
            output_key_id=output_key_id,
            begins={} if place is None else pipeline_start(place, inputs, decision_log),
            ordered=ordered,
            allow_missing=allow_missing,
            allow_repeats=allow_repeats,
            timeout=timeout,
            examples=examples,
            directory=spill,
        )
        verdict = _run(options, Console(stderr=True))
    _show(verdict, options, Console())
    if verdict.empty or verdict.uncompared:
        context.exit(NO_VERDICT)
    context.exit(PROOF_HOLDS if verdict.ok else PROOF_FAILS)


@contextlib.contextmanager
def _no_verdict(context: click.Context, spill: Path | None) -> Iterator[None]:
    """End with 2 on every error: click and Python exit with 1, which means here that the proof
    fails.
    """
    from transactions.errors import SparkOnceError

    try:
        yield
        return
    except SparkOnceError as error:
        told = f"{type(error).__name__}: {error}"
    except OSError as error:
        # A full disk names no file: the hashes are all that is written.
        spills = "" if error.filename else f"\n  look at: --spill={spill}"
        told = f"No verdict: {error}{spills}"
    except KeyboardInterrupt:
        told = "Stopped: no verdict."
    except Exception:  # noqa: BLE001 - a bug of ours
        told = f"{traceback.format_exc()}No verdict."
    click.echo(told, err=True)
    context.exit(NO_VERDICT)


def _run(options: VerifyOptions, console: Console) -> Verdict:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from connectors.operations.verify import verify

    columns = TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done, total=total)

        return verify(options, progress=progress)


def _show(verdict: Verdict, options: VerifyOptions, console: Console) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=options.route)
    table.add_column("what")
    table.add_column("records", justify="right")
    table.add_column("first ones", overflow="fold")
    table.add_row("input", f"{verdict.records_in:,}", "")
    if verdict.records_late:
        table.add_row("input, since then (may be missing)", f"{verdict.records_late:,}", "")
    table.add_row("output", f"{verdict.records_out:,}", "")
    for name, count in verdict.anomalies.items():
        places = ", ".join(str(example) for example in verdict.examples.get(name, ()))
        note = "" if name in verdict.failures else " (allowed)"
        table.add_row(f"{name}{note}", f"{count:,}", escape(places))
    console.print(table)
    for hint in _hints(verdict, options):
        console.print(hint, markup=False)
    if verdict.empty:
        console.print("[yellow]No verdict:[/yellow] no record was compared.")
    elif verdict.ok:
        holds = "exactly once"
        if options.allow_repeats:
            holds = "each identity as often as in the input"
        if verdict.missing_allowed:
            holds = "at most once, nothing foreign"
        console.print(f"[green]The proof holds:[/green] {holds}, by [bold]{options.key_id}[/bold].")
    else:
        named = ", ".join(f"{name} ({count:,})" for name, count in verdict.failures.items())
        says = "[red]The proof fails:[/red]"
        if verdict.uncompared:
            says = "[yellow]No verdict:[/yellow]"
        console.print(f"{says} {named}")


def _hints(verdict: Verdict, options: VerifyOptions) -> list[str]:
    from connectors.operations.verdict import (
        FOREIGN,
        LOST_MIDDLE,
        LOST_TAIL,
        NO_IDENTITY,
        ORDER_UNKNOWN,
        REPEATED,
    )

    hints = []
    if verdict.held_back:
        places = ", ".join(verdict.held_back[:5])
        hints.append(f"An open transaction of the input hides records; they do not count: {places}")
    if verdict.removed and not verdict.ok:
        places = ", ".join(verdict.removed[:5])
        hints.append(
            f"Records are gone (retention), so what they match counts as foreign or lost: {places}"
        )
    if verdict.compacted:
        hints.append(
            f"Compacted (cleanup.policy): {', '.join(verdict.compacted)}. Older records of a key "
            "may be gone: what they match counts as foreign or lost, and a duplicate is not seen."
        )
    if REPEATED in verdict.anomalies:
        hints.append(
            "Several input records have one identity: the loss of one and a duplicate of another "
            "would look like success. Choose a --key-id that each record has for itself"
            f"{'' if options.ordered else ', or --allow-repeats'}."
        )
    if verdict.may_change:
        growing = ", ".join(verdict.still_growing[:5]) or "the input"
        hints.append(
            f"Still growing: {growing}. If the pipeline lags, let it catch up, or wait longer "
            f"for it: --timeout={options.timeout:g}s"
        )
    elif LOST_TAIL in verdict.failures:
        hints.append("The pipeline lacks the last records: it may not have come to them yet.")
    lost = verdict.anomalies.get(LOST_TAIL, 0) + verdict.anomalies.get(LOST_MIDDLE, 0)
    foreign = verdict.anomalies.get(FOREIGN, 0)
    if lost == verdict.records_in != 0 and foreign == verdict.records_out != 0:
        hints.append(f"No record matched: --key-id {options.key_id} may not fit.")
    elif LOST_MIDDLE in verdict.failures and not options.begins:
        hints.append("Without --job or --checkpoint, input from before the start counts as lost.")
    elif FOREIGN in verdict.failures and any(options.begins.values()):
        hints.append(
            "Input from before the start of the pipeline does not count. If another query has "
            "written its results to the same topics, prove all of it: with --bootstrap, --input "
            "and --output in place of --job and --checkpoint."
        )
    if ORDER_UNKNOWN in verdict.anomalies:
        hints.append(
            "Nobody can tell in which order equal records came: choose a --key-id that each record "
            "has for itself, or leave out --ordered."
        )
    if NO_IDENTITY in verdict.anomalies:
        hints.append("Records without identity cannot be compared: choose another --key-id.")
    return hints
