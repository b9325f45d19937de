"""One run of a driver: it opens the sinks, writes the Fence, and settles what was decided.

This is the first half of every start and restart, the same in both modes. The second half (Spark's
query, or the barrier stage) is the driver's own.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from connectors.doctor.preflight import check_clusters, check_source
from connectors.kafka.sink.kafka_sink import kafka_sinks
from connectors.kafka.source.group_offsets import GroupOffsets
from connectors.kafka.source.offsets import merged_offsets
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.client_options import servers_of
from connectors.pipeline.changed_parts import (
    SINKS,
    SOURCES,
    ChangedParts,
    Engine,
    check_changed_parts,
)
from connectors.pipeline.restored_checkpoint import refuse_half_restored
from connectors.pipeline.run_options import RunOptions
from connectors.pipeline.takeover import Takeover
from transactions import crash_points
from transactions.checkpoint_location import BOUND_TO
from transactions.clock import Deadline
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog
from transactions.errors import HiddenCommitError, IdentityMismatchError, SparkOnceError
from transactions.log_backend import answering
from transactions.log_state import LogState
from transactions.recovery import Settlement, recover, sweep_overtaken
from transactions.sink import (
    AnyWriter,
    CarriesOffsets,
    Cluster,
    Committer,
    OpenSink,
    SinkContext,
    offsets_carrier,
)
from transactions.sweeper import refuse_hidden, sweep

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 20.0
_LAST_SWEEP_SECONDS = 10.0
_OTHER_PLAN = "other-plan"


class Run:
    """What a run holds. Lives on the driver, from a start or restart to its end.

    Attributes:
        sinks: by name, in the order of the branches.
        offsets_sink: the sink whose transactions carry the offsets of all sources; None if there is
            none. Set by `open`.
        settlement: how the last decision of the run before ended; set by `open`.

    Args:
        options: of the driver.
        before: the driver's run before this one, None at its start.
    """

    offsets_sink: str | None = None
    settlement: Settlement
    _takeover: Takeover
    _background: ThreadPoolExecutor | None = None
    _groups: Sequence[GroupOffsets] = ()

    def __init__(self, options: RunOptions, before: Run | None = None) -> None:
        self._options = options
        self._log: DecisionLog | None = before._log if before else None  # noqa: SLF001
        self._takeover = Takeover(
            options.app_id,
            f"{options.checkpoint}, log in {options.log_location.address}",
            accept_duplicates=options.accept_duplicates,
            before=before._takeover if before else None,  # noqa: SLF001
        )
        self.sinks: dict[str, OpenSink] = {}

    @property
    def writers(self) -> dict[str, AnyWriter]:
        """The tasks' halves of the sinks, by name."""
        return {name: one.writer for name, one in self.sinks.items()}

    @property
    def committers(self) -> dict[str, Committer]:
        """The driver's halves of the sinks, by name."""
        return {name: one.committer for name, one in self.sinks.items()}

    @property
    def log(self) -> DecisionLog:
        """The log of this run; its Fence stops every older one."""
        assert self._log is not None, "call open() first"
        return self._log

    @property
    def known_log(self) -> DecisionLog | None:
        """The log of this run, or of the run before until this one is open; None at the start."""
        return self._log

    def check_newest(self) -> None:
        """Check, before a restart, that no other driver has taken over meanwhile: the newer one
        wins.

        Raises:
            FencedError: one has.
        """
        if self._log is not None:
            self._log.check_newest()
        if self.sinks:
            self._takeover.check_newest(Deadline(CONNECT_SECONDS))

    def open(self, *, finished: int = -1, engine: Engine | None = None) -> None:
        """Check, fence older runs, settle what they decided, sweep what they left.

        Args:
            finished: see `transactions.recovery.recover`.
            engine: of a driver whose sinks and topics may change; None: they may not.

        Raises:
            ConfigurationError: an option, a topic, credentials or the checkpoint are wrong.
            FencedError: this driver restarts, and a newer one has taken over.
            DecisionLogError, OutcomeUnknownError: see their classes.
        """
        options = self._options
        deadline = Deadline(options.checkpoint_timeout_s)
        try:
            # Nothing is at stake yet: a wrong address must show before a checkpoint's timeout has
            # passed.
            first_answers = Deadline(min(CONNECT_SECONDS, options.checkpoint_timeout_s))
            sources = [check_source(source, first_answers) for source in options.sources]
            check_clusters(kafka_sinks(options.sinks), options.wanted, first_answers)
            self._open_sinks()
            self.offsets_sink = self._find_offsets_sink(sources)
            self._takeover.write_to(self.committers)

            changed: ChangedParts | None = None

            def check(log: LogState) -> tuple[str, ...] | None:
                nonlocal changed
                if not log.log_id:
                    refuse_half_restored(options.checkpoint)
                self._check_one_checkpoint(log, finished)
                if engine is not None:
                    changed = self._check_changed_parts(log, engine)
                return self._takeover.check(log, deadline)

            def may_change(option: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
                if engine is not None and option in (SINKS, SOURCES):
                    return True  # `check` says which change is refused
                return options.may_change(option, before, now)

            log = DecisionLog.open(
                options.log_location.backend(),
                application_id=options.app_id,
                identity=options.all_identity(),
                may_change=may_change,
                check=check,
                keep=self._keep,
            )
            if changed is not None:
                logger.warning("the pipeline %s has changed: %s", options.app_id, changed)
            self._bind(log, finished)
            self._background = ThreadPoolExecutor(1, thread_name_prefix="sparkonce-log")
            log.later = self._background.submit
            self._takeover.claim(log, deadline)
            self.settlement = recover(log, self.committers, deadline, finished=finished)
            self._takeover.check_again(log, deadline)
            if self.offsets_sink is None:
                self._groups = [GroupOffsets(one, options.app_id) for one in options.sources]
        except BaseException:
            self.close()
            raise

    def _keep(self, log: DecisionLog) -> None:
        """Look for newer runs with this log from now on: to an older one, its Fence is a newer
        run's, also when this start fails and the driver tries again.
        """
        self._log = log

    def _check_one_checkpoint(self, log: LogState, finished: int) -> None:
        """Check that checkpoint and log belong together. With another log, what its own log
        decided would be written again, and what is pending there would never be committed.

        It runs before the Fence: a wrong address must not stop the driver that runs on that log.
        """
        options = self._options
        last = -1 if log.decision is None else log.decision.checkpoint_id
        bound = options.checkpoint.files().get(BOUND_TO)
        problem = ""
        if bound is not None and bound.decode() != log.log_id:
            problem = f"the folder belongs to the log {bound.decode()}"
        elif finished > last:
            problem = f"checkpoint {finished} is finished, and the log ends with {last}"
        elif bound is None and options.decision_log and options.checkpoint.has_log():
            problem = "the folder has a log of its own"
        if problem:
            raise IdentityMismatchError(
                "The decision log does not belong to this checkpoint folder.",
                where=f"{options.checkpoint}, log {log.log_id or '(new)'} in "
                f"{options.log_location.address}",
                cause=f"{problem}: one of them was changed, moved or restored without the other",
                option=f"checkpoint={options.checkpoint}, decision_log={options.decision_log}",
            )

    def _check_changed_parts(self, log: LogState, engine: Engine) -> ChangedParts | None:
        """See `check_changed_parts`. The mark comes before the Fence: behind it, nothing else says
        that the engine's files are of another plan.
        """
        options = self._options
        changed = check_changed_parts(
            log, options.all_identity(), options.sources, engine, str(options.checkpoint)
        )
        if changed is not None and changed.sinks and engine.has_places:
            files = options.checkpoint.files()
            with answering(files):
                files.put_if_absent(_OTHER_PLAN, b"")
            crash_points.reach("plan_marked")
        return changed

    @property
    def has_other_plan(self) -> bool:
        """Whether the engine's files may be of a plan with other sinks."""
        files = self._options.checkpoint.files()
        with answering(files):
            return files.get(_OTHER_PLAN) is not None

    def plan_is_fitted(self) -> None:
        """Note that the engine's files are of this plan."""
        files = self._options.checkpoint.files()
        with answering(files):
            files.delete(_OTHER_PLAN)

    def _bind(self, log: DecisionLog, finished: int) -> None:
        """Write down which log is this checkpoint's; after the Fence, so that the log has an id."""
        files = self._options.checkpoint.files()
        with answering(files):
            is_new = files.put_if_absent(BOUND_TO, log.log_id.encode())
        if not is_new:
            self._check_one_checkpoint(log.state, finished)  # written earlier, or by another start

    def show_offsets(self) -> None:
        """Let lag tools see what was decided last, if no transaction shows it; returns at once."""
        decision = self.log.state.decision
        assert decision is not None
        for group in self._groups:
            group.decided(merged_offsets(decision.end_offsets))

    def close(self) -> None:
        """Close the connections, and wait for a clean-up of the log."""
        newest = bool(self._groups) and self._is_newest()
        for group in self._groups:
            group.close(write=newest)
        self._groups = ()
        if self._background is not None:
            self._background.shutdown()
        for name, committer in self.committers.items():
            try:
                committer.close()
            except Exception:  # a user's own; the other sinks are closed all the same
                logger.exception("sink %s could not be closed", name)
        self.sinks = {}

    def _is_newest(self) -> bool:
        """Return whether the group is still ours: a newer run's transactions carry offsets in it,
        and recovery reads what they wrote beside the offsets.
        """
        try:
            self.log.check_newest()
        except SparkOnceError:
            return False
        return True

    def end(self, coordinator: CheckpointCoordinator) -> SparkOnceError | None:
        """Close a run that makes no more checkpoints, its coordinator first. No task runs.

        Args:
            coordinator: of this run.

        Returns:
            Why the end is not good: see `CheckpointCoordinator.unfinished`. None if it is good.
        """
        unfinished = coordinator.unfinished()
        coordinator.close()
        if coordinator.is_settled():
            unfinished = self.leave(finished=unfinished is None) or unfinished
        self.close()
        return unfinished

    def leave(self, *, finished: bool) -> HiddenCommitError | None:
        """Write down that nothing waits for the next start, and abort what the tasks left open. If
        this fails, the next start does it. No task runs, and the last decision is settled.

        Args:
            finished: nothing of the last decision is lost.

        Returns:
            Why the end is not good: the broker hides the last checkpoint from readers, which no
            later start mends. None if readers see it, or if that could not be learnt in time.
        """
        try:
            self.log.check_newest()
            deadline = Deadline(_LAST_SWEEP_SECONDS)
            last = self.log.state.decision
            committed = () if last is None else last.committables
            refuse_hidden(self.committers, self.log.owner, committed, deadline)
            if finished:
                self.log.settle()
            sweep(self.committers, self.log.owner, deadline)
            if finished:
                self.log.settle(left=True)
        except HiddenCommitError as hidden:
            return hidden
        except SparkOnceError as error:
            logger.warning("the last sweep failed, the next start sweeps again: %s", error)
        return None

    def sweep_other(self, log: DecisionLog, *, finished: int) -> None:
        """Abort what another application of this checkpoint has left open. If this fails, readers
        wait for our next start; they also wait for what a living task of it begins later.

        Args:
            log: of the other application, with a Fence of this run's.
            finished: the last batch of it that is finished for sure.
        """
        if log.state.identity != self._options.all_identity():
            return  # it writes elsewhere: our sinks know nothing of its transactions
        try:
            deadline = Deadline(_LAST_SWEEP_SECONDS)
            problem = "its last batch may not be committed yet; its next start sees to that"
            if sweep_overtaken(log, self.committers, deadline, finished=finished):
                return
        except SparkOnceError as error:
            problem = str(error)
        app = log.owner.application_id
        logger.warning("transactions that application %s has left may stay open: %s", app, problem)

    def _find_offsets_sink(self, sources: Sequence[SourcePlanner]) -> str | None:
        """Compare the clusters of sources and sinks: first as the user names them, which asks
        nobody; then, if that finds no sink, by their ids. A sink knows its id from its connection.
        """
        clusters = [Cluster(servers_of(one.source.bootstrap_servers)) for one in sources]
        found = offsets_carrier(self.sinks, clusters)
        if found is not None or not any(
            isinstance(one, CarriesOffsets) for one in self.writers.values()
        ):
            return found
        asked = [
            dataclasses.replace(cluster, cluster_id=source.cluster_id())
            for cluster, source in zip(clusters, sources, strict=True)
        ]
        return offsets_carrier(self.sinks, asked)

    def _open_sinks(self) -> None:
        options = self._options
        for each in options.sinks:
            context = SinkContext(
                checkpoint_timeout_s=options.checkpoint_timeout_s,
                fills_s=options.fills_s,
                transaction_lives_s=options.wanted.transaction_lives_s,
                schema=options.schemas.get(each.name),
                patience_s=min(CONNECT_SECONDS, options.checkpoint_timeout_s),
            )
            self.sinks[each.name] = each.open(context)
