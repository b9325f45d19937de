"""`sparkonce run`: a pipeline without Python, from a job file."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from connectors.cli.kafka_options import job_of
from connectors.cli.stop_switch import StopSwitch
from connectors.kafka.sink.kafka_sink import kafka_sinks
from connectors.options.page import help_text
from transactions.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rich.status import Status

    from connectors.clients.login_on_disk import LoginOnDisk
    from connectors.options.job_definition import JobDefinition
    from transactions.coordinator import CheckpointReport

STOPPED = 0
FAILED = 1
BAD_CONFIGURATION = 2
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 60.0

_EPILOG = """\b
Example job file:
  [app]
  id = "flights"
  checkpoint = "state/flights"        # relative to this file
  trigger = "1 second"                # or "available-now"
  restart_strategy = "exponential-delay(attempts=10)"   # or "none", "fixed-delay(...)", ...
\b
  [source]
  kafka.bootstrap.servers = "${BROKERS}"
  subscribe = "flights"
  startingOffsets = "earliest"
\b
  [transform]
  sql = "SELECT key, upper(CAST(value AS STRING)) AS value FROM source"
\b
  [[sink]]
  kafka.bootstrap.servers = "${BROKERS}"
  topic = "flights-clean"

\b
Several [[sink]] commit under one decision, all or none. Each may have its own
sql. function = "module:name" may return one DataFrame per sink name.

\b
mode = "continuous" in [app] moves records all the time instead of in batches,
for latencies below 100 ms. It needs one [[sink]], and arrow = "module:name" in
[transform]: a function from record batch to record batch. It runs in both modes.

\b
Exit codes: 0 stopped cleanly, 1 failed, 2 bad configuration; 143 stopped cleanly by
a signal where a cluster runs the driver (YARN), which then starts it again.
ctrl-C, SIGTERM and a closed terminal stop between two checkpoints; nohup keeps it
running without one. After a temporary failure (a broker
is down, a worker was killed, a batch is stuck) the pipeline restarts in this process.
"""


@click.command(name="run", epilog=f"{_EPILOG}\n{help_text()}")
@click.argument("job_file", metavar="JOB.toml", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--check", is_flag=True, help="Only check the file: no Spark, no broker.")
@click.option(
    "--from-savepoint",
    metavar="PATH",
    help="Start an empty checkpoint from a savepoint, in a folder or at an address; a repeat is "
    "harmless.",
)
@click.option(
    "--claim-mode",
    type=click.Choice(["no-claim", "claim"]),
    default="no-claim",
    show_default=True,
    help="no-claim: copy the savepoint and keep it; claim: delete the savepoint after the restore.",
)
@click.option(
    "--allow-non-restored-state",
    is_flag=True,
    help="Skip the topics and sinks of the savepoint that the job does not have.",
)
@click.option(
    "--accept-duplicates",
    is_flag=True,
    help="Start although newer output exists (old folder, savepoint); it is then written twice.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    job_file: Path,
    check: bool,
    from_savepoint: str | None,
    claim_mode: str,
    **allowed: bool,
) -> None:
    """Run the pipeline of a job file, exactly-once, until it is stopped.

    After a kill the job first commits what it had decided, then continues from there.
    """
    if from_savepoint is None and (claim_mode != "no-claim" or allowed["allow_non_restored_state"]):
        raise click.UsageError("--claim-mode and --allow-non-restored-state need --from-savepoint.")
    from transactions.errors import ConfigurationError, SparkOnceError

    with StopSwitch(_say) as stop:
        try:
            job = job_of(job_file)
            check_job(job)
            if check:
                click.echo(_described(job))
            else:
                _run(job, stop, from_savepoint, claim=claim_mode == "claim", **allowed)
                from connectors.spark.submitted import exit_code_of_stop

                if stop.asked:
                    context.exit(exit_code_of_stop())
        except SparkOnceError as error:
            click.echo(f"{type(error).__name__}: {error}", err=True)
            wrong = isinstance(error, ConfigurationError)
            context.exit(BAD_CONFIGURATION if wrong else FAILED)
    context.exit(STOPPED)


def check_job(job: JobDefinition) -> None:
    """Check what the parser cannot check: the place of the checkpoint, the client settings, the
    address of the decision log and the import of the function.

    Raises:
        ConfigurationError: one of them is wrong.
    """
    from connectors.clients.client_settings import kafka_python_settings, librdkafka_settings
    from connectors.pipeline.checkpoint_address import location_in
    from transactions.errors import ConfigurationError

    location_in(job.mode, job.location, job.targets)
    librdkafka_settings(job.source.client_settings)
    for sink in kafka_sinks(job.targets):
        librdkafka_settings(sink.settings)
        kafka_python_settings(sink.settings)
    if job.decision_log is not None:
        job.decision_log.check()
    if job.function is not None or job.arrow is not None:
        from connectors.spark.job import (
            before_session,
            find_arrow_function,
            find_function,
            wants_session,
        )

        with before_session():
            find_arrow_function(job)
            try:
                find_function(job)
            except ConfigurationError as error:
                if not wants_session(error):
                    raise  # else the function is looked for again when there is one


def _run(job: JobDefinition, stop: StopSwitch, from_savepoint: str | None, **wanted: bool) -> None:
    import logging

    from connectors.spark.job import run_job
    from connectors.spark.submitted import is_submitted
    from transactions.errors import AuthenticationError

    class OnStderr(logging.StreamHandler[TextIO]):
        """Writes to what is stderr now: rich puts each line above the one that it shows live."""

        def emit(self, record: logging.LogRecord) -> None:
            self.stream = sys.stderr
            super().emit(record)

    form = "%(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, handlers=[OnStderr()])
    logging.getLogger("sparkonce").setLevel(logging.INFO)  # events: recovered, healed, ...
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # our errors report it once
    _say(f"{_described(job)}: starting")
    refused = _logins(job)
    progress, stopped = Progress(), False
    savepoint = None
    if from_savepoint is not None:
        from connectors.pipeline.restoring import FromSavepoint

        savepoint = FromSavepoint(place=from_savepoint, **wanted)
    try:
        run_job(
            job,
            stop=stop,
            on_started=progress.started,
            on_checkpoint=progress.checkpoint,
            from_savepoint=savepoint,
            accept_duplicates=wanted["accept_duplicates"],
        )
        stopped = True
    except AuthenticationError as error:
        # What was refused is not tried again: that could lock the account. A cluster that runs the
        # driver starts it again by itself.
        if stop.asked or is_submitted() or not progress.runs:
            raise
        if _logins(job_of(job.path)) == refused:
            raise
        _say(f"{type(error).__name__}: {error}")
        _say(f"{job.app_id}: its login has been renewed; starting again")
        progress.close(stopped=True)
        _start_again()
    finally:
        progress.close(stopped=stopped)
    _say(f"{job.app_id}: stopped; {progress.total}")


def _logins(job: JobDefinition) -> list[LoginOnDisk]:
    from connectors.clients.login_on_disk import login_on_disk

    every = [job.source.client_settings, *(sink.settings for sink in kafka_sinks(job.targets))]
    return [login_on_disk(settings) for settings in every]


def _start_again() -> None:
    """Become the process of a new start, as it was typed: with its own imports, and its own JVM.
    The JVM of this process ends, because its stdin is closed.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - as at the end of a process, which this is
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own words


def _described(job: JobDefinition) -> str:
    sinks = ", ".join(definition.sink.name for definition in job.sinks)
    return f"{job.app_id}: {', '.join(job.source.reads)} -> {sinks}"


def _say(text: str) -> None:
    """Write a line to stderr; a closed stderr must not stop a pipeline.

    Not with `click.echo`: it goes round rich, which puts a line above the one that it shows live.
    """
    stderr: TextIO | None = sys.stderr  # None: it was closed before the start
    with contextlib.suppress(OSError):
        if stderr is not None:
            stderr.write(f"{text}\n")
            stderr.flush()


class Progress:
    """One line per checkpoint on stderr. A terminal shows only the newest line. Elsewhere the first
    line is written, then one line after each pause; the pauses grow from two seconds to a minute.

    The query's thread calls it after each commit.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._next = float("-inf")
        self._pause_s = _FIRST_PAUSE_S
        self._held = ""
        #: The driver has started.
        self.runs = False
        self._records = 0
        self._checkpoints = 0
        stderr: TextIO | None = sys.stderr
        self._status = _live_status() if stderr is not None and stderr.isatty() else None

    @property
    def total(self) -> str:
        """The records and checkpoints since the start."""
        return f"{self._records:,} records in {self._checkpoints:,} checkpoints"

    def started(self, recommitted: int) -> None:
        """Report that the query runs, and how many transactions of an earlier run it committed."""
        self.runs = True
        left = f"; {recommitted} transactions of an earlier run committed" if recommitted else ""
        _say(f"running{left}")

    def checkpoint(self, report: CheckpointReport) -> None:
        """Show one checkpoint."""
        self._records += report.records
        self._checkpoints += 1
        again = f", {report.recommitted} recommitted" if report.recommitted else ""
        line = (
            f"checkpoint {report.checkpoint_id}: {report.records:,} records, "
            f"{report.transactions} transactions{again}, commit {report.commit_ms:.0f} ms; "
            f"{self._records:,} so far"
        )
        if self._status is not None:
            # Beside the spinner and a space: a line that wraps would flicker, and leave its rest.
            width = self._status.console.width - 2
            self._status.update(line if len(line) <= width else f"{line[: width - 1]}…")
            return
        now = self._clock.monotonic()
        if now >= self._next:
            self._next, self._held = now + self._pause_s, ""
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            _say(line)
        else:
            self._held = line

    def close(self, *, stopped: bool) -> None:
        """Show the last checkpoint if it is not shown yet; a clean stop shows only the total."""
        if self._status is not None:
            with contextlib.suppress(OSError):  # the terminal was closed
                self._status.stop()
        if self._held and not stopped:
            _say(self._held)
            self._held = ""


def _live_status() -> Status:
    from rich.console import Console

    status = Console(stderr=True).status("waiting for records", spinner="dots")
    status.start()
    return status
