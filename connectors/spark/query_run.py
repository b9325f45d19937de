"""One query, or one batch job, in the commit process: from the first plan to the last commit.

plan      before the tasks of a batch: take over, settle what was decided, say what tasks write
(tasks)   write and prepare, in Spark's workers
commit    after the tasks: decide, commit, prove
abort     Spark gives the batch up, or stops the query: sweep, and never undo a decision

Spark writes offsets/N before the plan, and commits/N after the commit. An error ends the run; Spark
fails the query, and the plan of its next start begins a new run.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Final, TypeAlias

import orjson
import pyarrow as pa

from connectors.pipeline.run import Run
from connectors.pipeline.run_options import RunOptions
from connectors.pipeline.spark_checkpoint import batches_of, offsets_of_batch
from connectors.spark.branches import tell_left_out
from connectors.spark.commit_requests import JOB, TaskPlan
from connectors.spark.durable_files import DurableFiles
from connectors.spark.open_run import RESTS_S, OpenRun
from connectors.spark.query_options import QueryOptions, query_id
from connectors.spark.replayable_query import refuse_sources_of_batch, refuse_state_of_batch
from connectors.spark.sink_stage import BatchOrder, told_by_tasks
from connectors.spark.writer_folder import WriterFolder
from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import ConfigurationError, FencedError, PhaseOneError
from transactions.healing import check_replayed, not_healed
from transactions.replay import Checkpoint
from transactions.sink import Owner

logger = logging.getLogger(__name__)

#: How long the run of a query waits for its next batch: Spark does not say that a query has ended.
_IDLE_S: Final = 3600.0
#: How long that run is known then, for a query that goes on: see `_check_newest`.
_KNOWN_S: Final = 86_400.0
#: Per source, where a batch begins and where it ends.
_Range: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class _Open:
    """A run is open; `ends` is when `look` goes on, if nobody calls."""

    opened: OpenRun
    ends: Deadline


@dataclasses.dataclass(frozen=True)
class _Planned(_Open):
    """Tasks have a plan, and its batch has no commit; in the end it is given up."""

    order: BatchOrder
    range: _Range


class _Between(_Open):
    """The newest batch of a query is committed; the next plan goes on with this run."""


class _Resting(_Open):
    """No plan counts, what late tasks open is swept; the next plan is another start."""


@dataclasses.dataclass(frozen=True)
class _Remembered:
    """The run of a query was closed, because no next plan came: see `_check_newest`."""

    before: Run
    ends: Deadline


class QueryRun:
    """Lives in the commit process; one call at a time.

    Args:
        options: of the query or job.
    """

    def __init__(self, options: QueryOptions) -> None:
        self._options = options
        self._folder = WriterFolder(options.checkpoint, options.app_id)
        #: Of the newest run, as its options.
        self._schema: pa.Schema | None = None
        #: None: there is no run.
        self._now: _Planned | _Between | _Resting | _Remembered | None = None
        self._state_checked = False

    def plan(
        self, options: QueryOptions, schema: pa.Schema, left_out: Sequence[str] = ()
    ) -> TaskPlan:
        """Say what the tasks of the next batch write. Called before they begin.

        Args:
            options: as they are now: a restarted query can have others.
            schema: of the record batches that the tasks get.
            left_out: columns that are not written.

        Raises:
            ConfigurationError: an option, a topic, the checkpoint or the columns are wrong.
            ReplayMismatchError: the batch does not follow the last one that was written.
            SparkOnceError: see `Run.open`.
        """
        try:
            number = _planned(options)
            if not options.is_job:
                refuse_sources_of_batch(options.checkpoint, number)
            is_same = options == self._options and schema == self._schema
            if is_same and isinstance(self._now, _Planned | _Between):
                opened = self._now.opened
            else:  # this is another start
                self.close()
                self._options, self._schema = options, schema
                tell_left_out(options.sink.name, left_out)
                options.sink.tell_without_effect()
                opened = self._take_over(number)
            opened.coordinator.prepare()
            order, planned = self._order_for(number, opened), _range_of(options, number)
            self._now = _Planned(opened, Deadline(options.checkpoint_timeout_s), order, planned)
            return TaskPlan(stage=opened.stage, order=order, columns=(*schema.names,))
        except BaseException:
            self.close()
            self._now = None  # the query fails: what comes now is another start
            raise

    def commit(self, number: int, owners: frozenset[Owner], told: Sequence[bytes]) -> None:
        """Make the batch one checkpoint; return only when every record of it is committed.

        Args:
            number: Spark's number of the batch; 0 for a job.
            owners: of the tasks' transactions; none if there were no tasks.
            told: per task, what `SinkStage.write` has returned, as JSON lines.

        Raises:
            PhaseOneError: the tasks have another plan than this run's.
            SparkOnceError: see `CheckpointCoordinator.run`.
        """
        planned = self._check_plan(number, owners)
        try:
            self._commit(planned, told)
        except BaseException:
            self.close()
            raise
        if self._options.is_job:
            self._now = _Resting(planned.opened, Deadline(RESTS_S))
        else:
            self._now = _Between(planned.opened, Deadline(_IDLE_S))

    def abort(self, owners: frozenset[Owner]) -> None:
        """Give the newest plan up: its tasks have failed, or Spark stops the query. A decided batch
        stays decided: Spark calls this also after the last commit of a stopped query.

        Tasks may still run. What they open is swept, for half a minute.

        Args:
            owners: of the tasks' transactions, as far as they are known.
        """
        now = self._now
        if isinstance(now, _Open) and owners <= {now.opened.coordinator.owner}:
            self._give_up(now, RESTS_S)

    def look(self) -> None:
        """End a run that nobody calls any more, and forget it later. Called every second or so."""
        now = self._now
        if now is None or not now.ends.expired():
            return
        match now:
            case _Planned():
                timeout_s = self._options.checkpoint_timeout_s
                logger.warning(
                    "application %s: batch %d is given up, it has no commit after %g s "
                    "(checkpointTimeout)",
                    self._options.app_id,
                    now.order.checkpoint_id,
                    timeout_s,
                )
                self._give_up(now, timeout_s)  # nobody knows whether its tasks still run
            case _Between(opened):
                self.close()
                self._now = _Remembered(opened.run, Deadline(_KNOWN_S))
            case _Resting():
                self.close()
            case _Remembered():
                self._now = None

    def close(self) -> None:
        """Leave nothing open; the next plan begins a new run."""
        now = self._now
        if isinstance(now, _Open):
            self._now = None
            if unfinished := now.opened.run.end(now.opened.coordinator):
                logger.warning("the run has ended, and must be started again: %s", unfinished)

    @property
    def is_open(self) -> bool:
        """Whether it holds a run, or knows the last one of a query that may go on."""
        return self._now is not None

    def _give_up(self, now: _Open, rests_s: float) -> None:
        """Commit nothing of the newest plan, and sweep for some time what its tasks open."""
        self._now = _Resting(now.opened, now.ends)
        if now.opened.sweep_on():
            self._now = _Resting(now.opened, Deadline(rests_s))
        else:
            self.close()

    # --- plan ---------------------------------------------------------------------------------

    def _take_over(self, number: int) -> OpenRun:
        """Take over from the run before: fence, recover, sweep."""
        options = self._options
        self._folder.note_call(number)
        if options.is_job:
            finished, place = self._folder.noted(), self._folder.path
        else:
            self._folder.check(number, accept_duplicates=options.accept_duplicates)
            finished, place = self._folder.finished(), options.checkpoint
        durable = DurableFiles(place)
        before = self._now.before if isinstance(self._now, _Remembered) else None
        if before is not None:
            _check_newest(before)
        run = Run(self._run_options(), before)
        try:
            run.open(finished=finished)
            if not options.is_job:
                accepts = options.accept_duplicates
                self._folder.stop_others(run, number, accept_duplicates=accepts)
            timeout_s = options.checkpoint_timeout_s
            opened = OpenRun(run, durable, timeout_s=timeout_s, stopping=lambda: False)
        except BaseException:
            run.close()
            raise
        self._now = _Resting(opened, Deadline(RESTS_S))  # no tasks have a plan yet
        return opened

    def _run_options(self) -> RunOptions:
        options = self._options
        return RunOptions(
            app_id=options.app_id,
            checkpoint=CheckpointLocation(self._folder.path),
            sources=(),
            sinks=(options.sink,),
            schemas={options.sink.name: self._schema},
            checkpoint_timeout_s=options.checkpoint_timeout_s,
            restart_budget_s=options.restart_budget_s,
            accept_duplicates=options.accept_duplicates,
        )

    def _order_for(self, number: int, opened: OpenRun) -> BatchOrder:
        coordinator = opened.coordinator
        order = BatchOrder(
            checkpoint_id=number,
            write=True,
            last_decided=coordinator.last_decided(),
            retired=coordinator.retired(),
        )
        last = opened.run.log.state.decision
        if last is None or last.checkpoint_id < number:
            return order
        if self._options.is_job and not coordinator.lost:
            logger.warning("job %s was written before; nothing is written", self._options.app_id)
        order = dataclasses.replace(order, compares=self._has_state())
        if coordinator.lost:
            return order.for_lost(coordinator.lost, [self._options.sink.name])
        return dataclasses.replace(order, write=False)

    # --- commit -------------------------------------------------------------------------------

    def _check_plan(self, number: int, owners: frozenset[Owner]) -> _Planned:
        now = self._now
        ours = now.opened.coordinator.owner if isinstance(now, _Open) else None
        planned = now.order.checkpoint_id if isinstance(now, _Planned) else None
        if not isinstance(now, _Planned) or not owners <= {ours} or number != planned:
            raise PhaseOneError(
                "The tasks of a batch belong to a plan that is not the newest; what they wrote is "
                "not committed.",
                where=f"batch {number} of {sorted(map(str, owners))}; the newest plan is of batch "
                f"{planned}, {ours}",
                cause="the process that commits was killed, Spark has planned the query or job "
                "again, or the batch took longer than checkpointTimeout",
                option=f"checkpointTimeout={self._options.checkpoint_timeout_s:g}s; start it again",
            )
        return now

    def _commit(self, planned: _Planned, told: Sequence[bytes]) -> None:
        opened, order = planned.opened, planned.order
        log = opened.run.log
        written, replayed = told_by_tasks(
            orjson.loads(line) for one in told for line in one.splitlines()
        )
        if not self._state_checked and self._has_state():
            refuse_state_of_batch(self._options.checkpoint)
            self._state_checked = True
        durable = opened.durable.begin()

        def phase_one() -> list[Committable]:
            durable()  # what a replay reads must be durable before the decision is
            return written

        def rerun(lost: Sequence[Committable]) -> list[Committable]:
            if any(not order.writes_again(one.subtask) for one in lost):
                raise not_healed(lost)  # Spark runs the batch again, and then it is healed
            check_replayed(log.state, replayed)
            return written

        report = opened.coordinator.run(self._checkpoint(planned, len(told)), phase_one, rerun)
        if report.replayed and not report.healed:
            check_replayed(log.state, replayed)
        if self._has_state():
            opened.durable.begin()()  # before commits/N, which names the state for the next batch
        self._folder.note_finished(order.checkpoint_id)

    def _checkpoint(self, planned: _Planned, tasks: int) -> Checkpoint:
        options, number = self._options, planned.order.checkpoint_id
        start, end = planned.range
        if (now := _range_of(options, number)) != planned.range:
            raise PhaseOneError(
                "The offsets of a batch have changed since its plan; nothing of it is committed.",
                where=f"{options.checkpoint}/offsets, batch {number}: planned {start} to {end}, "
                f"now {now[0]} to {now[1]}",
                cause="another driver runs the same query, or ran it until now",
                option=f"checkpointLocation={options.checkpoint}: stop the other driver",
            )
        return Checkpoint(
            checkpoint_id=number,
            query_id=options.app_id if options.is_job else query_id(options.checkpoint),
            start_offsets=start,
            end_offsets=end,
            partitioning={"sink_tasks": str(tasks)},
        )

    def _has_state(self) -> bool:
        return not self._options.is_job and (self._options.checkpoint / "state").exists()


def _planned(options: QueryOptions) -> int:
    """Return the batch that Spark plans now: it has written its offsets."""
    if options.is_job:
        return JOB
    planned = max(batches_of(options.checkpoint / "offsets"), default=-1)
    if planned < 0:
        raise ConfigurationError(
            "Spark has written no offsets for the batch that it plans.",
            where=f"{options.checkpoint}/offsets",
            cause="the query uses asyncProgressTrackingEnabled, or Spark keeps its checkpoint "
            "in another place",
            option=f"checkpointLocation={options.checkpoint}, asyncProgressTrackingEnabled=false",
        )
    return planned


def _check_newest(before: Run) -> None:
    """Check that no other driver has taken over while the query had nothing to write.

    Raises:
        FencedError: one has; the newer one wins.
    """
    try:
        before.check_newest()
    except FencedError as error:
        raise FencedError(
            error.what,
            where=error.where,
            cause="a second driver has taken over while this query had nothing to write; the "
            "newest wins",
            option="stop one of the two; if this query is to go on, start it again",
        ) from error


def _range_of(options: QueryOptions, number: int) -> _Range:
    """Return where a batch begins and ends, as Spark has written it; a job has no offsets."""
    if options.is_job:
        return (), ()
    end = offsets_of_batch(options.checkpoint, number)
    start = offsets_of_batch(options.checkpoint, number - 1) if number else ("",) * len(end)
    return start, end
