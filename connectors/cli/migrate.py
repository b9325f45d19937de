"""`sparkonce migrate`: a query on Spark's own Kafka source becomes a pipeline, without a gap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from connectors.cli.kafka_options import job_of

if TYPE_CHECKING:
    from connectors.pipeline.migration import Migration

_EPILOG = """\b
First stop the query for good. Then, for a job file or for a pipeline in Python:
  sparkonce migrate /data/old-query --job flights.toml
  sparkonce migrate /data/old-query --app-id flights --checkpoint /data/flights

\b
Refused: a query with state, a source that is not Kafka, Spark's continuous
processing, other topics than those of the job, a new checkpoint that is in use.

\b
Exit codes: 0 done, 1 failed (repeat the command: it says whether the pipeline
has begun), 2 refused; then nothing was written.
"""


@click.command(name="migrate", epilog=_EPILOG)
@click.argument("old", metavar="CHECKPOINT")
@click.option(
    "--job",
    "job_file",
    metavar="JOB.toml",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Job file of the new pipeline: its id, its checkpoint, and the topics it must read.",
)
@click.option("--app-id", metavar="ID", help="Without a job file: app_id of the new pipeline.")
@click.option(
    "--checkpoint", metavar="FOLDER", help="Without a job file: checkpoint of the new pipeline."
)
@click.option(
    "--planned-batch",
    type=click.Choice(["run-again", "skip"]),
    help="For a query that was stopped within a batch. run-again: the new pipeline reads this "
    "batch; skip: the old sink has all of it.",
)
@click.option("--check", is_flag=True, help="Only say where the new pipeline would begin.")
def command(
    *,
    old: str,
    job_file: Path | None,
    app_id: str | None,
    checkpoint: str | None,
    planned_batch: str | None,
    check: bool,
) -> None:
    """Begin a new pipeline where a query on Spark's own Kafka source has ended.

    CHECKPOINT is the checkpointLocation of the query. It is only read. The start is written into
    the checkpoint of the new pipeline, which must be empty.
    """
    by_hand = (app_id, checkpoint)
    if (job_file is None) == (None in by_hand) or (job_file is not None and any(by_hand)):
        raise click.UsageError("Give --job, or --app-id and --checkpoint.")
    from connectors.machine.user_folders import checkpoint_folder
    from connectors.options.option import checked_app_id
    from connectors.pipeline.migration import begin, plan_migration, refuse_used

    job = None if job_file is None else job_of(job_file)
    name = app_id if job is None else job.app_id
    folder = checkpoint if job is None else job.checkpoint
    assert name is not None
    assert folder is not None
    checked_app_id(name)
    target = checkpoint_folder(folder)
    log = None if job is None else job.decision_log
    migration = plan_migration(
        _old_folder(old), source=None if job is None else job.source, planned_batch=planned_batch
    )
    if check:
        refuse_used(target, log)
    else:
        begin(migration, app_id=name, checkpoint=target, decision_log=log)
    _show(migration, name)
    if check:
        click.echo("Nothing was written.")
        return
    run = "driver.run()" if job_file is None else f"sparkonce run {job_file}"
    click.echo(f"Next: {run}. Do not start the old query again.")


def _old_folder(old: str) -> Path:
    from transactions.checkpoint_location import local_path
    from transactions.errors import ConfigurationError

    path = local_path(old)
    if path is None:
        raise ConfigurationError(
            "The checkpoint of the query must be in a local folder.",
            where=old,
            cause="only local files are read",
            option="CHECKPOINT: copy the whole checkpoint to a local folder, and name that folder",
        )
    return path


def _show(migration: Migration, app_id: str) -> None:
    """Say where each partition begins, and what becomes of a planned batch."""
    from connectors.kafka.source.offsets import split_key

    old = migration.progress
    skipped = migration.planned_batch == "skip"
    batch = old.planned if skipped else old.done
    click.echo(f"{app_id} begins at the end of batch {batch} of {old.place}:")
    for name in sorted({key for one in migration.begins for key in one}, key=split_key):
        offset = next(one[name] for one in migration.begins if name in one)
        click.echo(f"  {name}  {offset:,}")
    if old.in_doubt:
        count = sum(end - at for at, end in old.in_doubt.values())
        fate = "is skipped" if skipped else "is run again"
        click.echo(
            f"Batch {old.planned}, which was planned and has no commit, {fate}: {count:,} offsets."
        )
