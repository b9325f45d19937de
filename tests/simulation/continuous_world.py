"""A pipeline in continuous mode, without Spark and Kafka: threads as tasks, real control channels.

The product's checkpoint loop, running stage, stage sink, tasks, writer, Kafka sink, coordinator,
decision log, recovery and the driver's own way to its first offsets run as they are. Below them
stand the fake cluster and librdkafka's stand-in, above them a driver without a session.

The input comes in waves: the next rows are there when a checkpoint of the present ones is
complete, so that every run has several checkpoints, whatever the machine does. What must hold is
watched while it runs and judged at the end by what an independent reader sees.
"""

from __future__ import annotations

import functools
import itertools
import logging
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

from connectors.continuous import checkpoint_loop, stage_task
from connectors.continuous.active_tasks import ActiveTasks
from connectors.continuous.barrier_pace import BarrierPace
from connectors.continuous.checkpoint_loop import CheckpointLoop, LoopOptions
from connectors.continuous.partition_shares import Change, PartitionShares
from connectors.continuous.running_stage import RunningStage
from connectors.continuous.stage_task import Reader
from connectors.kafka.sink import record_producer, transactional_producer
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.visibility import CommitVisibility
from connectors.kafka.source.offsets import format_offsets, parse_offsets
from connectors.options.guarantee import EXACTLY_ONCE
from connectors.options.kafka_source import KafkaSource
from connectors.pipeline.run import Run
from connectors.pipeline.takeover import Takeover
from connectors.spark.continuous_driver import ContinuousDriver
from connectors.spark.failures import error_in
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.both_halves import KafkaBothHalves, plain_writer
from tests.simulation import continuous_task
from tests.simulation.adversary import Network, Profile
from tests.simulation.continuous_task import (
    Killed,
    Process,
    SimulatedJob,
    SimulatedReader,
    SimulatedTask,
    here,
)
from tests.simulation.fake_cluster import OFFSETS_PARTITIONS, FakeCluster, Transaction
from tests.simulation.fake_producer import FakeProducer
from tests.simulation.fake_wire import FakeWire
from tests.simulation.log_reader import read_committed
from tests.simulation.runner import CallAtOnce
from tests.simulation.virtual_clock import VirtualClock
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointReport
from transactions.decision_log import DecisionLog
from transactions.errors import HiddenCommitError, SparkOnceError
from transactions.log_backend import MemoryBackend
from transactions.log_entries import Decision, Entry, Healed, Settled
from transactions.nothing_to_commit import NothingToCommit
from transactions.recovery import recover
from transactions.sink import Attempt, OpenSink

TIMEOUT_MS = 900_000
SOON_S = 20.0
SETTLE_S = 5.0
#: Every step of a driver at which it can end, in the order of a checkpoint; then of a start.
DRIVER_STEPS = (
    "barrier_sent",
    "batch_started",
    "committables_collected",
    "prepared_checked",
    "decision_durable",
    "commit_sent",
    "one_committed",
    "all_committed",
    "batch_finished",
    "recovery_fenced",
    "recovery_settled",
)
#: Step, how often since the moment before, kill | fail | freeze | hide (the next commit).
Moment = tuple[str, int, str]
Key = tuple[str, int, int]


class WatchedBackend(MemoryBackend):
    """One storage for all drivers of a world."""

    def __init__(self, world: ContinuousWorld) -> None:
        super().__init__()
        self._world = world

    def put_if_absent(self, name: str, data: bytes) -> bool:
        stored = super().put_if_absent(name, data)
        if stored and name.isdigit():
            self._world.watch_entry(Entry.from_bytes(data, where=name))
        return stored


class RestlessTasks(ActiveTasks):
    """Partitions move all the time."""

    def __init__(self, most: int, rng: random.Random) -> None:
        super().__init__(most, 0.0)
        self._rng = rng

    def after(self, now_s: float, busy_s: Mapping[int, float], *, behind: float) -> None:
        super().after(now_s, busy_s, behind=behind)
        self.wanted = self._rng.randint(1, self._most)


class AllRead(RestlessTasks):
    """No partition moves."""

    def after(self, now_s: float, busy_s: Mapping[int, float], *, behind: float) -> None:
        return


class MovesFirst(RestlessTasks):
    """The first barrier of each run moves partitions."""

    def __init__(self, most: int, rng: random.Random) -> None:
        super().__init__(most, rng)
        self.wanted = 1


class SimulatedSink(KafkaBothHalves):
    """The product's sink; the driver's connection is the simulation's."""

    def __init__(self, world: ContinuousWorld) -> None:
        options = KafkaSink(bootstrap_servers="fake:9092", topic="out", name="out")
        super().__init__(
            options, timeout_ms=TIMEOUT_MS, checkpoint_timeout_s=world.checkpoint_timeout_s
        )
        self.offsets_partitions = OFFSETS_PARTITIONS
        self._world = world
        self._process = here.process

    @property
    def wire(self) -> CoordinatorWire:
        if self._wire is None:
            self._wire = CoordinatorWire({"bootstrap.servers": "fake:9092"})
            self._wire._wire = self._fake_wire()
        return self._wire

    @property
    def visibility(self) -> CommitVisibility:
        if self._visibility is None:
            self._visibility = CommitVisibility({"bootstrap.servers": "fake:9092"}, self.wire)
            self._visibility._wire = self._fake_wire()
        return self._visibility

    def _fake_wire(self) -> FakeWire:
        return FakeWire(
            lambda request: self._world.exchange(request, self._process), self._world.clock
        )


class Patience(Deadline):
    """How long a driver waits for its tasks: no longer when one is frozen, however slow the machine
    is. A short timeout would also end what is only slow.
    """

    def __init__(self, world: ContinuousWorld, deadline: Deadline) -> None:
        super().__init__(deadline.seconds)
        self._deadline = deadline
        self._world, self._driver = world, len(world.drivers)

    def remaining(self) -> float:
        if self._world.frozen_in == self._driver:
            return 0.0
        return self._deadline.remaining()


class ContinuousWorld:
    """Everything of one story.

    Args:
        moments: what happens to whoever comes to a step, one after the other.
        seed: of what is random: how much is read at once, and the faults of the network.
        profile: faults of the network; none by default.
        carries_offsets: source and sink are one cluster.
        guarantee: of the sink.
        checkpoint_timeout_s: of the drivers; real seconds.
    """

    def __init__(
        self,
        *moments: Moment,
        seed: int = 1,
        profile: Profile | None = None,
        carries_offsets: bool = True,
        guarantee: str = EXACTLY_ONCE,
        checkpoint_timeout_s: float = SOON_S,
        rows: int = 13,
        wave: int = 3,
    ) -> None:
        self.moments = list(moments)
        self.never_came: list[Moment] = []
        self.rng = random.Random(seed)
        self.carries_offsets = carries_offsets
        self.guarantee = guarantee
        self.checkpoint_timeout_s = checkpoint_timeout_s
        self.rows_per_read = self.rng.randint(1, 3)
        self.tasks = 2
        self.wave = wave
        #: None: an offset without a record, as a transaction's marker takes one.
        self.inputs: dict[str, list[str | None]] = {
            f"in-{partition}": [
                None if row == 5 else f"in-{partition}:{row}" for row in range(rows)
            ]
            for partition in range(3)
        }
        self.late = {"in-2"}  # it comes while the pipeline runs
        self._rows_there = wave
        self.expected = Counter(
            value for rows in self.inputs.values() for value in rows if value and kept(value)
        )
        self.lock = threading.RLock()
        self._more = threading.Condition()
        self.froze = threading.Event()
        self.frozen_in = 0  # the driver of the task that froze, counted from 1
        self._thaw = threading.Event()
        self.thaw_with_the_next_run = False
        self.counts: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self.clock = VirtualClock()
        self.clock.sleep(1_000_000.0)
        self._hide_next = False
        #: Where a commit was left without its marker: partition, producer id.
        self.hidden: list[tuple[str, int]] = []
        #: How many barriers had been sent when it was hidden, and when it was found.
        self.barriers: list[int] = []
        self.cluster = FakeCluster(
            self.clock.now_ms, on_end=self._watch_end, skips=self._has_no_leader
        )
        self.network = Network(self.rng, self.clock, self.cluster, profile or Profile.quiet())
        self.backend = WatchedBackend(self)
        self.attempts = itertools.count()
        self.drivers: list[SimulatedDriver] = []
        self.violations: list[str] = []
        self.errors: list[BaseException] = []
        self.decided: set[Key] = set()
        self.last_decision: list[Committable] = []
        #: The furthest row of each partition that a task of the newest run has written.
        self.furthest: dict[str, int] = {}
        self.ends: dict[Key, str] = {}
        self.on_restart: Callable[[], object] = lambda: None
        self.active: type[RestlessTasks] = RestlessTasks

    # --- the source ------------------------------------------------------------------------

    def partitions(self) -> list[str]:
        return sorted(
            name for name in self.inputs if name not in self.late or self._rows_there > self.wave
        )

    def there(self, name: str) -> int:
        return min(len(self.inputs[name]), self._rows_there)

    def await_rows(self, timeout_s: float) -> None:
        with self._more:
            self._more.wait(timeout_s)

    def next_wave(self) -> None:
        with self._more:
            self._rows_there += self.wave
            self._more.notify_all()

    def completed(self, _: CheckpointReport) -> None:
        """The next wave; at the end the driver drains."""
        self.next_wave()
        driver: SimulatedDriver = here.process.driver
        if driver._loop is None:
            return  # it heals, and has not started
        if self.thaw_with_the_next_run and driver is not self.drivers[0]:
            self.thaw()
        self.drain_at_the_end(driver)

    def drain_at_the_end(self, driver: SimulatedDriver) -> None:
        """Drain when every row has been read and decided; what is seen then is judged later."""
        assert driver._loop is not None
        offsets = driver._loop._shares.offsets
        if all(offsets.get(name) == len(rows) for name, rows in self.inputs.items()):
            driver._loop.drain()

    @staticmethod
    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        """Drop some rows: what is read and not written must move on as well."""
        return batch.filter(pc.invert(pc.ends_with(batch.column("value"), ":3")))

    @staticmethod
    def as_written(batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what the sink gets of a normalised batch."""
        return batch

    # --- what is below ---------------------------------------------------------------------

    def make_reader(self, offsets: Mapping[str, int]) -> Reader:
        return SimulatedReader(self, offsets)

    def before_barrier(self) -> None:
        """Be called on a driver's thread; a story can hold it there."""

    def cut_is_made(self) -> None:
        """Be called on a task's thread when its barrier has cut what it has read so far."""

    def invoked(self, batch: pa.RecordBatch) -> None:
        """Be called on a task's thread when its writer has these rows."""
        with self.lock:
            for value in batch.column("value").cast(pa.string()).to_pylist():
                name, _, row = value.rpartition(":")
                self.furthest[name] = max(int(row), self.furthest.get(name, -1))

    def make_sink(self) -> Any:
        if self.guarantee == EXACTLY_ONCE:
            return SimulatedSink(self)
        options = KafkaSink(
            bootstrap_servers="fake:9092", topic="out", name="out", guarantee=self.guarantee
        )
        return plain_writer(options, checkpoint_timeout_s=self.checkpoint_timeout_s)

    def make_client(self, config: dict[str, Any]) -> FakeProducer:
        process = here.process
        return FakeProducer(
            config, lambda request: self.exchange(request, process), self.clock.sleep
        )

    def exchange(self, request: Any, process: Process) -> Any:
        if process.dead:
            raise Killed(process.name)
        with self.lock:
            self.network.arrive()
            return self.network.exchange(request, process.name)

    # --- who ends where --------------------------------------------------------------------

    def point(self, step: str, _: int = -1) -> None:
        """Let a moment of the story come true; the hook of transactions.crash_points."""
        process: Process = here.process
        if process.dead:
            raise Killed(process.name)
        with self.lock:
            self.reached[step] += 1
            self.counts[step] += 1
            if not self.moments or (step, self.counts[step]) != self.moments[0][:2]:
                return
            what = self.moments.pop(0)[2]
            self.counts.clear()
        if what == "hide":
            self._hide_next = True
            return
        if what == "fail":
            raise KeyError(f"a bug in the user's function, at {step}")
        if what == "freeze":
            process.frozen = True
            if process.is_task:
                self.frozen_in = len(self.drivers)
            self.froze.set()
            assert self._thaw.wait(SOON_S)
            process.frozen = False
            return
        process.die()

    def thaw(self) -> None:
        self._thaw.set()

    # --- what must hold at every moment ----------------------------------------------------

    def _watch_end(self, one: Transaction, how: str, why: str) -> None:
        key = (one.transactional_id, one.producer_id, one.start_ms)
        self.ends[key] = how
        if how == "commit" and key not in self.decided and self._has_records(one):
            self.violations.append(f"committed without a decision: {key}")
        if how == "abort" and key in self.decided and why != "timeout":
            self.violations.append(f"a decided transaction was aborted by {why}: {key}")

    def _has_no_leader(self, one: Transaction, partition: str) -> bool:
        """Leave the marker of a commit out where it has records; once per story that says so."""
        log = self.cluster.partitions.get(partition)
        leader = None if log is None else log.leaders.get(one.producer_id)
        key = (one.transactional_id, one.producer_id, one.start_ms)
        if not self._hide_next or key not in self.decided or leader is None or not leader.open:
            return False
        if self.ends[key] != "commit":
            return False
        self._hide_next = False
        self.hidden.append((partition, one.producer_id))
        self.barriers.append(self.reached["barrier_sent"])
        return True

    def _has_records(self, one: Transaction) -> bool:
        """Tell it from one that a late AddPartitionsToTxn opened, and a repeated EndTxn ends."""
        logs = [self.cluster.partitions.get(name) for name in one.partitions]
        leaders = [log.leaders.get(one.producer_id) for log in logs if log is not None]
        return any(leader is not None and leader.open for leader in leaders)

    def watch_entry(self, entry: Entry) -> None:
        with self.lock:
            match entry.body:
                case Decision() as decision:
                    for one in self.last_decision:
                        if self.ends.get(_key(one)) != "commit":
                            self.violations.append(f"decided while {_key(one)} is pending")
                    self.last_decision = list(decision.committables)
                    self.decided.update(map(_key, decision.committables))
                case Healed() as healed:
                    new = healed.committable
                    others = [o for o in self.last_decision if o.subtask != healed.subtask]
                    self.last_decision = [*others, new]
                    self.decided.add(_key(new))
                case Settled():
                    for one in self.last_decision:
                        if self.ends.get(_key(one)) != "commit":
                            self.violations.append(f"settled while {_key(one)} is pending")
                case _:
                    pass

    # --- the operator ----------------------------------------------------------------------

    def run(self, most: int = 12) -> None:
        """Start drivers until one has drained; each failure is followed by a new run."""
        with self.installed():
            try:
                for _ in range(most):
                    if SimulatedDriver(self).live():
                        break
                    assert not self.violations, self.violations
                    self.write_markers()
                    self.on_restart()
                else:
                    raise AssertionError(f"it never came to its end: {self.errors}")
                self.come_to_rest()
            finally:
                self.thaw()
                for driver in self.drivers:
                    driver.vanish()

    def overtake_the_frozen_driver(self) -> BaseException | None:
        """Start a driver that freezes, then a newer one, which drains; return how the older one
        ended. It thaws with the newer one's first checkpoint, if the story says so, or after it.
        """
        with self.installed():
            older = SimulatedDriver(self)
            thread = threading.Thread(target=older.live)
            thread.start()
            assert self.froze.wait(10)
            assert SimulatedDriver(self).live(), self.errors
            self.thaw()
            thread.join(20)
            self.come_to_rest()
        return older.failure

    def write_markers(self) -> None:
        """Stop everything and give the command, if the last run ended for that reason."""
        if not isinstance(self.errors[-1], HiddenCommitError):
            return
        self.barriers.append(self.reached["barrier_sent"])
        for driver in self.drivers:
            driver.join()
        here.process = Process("operator", is_task=False)
        visibility = self.make_sink().visibility
        for one in visibility.hidden(self.last_decision, Deadline(SETTLE_S)):
            visibility.write_commit(one, Deadline(SETTLE_S))

    def come_to_rest(self) -> None:
        """Who was frozen wakes; then one more run finds nothing to do but to sweep."""
        self.thaw()
        for driver in self.drivers:
            driver.join()
        with self.lock:
            self.network.profile = Profile.quiet()
            self.network.arrive(everything=True)
            self.never_came, self.moments = self.moments, []
        last = SimulatedDriver(self)
        last.start()
        last.vanish()
        last.join()

    def visible(self) -> Counter[str]:
        with self.lock:
            return Counter(
                value
                for one in self.cluster.partitions.values()
                for value in read_committed(one.log)
            )

    def check(self) -> None:
        """Assert every invariant that the guarantee has."""
        problems = list(self.violations)
        seen = self.visible()
        once = self.guarantee == EXACTLY_ONCE
        more = seen - self.expected
        if (once and more) or set(more) - set(self.expected):
            problems.append(f"twice, or dropped by the function: {dict(more)}")
        if less := self.expected - seen:
            problems.append(f"lost: {dict(less)}")
        if still := self.cluster.open_ids():
            problems.append(f"left open: {still}")
        for one in self.cluster.partitions.values() if once else ():
            last: dict[str, int] = {}
            for value in read_committed(one.log):
                name, _, row = value.rpartition(":")
                if last.get(name, -1) >= int(row):
                    problems.append(f"{value} stands behind row {last[name]}")
                last[name] = int(row)
        assert not problems, "; ".join(problems)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Give the product librdkafka's stand-in, and the steps their hooks."""
        send, each, ready = RunningStage._send, RunningStage._each, RunningStage.await_ready

        def no_longer_than_a_freeze(
            stage: RunningStage, kind: Any, subtasks: set[int], deadline: Deadline, *more: Any
        ) -> Any:
            return each(stage, kind, subtasks, Patience(self, deadline), *more)

        def ready_before_a_freeze(stage: RunningStage, deadline: Deadline) -> None:
            ready(stage, Patience(self, deadline))

        def sending(stage: RunningStage, subtask: int, message: Any) -> None:
            send(stage, subtask, message)
            self.point(f"{type(message).__name__.lower()}_sent")

        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        crash_points.install(self.point)
        try:
            with (
                mock.patch.object(record_producer, "Producer", self.make_client),
                mock.patch.object(transactional_producer, "_Call", CallAtOnce),
                mock.patch.object(transactional_producer, "_group_metadata", str.encode),
                mock.patch.object(RunningStage, "_send", sending),
                mock.patch.object(RunningStage, "_each", no_longer_than_a_freeze),
                mock.patch.object(RunningStage, "await_ready", ready_before_a_freeze),
                mock.patch.object(
                    stage_task, "connect", functools.partial(continuous_task.connect, self)
                ),
                mock.patch.object(stage_task, "_SWITCH_S", 0.005),
                mock.patch.object(checkpoint_loop, "_DISCOVERY_S", 0.001),
                mock.patch.object(checkpoint_loop, "_IDLE_S", 0.01),
            ):
                yield
        finally:
            crash_points.install(None)
            logging.disable(before)


class RecordsInEach(ContinuousWorld):
    """A checkpoint has records until the story has come true, however late the tasks are.

    Otherwise one can hold a row that is dropped, or an offset without a record, and nothing else:
    it is decided, and there is nothing to commit, to lose or to hide.
    """

    def before_barrier(self) -> None:
        deadline = Deadline(SOON_S)
        while self.moments and not self._written_since_the_decision():
            assert not deadline.expired(), "a wave came, and no task wrote of it"
            deadline.pause(0.001)

    def _written_since_the_decision(self) -> bool:
        offsets = here.process.driver._loop._shares.offsets
        with self.lock:
            return any(row >= offsets.get(name, 0) for name, row in self.furthest.items())


def kept(value: str) -> bool:
    return not value.endswith(":3")


def _key(one: Committable) -> Key:
    return (one.transactional_id, one.producer_id, one.start_time_ms)


class SimulatedRun(Run):
    """One run; what the product's does about connections is left out."""

    def __init__(self, world: ContinuousWorld) -> None:
        self.world = world
        self.sinks = {}
        self._log = None

    def open(self, *, finished: int = -1) -> None:
        deadline = Deadline(SETTLE_S)
        both = self.world.make_sink()
        has_transactions = hasattr(both, "commit")
        self.sinks = {"out": OpenSink(both, both if has_transactions else NothingToCommit("out"))}
        self._takeover = Takeover("app", "folder", clock=self.world.clock)
        self._takeover.write_to(self.committers)
        self._log = DecisionLog.open(
            self.world.backend,
            application_id="app",
            identity={},
            check=lambda log: self._takeover.check(log, deadline),
        )
        self._takeover.claim(self.log, deadline)
        self.settlement = recover(self.log, self.committers, deadline)
        self._takeover.check_again(self.log, deadline)


class DriverProcess(Process):
    """The process of a driver."""

    def __init__(self, driver: SimulatedDriver, name: str) -> None:
        super().__init__(name, is_task=False)
        self.driver = driver


class SimulatedDriver(ContinuousDriver):
    """The product's driver without a session: it starts the world's job."""

    def __init__(self, world: ContinuousWorld) -> None:
        self.world = world
        self.process = DriverProcess(self, f"driver {len(world.drivers)}")
        self.job: SimulatedJob | None = None
        self.failure: BaseException | None = None
        self._timeout_s = world.checkpoint_timeout_s
        self._source = KafkaSource(bootstrap_servers="b:1", subscribe="in")
        self._stopping = threading.Event()
        self._restarts = SimpleNamespace(checkpoint_completed=lambda: None)  # type: ignore[assignment]
        self.reports = deque(maxlen=1000)
        self._on_checkpoint = world.completed
        self._run = None
        self._loop = None
        world.drivers.append(self)

    def start(self) -> None:
        """Take the steps of `_start_run`."""
        here.process = self.process
        world = self.world
        if self is not world.drivers[0]:
            world.next_wave()  # what was there can be decided, and nobody was told
            world.furthest.clear()
        self._run = SimulatedRun(world)
        self._run.open()
        planner: Any = SimpleNamespace(
            source=KafkaSource(bootstrap_servers="simulated:1", subscribe="in"),
            partitions_there=world.partitions,
            starting_offsets=lambda: dict.fromkeys(world.partitions(), 0),
            topic_ids=dict,
        )
        offsets = self._offsets(self._run, planner)
        stage = RunningStage("127.0.0.1", world.tasks, error_in)
        self._loop = SimulatedLoop(
            world,
            self.process,
            self._run.log,
            self._run.committers,
            stage,
            shares=PartitionShares(offsets, world.tasks),
            pace=BarrierPace(0.02, 1.0, 0.0),
            options=LoopOptions(
                timeout_s=self._timeout_s,
                new_partitions=world.partitions,
                format_offsets=format_offsets,
                rerun=self._write_again,
                completed=self._completed,
            ),
        )
        task = SimulatedTask(
            address=stage.address,
            key=stage.key,
            stage=stage.name,
            world=world,
            timeout_s=self._timeout_s,
        )
        self.job = SimulatedJob(world, task, world.tasks, self._loop.job_ended)
        self._loop.start(self.job)
        # The last row is never one that is dropped, so that a checkpoint comes after it.
        world.drain_at_the_end(self)

    def live(self) -> bool:
        """Run to an end; True when it has drained."""
        try:
            self.start()
            assert self._loop is not None
            assert self._loop.wait(SOON_S), "the loop hangs"
            self.failure = self._cause_of(self._loop.failure)
        except (SparkOnceError, Killed, OSError) as error:
            self.failure = error
        if self.failure is None:
            self._close()
            return True
        self.world.errors.append(self.failure)
        if isinstance(self.failure, Killed):
            self.vanish()
        elif isinstance(self.failure, SparkOnceError | OSError):
            self.end_run()
        else:
            raise self.failure
        return False

    def end_run(self) -> None:
        """Do what the product does with a run that failed."""
        try:
            self._close()
        except Killed:
            self.vanish()

    def vanish(self) -> None:
        """Be killed: sockets close, nothing is sent any more; the tasks find out by themselves."""
        self.process.dead = True
        if self._loop is not None:
            self._loop._stage.close()
            self._loop._coordinator._janitor.close(wait=False)

    def join(self) -> None:
        """Wait until nothing of this driver runs any more."""
        if self._loop is not None:
            assert self._loop.wait(SOON_S)
            self._loop._stage.close()
        if self.job is not None:
            for one in self.job.threads:
                one.join(SOON_S)
                assert not one.is_alive(), "a task hangs"

    def _write_again(self, lost: Sequence[Committable]) -> list[Committable]:
        """Do what `kafka.rewriting` does, on the world's rows."""
        assert self._run is not None
        decision = self._run.log.state.decision
        assert decision is not None
        start, end = (
            parse_offsets(one[0]) for one in (decision.start_offsets, decision.end_offsets)
        )
        made = []
        for one in lost:
            attempt = Attempt(
                owner=self._run.log.owner,
                checkpoint_id=one.checkpoint_id,
                subtask=one.subtask,
                attempt_id=f"again-{next(self.world.attempts)}",
                source_offsets=one.source_offsets,
            )
            sink: Any = self._run.sinks["out"].writer
            transaction = sink.begin_transaction(attempt)
            for name in filter(None, decision.partitioning[str(one.subtask)].split(",")):
                rows = self.world.inputs[name][start.get(name, 0) : end.get(name, 0)]
                values = [value.encode() for value in rows if value and kept(value)]
                batch = pa.record_batch({"value": pa.array(values, pa.binary())})
                sink.invoke(transaction, self.world.as_written(batch))
            committable = sink.pre_commit(transaction)
            made += [committable] if committable is not None else []
        return made


class SimulatedLoop(CheckpointLoop):
    """The product's loop; its thread belongs to the driver's process."""

    def __init__(
        self, world: ContinuousWorld, process: Process, *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._active = world.active(world.tasks, world.rng)
        self._world = world
        self._process = process

    def _run(self) -> None:
        here.process = self._process
        super()._run()

    def _checkpoint(self, change: Change, *, last: bool = False) -> float:
        self._world.before_barrier()
        return super()._checkpoint(change, last=last)
