"""One chaos run: workload, system and auditor side by side, the schedule between them, a report."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from connectors.options.table import CONTINUOUS, MICRO_BATCH
from tests.chaos.auditor import LiveAuditor, final_audit
from tests.chaos.disk import Disk
from tests.chaos.faults import NOTHING, Brokers, Done, Faults
from tests.chaos.kafka_proxy import Action
from tests.chaos.proxied_cluster import ProxiedCluster
from tests.chaos.schedule import EVERYTHING, Fault, Kind, Rhythm, make_schedule
from tests.chaos.system import System
from tests.chaos.workload import Workload
from transactions.crash_points import POINTS, STAGE_POINTS

PARTITIONS = 2
TICK_S = 0.1
STARTUP_S = 120.0
DISK_KINDS = {Kind.DISK_FULL, Kind.READ_ONLY}

Say = Callable[[str], None]

AGGREGATION = "aggregation"
#: How the stateful branch counts: `groupBy().count()`, or a value state as in examples/page_views.
STATEFUL = (AGGREGATION, "transform-with-state")


@dataclass(frozen=True)
class Options:
    """What is run.

    Attributes:
        seed: chooses the schedule.
        seconds: how long faults are done; start and end come on top.
        folder: an empty one, for checkpoints and logs.
        brokers: 1 or 3.
        mode: of the pipeline. The continuous one has one output, since it has no state.
        stateful: one of `STATEFUL`; of micro-batches only.
        kinds: the faults.
        rate: input records per second.
        patience: the longest time without a new visible record when no fault is in force, and
            the longest wait for the end.
        progress: seconds between two lines of progress.
        rhythm: how the faults lie in time.
    """

    seed: int
    seconds: float
    folder: Path
    brokers: int = 3
    mode: str = MICRO_BATCH
    stateful: str = AGGREGATION
    kinds: Sequence[Kind] = EVERYTHING
    rate: float = 100.0
    patience: float = 150.0
    progress: float = 10.0
    rhythm: Rhythm = field(default_factory=Rhythm)


@dataclass
class Report:
    """What happened, and every violation; none means that the guarantee held."""

    seed: int
    seconds: float
    brokers: int
    mode: str = MICRO_BATCH
    stateful: str = AGGREGATION
    faults: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)  # there was no victim at that moment
    requests: dict[str, int] = field(default_factory=dict)  # what became of single ones
    left_out: dict[str, str] = field(default_factory=dict)  # not possible here, and why
    records_in: int = 0
    records_out: int = 0
    checkpoints: int = 0
    drivers: int = 0
    exits: dict[str, int] = field(default_factory=dict)
    recoveries: int = 0
    heals: int = 0
    repairs: int = 0  # hidden commits of the brokers, made visible as the runbook has it
    events: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    losses: int = 0
    doubled_in_the_input: int = 0  # by the workload's producer and the brokers, not by us
    longest_without_progress_s: float = 0.0
    violations: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """Return it for a JSON line."""
        return {"chaos": True, **asdict(self)}


def run(options: Options, say: Say) -> Report:
    """Run once; whatever happens, no process, mount or folder of it is left in use."""
    with contextlib.ExitStack() as stack:
        chaos = _Chaos(options, say, stack)
        try:
            chaos.begin()
            chaos.storm()
            chaos.end()
        except _Violation as violation:
            chaos.report.violations.append(str(violation))
        chaos.fill_report()
        return chaos.report


class _Violation(Exception):  # noqa: N818 - a finding, not an error of the run
    """The guarantee is broken, or the system is stuck: there is nothing to wait for."""


class _Chaos:
    def __init__(self, options: Options, say: Say, stack: contextlib.ExitStack) -> None:
        self._options = options
        self._say = say
        self._stack = stack
        self.report = Report(
            options.seed, options.seconds, options.brokers, options.mode, options.stateful
        )
        self._continuous = options.mode == CONTINUOUS
        self._application_id = f"chaos-{uuid.uuid4().hex[:8]}"
        self._undo: list[tuple[float, int, Done, Fault]] = []
        self._order = itertools.count()
        self._zero = time.monotonic()
        self._last_fault = 0.0
        self._next_line = 0.0

    # -- three parts --------------------------------------------------------------------------

    def begin(self) -> None:
        """Start brokers, workload, auditor and system; return with the first visible record."""
        options = self._options
        options.folder.mkdir(parents=True, exist_ok=True)
        disk = Disk(options.folder / "checkpoints", wanted=bool(DISK_KINDS & set(options.kinds)))
        self._stack.enter_context(disk)
        self._kinds = self._possible(disk)
        self._cluster = self._stack.enter_context(ProxiedCluster(brokers=options.brokers))
        self._brokers = Brokers(self._cluster, options.brokers)
        self._stack.callback(self._brokers.close)
        servers = self._cluster.bootstrap_servers
        names = ("input", "copies", *(() if self._continuous else ("counts",)))
        topics = {name: f"{name}-{self._application_id}" for name in names}
        for name in topics.values():
            self._cluster.create_topic(name, PARTITIONS)
        self._topics = topics
        folder = disk.folder / "checkpoint"
        self._system = System(options.mode, self._pipeline_options(folder), options.folder)
        self._stack.callback(self._system.end)
        points = (*POINTS, *STAGE_POINTS) if self._continuous else POINTS
        self._faults = Faults(self._system, self._brokers, disk, self._application_id, points)
        self._system.start()
        self._workload = self._stack.enter_context(
            Workload(servers, topics["input"], partitions=PARTITIONS, rate=options.rate)
        )
        self._auditor = self._stack.enter_context(
            LiveAuditor(
                servers,
                topics["input"],
                topics["copies"],
                topics.get("counts"),
                partitions=PARTITIONS,
            )
        )
        self._until(lambda: self._auditor.ledger.seen > 0, STARTUP_S, "no record became visible")

    def storm(self) -> None:
        """Do the schedule."""
        options = self._options
        schedule = make_schedule(options.seed, options.seconds, self._kinds, options.rhythm)
        self._zero = time.monotonic()
        self._say(f"seed {options.seed}: {len(schedule)} faults in {options.seconds:.0f} s")
        for fault in schedule:
            self._until(lambda at=fault.at: self._now() >= at, None, "")
            self._do(fault)
        self._until(lambda: self._now() >= options.seconds, None, "")

    def end(self) -> None:
        """Undo everything, let the system come to the end of its input, and judge."""
        options = self._options
        self._say("the faults are over; everything is undone")
        for _, _, done, fault in sorted(self._undo):
            self._take_back(done, fault)
        self._undo.clear()
        self._system.disarm()
        self._brokers.heal()
        # Still with new records: an older driver finds out that it is older at its next batch.
        self._until(lambda: not self._system.older(), options.patience, "an older driver runs on")
        produced = self._workload.finish(options.patience)
        self._until(
            lambda: sum(self._auditor.ledger.next.values()) >= produced,
            options.patience,
            f"not all of {produced} records became visible",
        )
        if (code := self._system.stop(60.0)) != 0:
            raise _Violation(f"the last driver did not stop in order: exit code {code}")
        self._system.end()
        found = final_audit(
            self._cluster.bootstrap_servers,
            self._topics["input"],
            self._topics["copies"],
            self._topics.get("counts"),
            self._auditor.ledger,
        )
        self.report.violations += found

    def fill_report(self) -> None:
        """Write the figures into the report."""
        report = self.report
        report.faults = dict(sorted(report.faults.items()))
        if not hasattr(self, "_auditor"):
            return
        met = self._cluster.proxy.met
        report.requests = {one.name: met[one] for one in Action if met[one]}
        ledger = self._auditor.ledger
        events = self._system.events()
        report.records_in = self._workload.produced
        report.records_out = sum(ledger.next.values())
        report.checkpoints = self._system.checkpoints()
        report.drivers = len(self._system.drivers)
        report.exits = dict(self._system.exits)
        report.recoveries = events["recovered"]
        report.heals = events["healed"]
        report.repairs = self._system.repairs
        report.events = dict(sorted(events.items()))
        names = Counter(text.split(":")[0].split(" ")[0] for text in report.violations)
        report.duplicates = names["duplicate"]
        report.doubled_in_the_input = ledger.doubled_input.total()
        report.losses = names["lost"] + names["gap"]
        report.longest_without_progress_s = round(self._auditor.longest_silence, 1)

    # -- steps --------------------------------------------------------------------------------

    def _pipeline_options(self, checkpoint: Path) -> dict[str, object]:
        common = {
            "bootstrap": self._cluster.proxied_servers,
            "input": self._topics["input"],
            "app": self._application_id,
            "checkpoint": checkpoint,
            "master": "local[2,4]",
        }
        if self._continuous:
            return {**common, "output": self._topics["copies"]}
        outputs = {name: self._topics[name] for name in ("copies", "counts")}
        ours = {"max-offsets": 2000, "trigger": "0 seconds", "stateful": self._options.stateful}
        return {**common, **outputs, **ours}

    def _possible(self, disk: Disk) -> list[Kind]:
        kinds = list(self._options.kinds)
        if disk.why_not:
            for kind in DISK_KINDS & set(kinds):
                self.report.left_out[kind.name] = disk.why_not
        return [kind for kind in kinds if kind.name not in self.report.left_out]

    def _do(self, fault: Fault) -> None:
        done = self._faults.do(fault)
        counted = self.report.missed if done is NOTHING else self.report.faults
        counted[fault.kind.name] = counted.get(fault.kind.name, 0) + 1
        self._last_fault = time.monotonic()
        length = f" for {fault.seconds:g} s" if done.undo else ""
        self._tell(f"{fault.kind.name}{length}: {done.what}")
        if done.undo:
            due = time.monotonic() + fault.seconds
            heapq.heappush(self._undo, (due, next(self._order), done, fault))

    def _take_back(self, done: Done, fault: Fault) -> None:
        assert done.undo is not None
        done.undo()
        self._last_fault = time.monotonic()
        self._tell(f"{fault.kind.name} is over: {done.what}")

    def _until(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Look after everything until a condition holds.

        Raises:
            _Violation: an anomaly was seen, the system is stuck, or the time is over.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not condition():
            self._tick()
            if end is not None and time.monotonic() >= end:
                raise _Violation(f"stuck: {what} within {timeout:.0f} s; {self._state()}")
            time.sleep(TICK_S)

    def _tick(self) -> None:
        now = time.monotonic()
        while self._undo and self._undo[0][0] <= now:
            _, _, done, fault = heapq.heappop(self._undo)
            self._take_back(done, fault)
        if said := self._system.look_after():
            self._tell(said)
        if self._auditor_speaks():
            return
        if now >= self._next_line:
            self._next_line = now + self._options.progress
            self._tell(self._state())

    def _auditor_speaks(self) -> bool:
        if not hasattr(self, "_auditor"):
            return True
        if self._auditor.failure:
            raise _Violation(self._auditor.failure)
        if self._auditor.ledger.anomalies:
            raise _Violation("; ".join(self._auditor.ledger.anomalies[:5]))
        quiet_since = max(self._last_fault, time.monotonic() - self._auditor.silence())
        waits = sum(self._auditor.ledger.next.values()) < self._workload.produced
        stuck = time.monotonic() - quiet_since > self._options.patience
        if stuck and waits and not self._undo and self._auditor.ledger.seen:
            raise _Violation(f"stuck: no new record in {self._options.patience:.0f} quiet seconds")
        return False

    def _now(self) -> float:
        return time.monotonic() - self._zero

    def _state(self) -> str:
        ledger = self._auditor.ledger
        up = len(self._brokers.up())
        return (
            f"in {self._workload.produced}  out {sum(ledger.next.values())}  "
            f"checkpoints {self._system.checkpoints()}  drivers {len(self._system.drivers)}  "
            f"recovered {self._system.events()['recovered']}  brokers {up}  "
            f"silent {self._auditor.silence():.1f} s"
        )

    def _tell(self, what: str) -> None:
        self._say(f"{self._now():7.1f}  {what}")
