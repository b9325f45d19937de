"""A whole pipeline under one seed: drivers, workers, zombies, their log, network and broker.

The product's coordinator, recovery, sweep, decision log, sink, producer pool and wire run as they
are; below them stand the fake cluster, librdkafka's stand-in, a memory backend and the virtual
clock. What must hold is checked while it runs (`_watch_*`) and at the end (`check`).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.producer_pool import ProducerPool
from connectors.kafka.sink.retired_ids import RetiredIds
from connectors.kafka.source.offsets import format_offsets, parse_offsets
from connectors.pipeline.takeover import Takeover
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.both_halves import KafkaBothHalves
from tests.simulation.adversary import REQUEST_TIMEOUT_S, Network, Profile
from tests.simulation.fake_cluster import OFFSETS_PARTITIONS, FakeCluster, Transaction
from tests.simulation.fake_wire import FakeWire
from tests.simulation.log_reader import read_committed
from tests.simulation.scheduler import Crash, Scheduler
from tests.simulation.virtual_clock import VirtualClock
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog
from transactions.errors import (
    PhaseOneError,
    SparkOnceError,
    TransactionLostError,
)
from transactions.list_state import offsets_of, offsets_state
from transactions.log_backend import MemoryBackend
from transactions.log_entries import Decision, Entry, Fence, Healed
from transactions.recovery import recover
from transactions.replay import Checkpoint
from transactions.sink import Attempt, Owner
from transactions.sweeper import sweep

TOTAL = 20
PER_BATCH = 4
SUBTASKS = 2
SIDES = ("left", "right")
EXPECTED = Counter(f"{side}:{value}" for side in SIDES for value in range(TOTAL))
TIMEOUT_MS = 900_000
CHECKPOINT_TIMEOUT_S = 120.0
WORKER_POINTS = ("records_queued", "records_flushed", "offsets_sent")
Key = tuple[str, int, int]  # transactional id, producer id, start: names one transaction


class WorkerLost(BaseException):
    """A Python worker died in a task; the driver sees it and tries again."""


class ConcurrentUpdateError(Exception):
    """Spark finds its own log written by somebody else."""


class Process:
    """A Python worker: its producers, and whether a task runs in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy = False
        self.pools: dict[tuple[Owner, str], ProducerPool] = {}


class Lazily:
    """The janitor's thread: it runs at once, or when it is waited for; never beside a driver."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def submit(self, function: Any, *args: Any) -> Lazily.Promise:
        promise = Lazily.Promise(function, args)
        if self._rng.random() < 0.5:
            promise.run()
        return promise

    def shutdown(self, **_options: Any) -> None:
        return

    class Promise:
        """What a future would be."""

        def __init__(self, function: Any, args: tuple[Any, ...]) -> None:
            self._call, self._done = (function, args), False
            self._value: Any = None
            self._error: Exception | None = None

        def run(self) -> None:
            self._done = True
            try:
                self._value = self._call[0](*self._call[1])
            except Exception as error:
                self._error = error

        def result(self) -> Any:
            if not self._done:
                self.run()
            if self._error is not None:
                raise self._error
            return self._value


class SimulatedSink(KafkaBothHalves):
    """The product's sink; its two connections to the outside are the simulation's."""

    def __init__(self, world: World, name: str) -> None:
        options = KafkaSink(bootstrap_servers="fake:9092", topic=name, name=name)
        super().__init__(options, timeout_ms=TIMEOUT_MS, checkpoint_timeout_s=1e6)
        self.offsets_partitions = OFFSETS_PARTITIONS
        self.world = world
        self.process: Process | None = None

    def on(self, process: Process) -> SimulatedSink:
        """Return the copy that a closure takes to a worker."""
        one = copy.copy(self)
        one._wire, one._retired, one.process = None, RetiredIds(), process
        return one

    @property
    def wire(self) -> CoordinatorWire:
        if self._wire is None:
            self._wire = self.world.make_wire()
        return self._wire

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:
        """Say that nothing is: the simulated cluster marks every partition in the end."""
        return []

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:
        super().recover_and_abort(transaction_ids, deadline)
        self.world.swept.update(transaction_ids)

    def _pool(self, owner: Owner) -> ProducerPool:
        assert self.process is not None
        settings = {"bootstrap.servers": "fake:9092"}
        pool = ProducerPool(
            owner,
            settings,
            timeout_ms=TIMEOUT_MS,
            offsets_partitions=self.offsets_partitions,
        )
        return self.process.pools.setdefault((owner, self.name), pool)


class WatchedBackend(MemoryBackend):
    """One storage for all drivers, and everybody may stop at it. It fails sometimes, and answers a
    put late, or never: a client gives such a put up, and the storage does it all the same.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        #: Puts that are still on their way: when they arrive in ms, name, data.
        self._late: list[tuple[int, str, bytes]] = []

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._world.point("log.put")
        if self._world.network.happens("log_error"):
            raise OSError("injected: not stored")
        if self._world.network.happens("log_late"):
            self._put_later(name, data)
            raise OSError("injected: not stored yet")
        stored = self._store(name, data)
        if self._world.network.happens("log_twice"):  # the client had no answer, and asked again
            self._put_later(name, data)
        self._world.point("log.stored")
        if self._world.network.happens("log_slow"):
            self._world.clock.sleep(self._world.rng.choice((1.0, 30.0, 130.0)))
            self._world.point("log.slow")
        if self._world.network.happens("log_error"):
            raise OSError("injected: stored, perhaps")
        return stored

    def arrive(self, *, everything: bool = False) -> None:
        """Do late puts, in any order; nobody hears their answers."""
        now = self._world.clock.now_ms()
        due = [one for one in self._late if everything or one[0] <= now]
        self._late = [one for one in self._late if one not in due]
        self._world.rng.shuffle(due)
        for _, name, data in due:
            self._world.trace.append(f"{now} late: put of {name}")
            self._store(name, data)

    def _put_later(self, name: str, data: bytes) -> None:
        delay_s = self._world.rng.expovariate(1 / 20)
        self._late.append((self._world.clock.now_ms() + int(delay_s * 1000), name, data))

    def _store(self, name: str, data: bytes) -> bool:
        stored = super().put_if_absent(name, data)
        floors = [int(n.removeprefix("floor-")) for n in self.list() if n.startswith("floor-")]
        # Below the floor nobody reads: a zombie took a freed number, and finds out next.
        if stored and name.isdigit() and int(name) >= max(floors, default=1):
            self._world.watch_entry(Entry.from_bytes(data, where=name))
        return stored

    def get(self, name: str) -> bytes | None:
        self._world.point("log.get")
        if self._world.network.happens("log_error"):
            raise OSError("injected: not read")
        return super().get(name)

    def delete(self, name: str) -> None:
        self._world.point("log.delete")
        super().delete(name)


@dataclasses.dataclass
class SparkLogs:
    """Spark's part of the checkpoint: offsets/N and commits/N."""

    offsets: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    commits: set[int] = dataclasses.field(default_factory=set)

    def finished(self) -> bool:
        last = max(self.commits, default=-1)
        return last >= 0 and self.offsets[last][1] == TOTAL


@dataclasses.dataclass
class Folder:
    """A checkpoint folder: the decision log, and Spark's part."""

    backend: MemoryBackend
    spark: SparkLogs = dataclasses.field(default_factory=SparkLogs)

    def copied(self) -> Folder:
        """Return what `cp -r` makes of it at this moment: a backup, or a second folder."""
        backend = MemoryBackend()
        for name in self.backend.list():
            backend.put_if_absent(name, MemoryBackend.get(self.backend, name) or b"")
        return Folder(backend, copy.deepcopy(self.spark))


class World:
    """Everything of one seed.

    Args:
        seed: of everything that is random.
        profile: the faults; drawn by the seed when it is None.
        crashes: the driver dies when a point is reached for the n-th time since the last crash.
        first_downtime_s: how long nobody restarts it after the first.
    """

    def __init__(
        self,
        seed: int,
        profile: Profile | None = None,
        *,
        crashes: Sequence[tuple[str, int]] = (),
        first_downtime_s: float = 0.0,
    ) -> None:
        self.crashes = list(crashes)
        self.since_crash: Counter[str] = Counter()
        self.first_downtime_s = first_downtime_s
        self.seed = seed
        self.rng = random.Random(seed)
        self.profile = profile or Profile.drawn(self.rng)
        self.clock = VirtualClock()
        self.clock.sleep(1_000_000.0)
        self.cluster = FakeCluster(
            self.clock.now_ms,
            slow_markers=lambda: self.network.happens("slow_markers"),
            on_begin=self._watch_begin,
            on_end=self._watch_end,
        )
        self.network = Network(self.rng, self.clock, self.cluster, self.profile)
        self.network.on_late = lambda what: self.trace.append(f"{self.clock.now_ms()} {what}")
        self.scheduler = Scheduler(self.rng, self.profile.switch)
        self.store = WatchedBackend(self)
        self.folder = Folder(self.store)
        self.spark = self.folder.spark
        self.trace: list[str] = []
        self.violations: list[str] = []
        self.reached: Counter[str] = Counter()
        self.ends: dict[Key, tuple[str, str]] = {}
        self.last_decision: dict[tuple[str, int], Committable] = {}
        self.decided: dict[Key, Committable] = {}
        self.errors: Counter[str] = Counter()
        self.drivers: list[DriverRun] = []
        self.lost: TransactionLostError | None = None
        self.lost_decided = 0
        self.swept: set[str] = set()
        self.newest_run = 0
        self.carries = True  # offsets; else every transaction has a marker only
        self.inputs = self.rng.randint(1, 3)
        self.compact_every = self.rng.choice((2, 5, 100))

    # -- what the fakes are given --------------------------------------------------------------

    def make_wire(self) -> CoordinatorWire:
        """Return the product's coordinator verbs on the fake network."""
        made = CoordinatorWire({"bootstrap.servers": "fake:9092"})
        made._wire = FakeWire(
            lambda request: self.exchange(request, "the driver"),
            self.clock,
            order=lambda count: self.rng.sample(range(count), count),
            request_timeout_s=REQUEST_TIMEOUT_S,
        )
        return made

    def exchange(self, request: Any, sender: str) -> Any:
        """Carry a request; others may run before it arrives and before its answer does."""
        self.point(type(request).__name__)
        response = self.network.exchange(request, sender)
        self.point("answered")
        return response

    def point(self, what: str) -> None:
        """Let time pass: late requests arrive, markers are written, others run."""
        self.trace.append(f"{self.clock.now_ms()} {self._who()} {what}")
        if self.network.happens("pause"):
            self.clock.sleep(self.rng.choice((1.0, 30.0, 130.0)))
        self.network.arrive()
        self.store.arrive()
        if self.rng.random() < 0.3:
            self.cluster.write_markers()
        self.cluster.abort_timed_out()
        if self._who().startswith("driver-") and self.network.happens("killed_anywhere"):
            raise Crash(what)
        self.scheduler.point()

    def on_crash_point(self, point: str, checkpoint_id: int) -> None:
        """The hook of transactions.crash_points."""
        self.reached[point] += 1
        self.since_crash[point] += 1
        if self.crashes[:1] == [(point, self.since_crash[point])]:
            del self.crashes[0]
            self.since_crash.clear()
            raise Crash(point)
        if point == "batch_started":
            run = next(one for one in self.drivers if one.actor is self.scheduler.current)
            if run.log.run_epoch < self.newest_run:
                self.violations.append(f"a fenced run began checkpoint {checkpoint_id}")
        self.point(f"{point}@{checkpoint_id}")
        if point in WORKER_POINTS and self.network.happens("worker_crash"):
            raise WorkerLost(point)
        if self.network.happens("driver_crash"):
            raise Crash(point)

    def offsets(self, end: int) -> str:
        """Return Spark's text for a place in the input: all partitions are as far."""
        return format_offsets({f"in-{partition}": end for partition in range(self.inputs)})

    def _who(self) -> str:
        return self.scheduler.current.name if self.scheduler.current else "operator"

    # -- what must hold at every moment ----------------------------------------------------------

    def _watch_begin(self, one: Transaction) -> None:
        if one.transactional_id in self.swept:
            self.violations.append(f"a writer went on after it was swept: {one.transactional_id}")

    def _watch_end(self, one: Transaction, how: str, why: str) -> None:
        key = (one.transactional_id, one.producer_id, one.start_ms)
        self.trace.append(f"{self.clock.now_ms()} {how} {key} by {why}, {self._who()}")
        self.ends[key] = (how, why)
        if how == "abort" and key in self.decided:
            if why != "timeout":
                self.violations.append(f"a decided transaction was aborted by {why}: {key}")
            self.lost_decided += 1

    def watch_entry(self, entry: Entry) -> None:
        """See every entry at the moment at which it becomes durable."""
        self.trace.append(
            f"{self.clock.now_ms()} entry {entry.sequence} {type(entry.body).__name__}"
        )
        match entry.body:
            case Decision() as decision:
                for one in self.last_decision.values():
                    if self.ends.get(_key(one), ("open", ""))[0] != "commit":
                        self.violations.append(
                            f"checkpoint {decision.checkpoint_id} was decided while one of "
                            f"{one.checkpoint_id} is pending: {one.transactional_id}"
                        )
                self.last_decision = {(o.sink, o.subtask): o for o in decision.committables}
                self.decided.update((_key(one), one) for one in decision.committables)
            case Fence():
                self.newest_run = entry.sequence
            case Healed() as healed:
                one = healed.committable
                self.last_decision[(one.sink, healed.subtask)] = one
                self.decided[_key(one)] = one
            case _:
                pass

    # -- the operator ----------------------------------------------------------------------------

    def run(self, most_drivers: int = 40) -> None:
        """Start drivers until the input is used up, then let everything come to rest."""
        crash_points.install(self.on_crash_point)
        try:
            while not (self.spark.finished() and not self._alive()):
                if self.lost is not None and not self._alive():
                    break
                if not self._alive():
                    assert len(self.drivers) < most_drivers, "it never came to its end"
                    if len(self.drivers) > most_drivers // 2:
                        self._be_quiet()
                    self._downtime()
                    self._start_driver()
                elif len(self._alive()) < 2 and self.network.happens("second_driver"):
                    self._start_driver()
                self.scheduler.step()
            self._come_to_rest()
        finally:
            crash_points.install(None)
            self.scheduler.kill_all()

    def _alive(self) -> list[DriverRun]:
        return [one for one in self.drivers if not one.actor.done]

    def _start_driver(self) -> None:
        self.drivers.append(DriverRun(self, len(self.drivers)))

    def _downtime(self) -> None:
        self.clock.sleep(self.rng.uniform(1, 60))
        if len(self.drivers) == 1:
            self.clock.sleep(self.first_downtime_s)
        if self.drivers and self.network.happens("past_the_timeout"):
            self.clock.sleep(TIMEOUT_MS / 1000)
        self.network.arrive()
        self.store.arrive()
        self.cluster.abort_timed_out()
        if self.network.happens("ids_expire"):
            for name in list(self.cluster.transactions):
                self.cluster.expire(name)

    def _be_quiet(self) -> None:
        self.network.profile = Profile.quiet()

    def _come_to_rest(self) -> None:
        """Zombies finish, late requests arrive, one more driver starts and finds nothing to do."""
        self._be_quiet()
        while self.scheduler.step():
            pass
        self.network.arrive(everything=True)
        self.store.arrive(everything=True)
        self.cluster.write_markers()
        if self.lost is None:
            self._start_driver()
            while self.scheduler.step():
                pass
            if self.drivers[-1].error is not None and self.lost is None:
                self.violations.append(f"the last run failed: {self.drivers[-1].error!r}")
        self.cluster.write_markers()

    # -- what must hold at the end ---------------------------------------------------------------

    def visible(self) -> Counter[str]:
        """Return what an independent reader of every partition sees."""
        return Counter(
            value for one in self.cluster.partitions.values() for value in read_committed(one.log)
        )

    def check(self) -> None:
        """Assert every invariant; the text names what is wrong first."""
        problems = list(self.violations)
        seen = self.visible()
        if more := seen - EXPECTED:
            problems.append(f"twice, or never decided: {dict(more)}")
        if self.lost is None:
            if less := EXPECTED - seen:
                problems.append(f"lost: {dict(less)}")
            if still := self.cluster.open_ids():
                problems.append(f"left open: {still}")
        else:
            problems.append(f"it gave up: {self.lost}")
        problems += [f"not an error of ours: {name}" for name in self.errors if "!" in name]
        assert not problems, "; ".join(problems)


def _key(one: Committable) -> Key:
    return (one.transactional_id, one.producer_id, one.start_time_ms)


class DriverRun:
    """One incarnation of the driver, with its workers; a thread of the simulation."""

    def __init__(
        self, world: World, number: int, folder: Folder | None = None, *, accepts: bool = False
    ) -> None:
        self.world = world
        self.folder = folder or world.folder
        self.spark = self.folder.spark
        self.accepts = accepts
        self.number = number
        self.error: BaseException | None = None
        self.stopping = False
        self.coordinator: CheckpointCoordinator | None = None
        self.tasks = 0
        self.workers: list[Process] = []
        self.actor = world.scheduler.spawn(f"driver-{number}", self._run)

    def _run(self) -> None:
        world = self.world
        try:
            try:
                self._drive()
            except SparkOnceError:
                self._leave()
                raise
            self._leave()
            world.trace.append(f"{self.actor.name} finished")
        except BaseException as error:
            self.error = error
            name = type(error).__name__
            known = SparkOnceError | Crash | ConcurrentUpdateError | OSError
            world.errors[name if isinstance(error, known) else f"!{error!r}"] += 1
            world.trace.append(f"{self.actor.name} ended: {error!r}")
            if isinstance(error, TransactionLostError):
                world.lost = error
        finally:
            # Executors follow their driver soon, but not at once: some tasks go on for a while.
            for one in world.scheduler.actors:
                if one.name.startswith(f"task-{self.number}."):
                    one.killed = one.killed or world.rng.random() < 0.5

    def _drive(self) -> None:
        world, clock = self.world, self.world.clock
        self.sinks = {name: SimulatedSink(world, name) for name in SIDES}
        takeover = Takeover("app", "folder", accept_duplicates=self.accepts, clock=clock)
        takeover.write_to(self.sinks)
        deadline = Deadline(CHECKPOINT_TIMEOUT_S, clock)
        self.log = DecisionLog.open(
            self.folder.backend,
            application_id="app",
            identity={},
            check=lambda log: takeover.check(log, deadline),
            clock=clock,
        )
        takeover.claim(self.log, deadline)
        settled = recover(
            self.log,
            self.sinks,
            deadline,
            finished=max(self.spark.commits, default=-1),
        )
        takeover.check_again(self.log, deadline)
        self.coordinator = CheckpointCoordinator(
            self.log,
            self.sinks,
            timeout_s=CHECKPOINT_TIMEOUT_S,
            stopping=self._is_stopping,
            lost=settled.lost,
            clock=clock,
        )
        self.coordinator._janitor._executor = Lazily(world.rng)
        while True:
            number = max(self.spark.commits, default=-1) + 1
            start = self.spark.offsets[number - 1][1] if number else 0
            if number not in self.spark.offsets:
                if start == TOTAL:
                    break
                self.spark.offsets[number] = (start, min(TOTAL, start + PER_BATCH))
            world.point(f"offsets/{number}")
            self._batch(number)
            world.point(f"before commits/{number}")
            if number in self.spark.commits:
                raise ConcurrentUpdateError(number)
            self.spark.commits.add(number)
        self.coordinator._janitor.finish()

    def _leave(self) -> None:
        """Do what `Run.end` does, in the time of this world; tasks that were left behind go on."""
        if self.coordinator is None:
            return
        unfinished = self.coordinator.unfinished()
        self.coordinator.close()
        if not self.coordinator.is_settled():
            return
        with contextlib.suppress(SparkOnceError):
            self.log.check_newest()
            if unfinished is None:
                self.log.settle()
            sweep(self.sinks, self.log.owner, Deadline(CHECKPOINT_TIMEOUT_S, self.world.clock))
            if unfinished is None:
                self.log.settle(left=True)

    def _is_stopping(self) -> bool:
        self.stopping = self.stopping or self.world.network.happens("stop")
        return self.stopping

    def _batch(self, number: int) -> None:
        start, end = self.spark.offsets[number]
        checkpoint = Checkpoint(
            checkpoint_id=number,
            query_id="q",
            start_offsets=(self.world.offsets(start),),
            end_offsets=(self.world.offsets(end),),
        )

        def rerun(lost: Sequence[Committable]) -> Sequence[Committable]:
            return self._phase_one(number, {(one.sink, one.subtask) for one in lost})

        everything = {(name, subtask) for name in SIDES for subtask in range(SUBTASKS)}
        self.coordinator.run(checkpoint, lambda: self._phase_one(number, everything), rerun)

    def _phase_one(self, number: int, wanted: set[tuple[str, int]]) -> Sequence[Committable]:
        return [one for sub in range(SUBTASKS) for one in self._subtask(number, sub, wanted)]

    def _subtask(
        self, number: int, subtask: int, wanted: set[tuple[str, int]]
    ) -> list[Committable]:
        """Try a task up to four times, as Spark does; an attempt may be left behind alive."""
        error: BaseException = AssertionError()
        for _ in range(4):
            process = self._free_worker()
            self.tasks += 1
            sinks = [name for name in SIDES if (name, subtask) in wanted]
            task = Task(self, process, number, subtask, self.tasks, sinks)
            process.busy = True
            if self.world.network.happens("zombie"):
                self.world.scheduler.spawn(f"task-{self.number}.{self.tasks}", task.run_alone)
                continue
            try:
                committables = task.run()
            except WorkerLost as lost:
                self.workers.remove(process)
                error = PhaseOneError(f"worker lost at {lost}")
            except SparkOnceError as failed:
                process.busy = False
                error = failed
            else:
                process.busy = False
                return committables
        raise PhaseOneError("a task failed four times", cause=repr(error)) from error

    def _free_worker(self) -> Process:
        free = [one for one in self.workers if not one.busy]
        if free and self.world.rng.random() < 0.9:
            return self.world.rng.choice(free)
        self.workers.append(Process(f"p{self.number}x{len(self.workers)}x{self.tasks}"))
        return self.workers[-1]


class Task:
    """One attempt of one subtask: both sinks, as the sink stage does it."""

    def __init__(
        self,
        driver: DriverRun,
        process: Process,
        number: int,
        subtask: int,
        task_id: int,
        sinks: Sequence[str],
    ) -> None:
        self.world = driver.world
        self.process = process
        self.subtask = subtask
        start, end = driver.spark.offsets[number]
        self.values = list(range(start, end))[subtask::SUBTASKS]
        split = offsets_state(parse_offsets(driver.world.offsets(end))).even_split(SUBTASKS)
        coordinator = driver.coordinator
        self.sinks = {name: driver.sinks[name].on(process) for name in sinks}
        self.attempts = {
            name: Attempt(
                owner=coordinator.owner,
                checkpoint_id=number,
                subtask=subtask,
                attempt_id=f"{driver.log.run_epoch}.{task_id}",
                source_offsets=offsets_of(split[subtask])
                if name == "left" and self.world.carries
                else {},
                last_decided=coordinator.last_decided(),
                retired=coordinator.retired(),
            )
            for name in self.sinks
        }

    def run_alone(self) -> None:
        """Be a zombie: the driver does not wait, and nobody takes the committables."""
        try:
            self.world.scheduler.point(switch=True)
            self.run()
        except (Exception, WorkerLost) as error:
            self.world.trace.append(f"zombie ended: {error!r}")
        finally:
            self.process.busy = False

    def run(self) -> list[Committable]:
        begun: list[tuple[SimulatedSink, Any]] = []
        try:
            for name, sink in self.sinks.items():
                begun.append((sink, sink.begin_transaction(self.attempts[name])))
            for sink, transaction in begun:
                values = [f"{sink.name}:{value}".encode() for value in self.values]
                batch = pa.record_batch({"value": pa.array(values, pa.binary())})
                sink.invoke(transaction, batch)
            made = [sink.pre_commit(transaction) for sink, transaction in begun]
        except Exception:
            for sink, transaction in begun:
                try:
                    sink.abort(transaction)
                except Exception as error:
                    self.world.trace.append(f"abort: {error!r}")
            raise
        return [one for one in made if one is not None]
