"""`sparkonce savepoint`: everything that a pipeline needs to continue elsewhere, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connectors.cli.duration_option import DURATION
from connectors.cli.kafka_options import job_of
from connectors.cli.transaction_output import text
from connectors.kafka.sink.kafka_sink import kafka_sinks

if TYPE_CHECKING:
    from connectors.operations.transaction_reader import TransactionReader
    from connectors.options.job_definition import JobDefinition
    from transactions.checkpoint_location import CheckpointLocation
    from transactions.log_state import LogState
    from transactions.savepoint import Savepoint

_PLACE = click.argument("place", metavar="PATH")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(name="savepoint")
def command() -> None:
    """Make, list and delete savepoints.

    A savepoint is a copy of a finished checkpoint: source offsets and the engine's state, without
    a pending transaction. `sparkonce run JOB.toml --from-savepoint PATH` continues from it.
    """


@command.command()
@click.argument("job_file", metavar="JOB.toml", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--to",
    "folder",
    metavar="FOLDER",
    required=True,
    help="Folder or address for savepoints; each savepoint gets its own subfolder.",
)
@click.option("--stop", is_flag=True, help="Stop the pipeline between two checkpoints first.")
@click.option(
    "--stopped", is_flag=True, help="The driver has ended; it ran where this command cannot look."
)
@click.option(
    "--timeout", type=DURATION, default="10min", show_default=True, help="How long to wait."
)
def take(*, job_file: Path, folder: str, stop: bool, stopped: bool, timeout: float) -> None:
    """Take a savepoint of the pipeline of a job file, running or stopped.

    A running pipeline makes the savepoint itself, between two checkpoints. The command prints
    the path. It sees only on the machine of the driver that the pipeline is stopped: on another
    one, and in a new container, say so with --stopped.
    """
    if stop and stopped:
        raise click.UsageError("Give --stop or --stopped: a stopped pipeline needs no stop.")
    from rich.console import Console

    from connectors.operations.transaction_reader import TransactionReader

    job = job_of(job_file)
    sinks = {sink.name: sink for sink in kafka_sinks(job.targets)}
    checkpoint = job.location
    target = checkpoint.beside(folder)
    with TransactionReader(checkpoint, {}, sinks, job.decision_log) as reader:
        alive = False if stopped else reader.run_alive()
        if alive is None:
            driver = _driver_of(reader.state)
            unseen = f"waiting for {driver}, which this machine cannot see"
            click.echo(f"{unseen}; if it has ended: --stopped", err=True)
        with Console(stderr=True).status(f"{job.app_id}: making a savepoint"):
            if alive is False:
                made = _of_stopped(job, reader, checkpoint, target, timeout)
            else:
                made = _of_running(reader, checkpoint, target, stop=stop, timeout_s=timeout)
    click.echo(made)


def _driver_of(state: LogState) -> str:
    return f"run {state.run_epoch} of {state.application_id} ({state.host})"


def _of_running(
    reader: TransactionReader,
    checkpoint: CheckpointLocation,
    folder: CheckpointLocation,
    *,
    stop: bool,
    timeout_s: float,
) -> CheckpointLocation:
    from connectors.pipeline.savepoint_request import ask_for_savepoint
    from transactions.clock import Deadline
    from transactions.errors import SavepointNotMadeError

    driver = _driver_of(reader.state)

    def check_alive() -> None:
        if reader.run_alive() is False:
            raise SavepointNotMadeError(
                "The driver has ended without an answer.",
                where=f"{checkpoint}, {driver}",
                cause="it failed, or was killed",
                option="start the pipeline, and repeat the command; nothing is lost",
            )

    waiting = Deadline(timeout_s)
    try:
        return ask_for_savepoint(
            checkpoint, folder, stop=stop, timeout_s=timeout_s, while_waiting=check_alive
        )
    except SavepointNotMadeError as error:
        if not waiting.expired():
            raise
        raise SavepointNotMadeError(
            error.what,
            where=f"{error.where}: {driver}",
            cause=error.cause,
            option=f"--stopped, if no driver runs; {error.option}",
        ) from error


def _of_stopped(
    job: JobDefinition,
    reader: TransactionReader,
    checkpoint: CheckpointLocation,
    folder: CheckpointLocation,
    timeout_s: float,
) -> CheckpointLocation:
    """Take the last checkpoint of a pipeline that does not run, if that checkpoint is finished."""
    from connectors.options.table import CONTINUOUS
    from connectors.spark.checkpoint_files import SPARK, files_of, is_finished
    from transactions.decision_log import read_log
    from transactions.savepoint import savepoint_of, unfinished, unwritten
    from transactions.savepoint_place import FolderCopier, delete_savepoint, write_savepoint

    savepoint = savepoint_of(reader.state)
    number = savepoint.decision.checkpoint_id
    if job.mode != CONTINUOUS and None in (checkpoint.folder, folder.folder):
        raise _needs_driver(checkpoint, folder)
    place = None if job.mode == CONTINUOUS else checkpoint.folder
    spark = None if place is None else place / SPARK
    unsettled = [f"checkpoint {number}"] if spark and not is_finished(spark, number) else []
    if not unsettled:
        unsettled = _unsettled(reader, checkpoint, timeout_s)
    if unsettled:
        raise unfinished(f"{checkpoint}: {', '.join(unsettled[:5])}")
    try:
        files = {} if place is None else files_of(place, number)
        made = write_savepoint(folder, savepoint, files, FolderCopier())
    except OSError as error:
        gone = Path(error.filename or "")
        # Spark also removes old state between two batches, when the log does not change.
        if isinstance(error, FileNotFoundError) and spark in gone.parents:
            raise _went_on(checkpoint, f"{_driver_of(reader.state)}: {gone} is gone") from error
        raise unwritten(folder, error) from error
    now = read_log(reader.backend)
    if now.tail != savepoint.log.sequence:  # `rows` has moved reader.state
        delete_savepoint(made, FolderCopier())
        raise _went_on(checkpoint, _driver_of(now))
    return made


def _needs_driver(checkpoint: CheckpointLocation, folder: CheckpointLocation) -> Exception:
    from transactions.errors import SavepointNotMadeError

    return SavepointNotMadeError(
        "Only a running driver copies Spark's files from or to an address.",
        where=f"{checkpoint}, to {folder}",
        cause="the pipeline is stopped, and this command has no client of the store for Hadoop",
        option="start the pipeline; then: sparkonce savepoint take --stop. Or, of a folder: --to "
        "another folder; a restore copies from there to an address, too",
    )


def _went_on(checkpoint: CheckpointLocation, where: str) -> Exception:
    from transactions.errors import SavepointNotMadeError

    return SavepointNotMadeError(
        "The pipeline went on while this command made the savepoint.",
        where=f"{checkpoint}, {where}",
        cause="its driver runs, or was started meanwhile",
        option="repeat the command without --stopped: the driver then makes the savepoint",
    )


def _unsettled(
    reader: TransactionReader, checkpoint: CheckpointLocation, timeout_s: float
) -> list[str]:
    """Return what of the last decision is not proven committed. `Settled` in the log says that all
    of it is, and that readers see it, so that no broker is asked.

    Raises:
        SavepointNotMadeError: readers do not see what is committed.
    """
    from connectors.operations.transaction_table import Standing
    from transactions.clock import Deadline
    from transactions.savepoint import unseen

    last = reader.state.decision
    if last is None or not last.committables:
        return []
    deadline = Deadline(timeout_s)
    rows = [row for row in reader.rows(deadline) if row.decided is not None]
    # This look decides, whatever `rows` has seen a moment before.
    if hidden := reader.hidden_places(rows, deadline):
        raise unseen(f"{checkpoint}: {'; '.join(hidden[:5])}")
    # The next start acts on a `resolve`. Until then a resolved transaction is unsettled as well.
    committed = (Standing.COMMITTED, Standing.HIDDEN)
    return [row.transactional_id for row in rows if row.standing not in committed]


@command.command(name="list")
@click.argument("folder", metavar="FOLDER")
@_JSON
def list_command(folder: str, as_json: bool) -> None:
    """Show the savepoints of a folder, oldest first."""
    import orjson
    from rich.console import Console
    from rich.table import Table

    from transactions.checkpoint_location import CheckpointLocation
    from transactions.errors import ConfigurationError, SavepointError
    from transactions.savepoint_place import find_savepoints, read_savepoint

    all_of_them = _in_folder(CheckpointLocation(folder), "list")
    if not all_of_them.is_dir():
        raise ConfigurationError(
            "There is no folder with savepoints.",
            where=str(all_of_them),
            cause="the path is wrong, or no savepoint was taken into it yet",
            option=f"FOLDER={folder}: the folder of `sparkonce savepoint take --to`",
        )
    rows: list[dict[str, Any]] = []
    for place in find_savepoints(all_of_them):
        try:
            rows.append({"path": str(place), **_plain(read_savepoint(place))})
        except SavepointError as error:
            rows.append({"path": str(place), "broken": error.cause})
    if as_json:
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    table = Table()
    for name in ("path", "application", "checkpoint", "made", "files", "bytes"):
        table.add_column(name, overflow="fold")  # people copy a path: it stays whole
    for row in rows:
        facts = [row.get(name, "-") for name in ("application", "checkpoint", "made")]
        sizes = [f"{row[name]:,}" if name in row else "-" for name in ("files", "bytes")]
        broken = f"\nbroken: {row['broken']}" if "broken" in row else ""
        table.add_row(*map(text, (row["path"] + broken, *facts, *sizes)))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


@command.command()
@_PLACE
@_JSON
def show(place: str, as_json: bool) -> None:
    """Read a savepoint, check all its files, and show its content. The files of one at an address
    are not read here: the restore checks each of them.
    """
    import orjson

    from transactions.savepoint_place import verify_savepoint

    facts = _plain(verify_savepoint(place))
    if as_json:
        click.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
        return
    for name, value in facts.items():
        click.echo(f"{name:12} {value}")


@command.command()
@_PLACE
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(place: str, yes: bool) -> None:
    """Delete a savepoint; pipelines that started from it do not need it."""
    from transactions.checkpoint_location import CheckpointLocation
    from transactions.savepoint_place import FolderCopier, delete_savepoint, read_savepoint

    folder = _in_folder(CheckpointLocation(place), "delete")
    read_savepoint(folder)
    if yes or click.confirm(f"Delete {place}?"):
        delete_savepoint(folder, FolderCopier())


def _in_folder(location: CheckpointLocation, command_name: str) -> Path:
    from transactions.errors import ConfigurationError

    if location.folder is None:
        raise ConfigurationError(
            f"`sparkonce savepoint {command_name}` is for savepoints in folders.",
            where=str(location),
            cause="a store has tools of its own for that, such as `aws s3` and `hdfs dfs`; all "
            "that is below the address of a savepoint belongs to it",
            option="PATH: a folder",
        )
    return location.folder


def _plain(savepoint: Savepoint) -> dict[str, Any]:
    import datetime as dt

    made = dt.datetime.fromtimestamp(savepoint.log.written_at_ms / 1000, dt.UTC)
    return {
        "savepoint_id": savepoint.savepoint_id,
        "application": savepoint.log.application_id,
        "checkpoint": savepoint.decision.checkpoint_id,
        "made": made.isoformat(timespec="seconds"),
        "offsets": list(savepoint.decision.end_offsets),
        "files": len(savepoint.files),
        "bytes": savepoint.size,
    }
