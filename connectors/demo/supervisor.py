"""Runs the steps of the demo: load, kill, restart, kill, restart, stop, prove.

One loop in one thread does this. Children and the counting reader only put messages on its queue.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from types import TracebackType
from typing import Any, Final, Self

from connectors.cluster.local_cluster import LocalCluster
from connectors.demo.child import Child, Events
from connectors.demo.dataset import FLIGHTS, load_flights
from connectors.demo.demo_reader import (
    VisibleCounter,
    hidden_partitions,
    open_transactions,
    read_committed,
)
from connectors.demo.demo_topics import DemoTopics
from connectors.demo.history import History, Kind
from connectors.demo.plot import PLANS, Kill
from connectors.demo.proof import (
    Check,
    check_counts,
    check_flights,
    check_nothing_open,
    check_plot,
)
from connectors.options.modes import check_mode
from connectors.options.table import MICRO_BATCH
from connectors.pipeline.checkpoint_address import location_in
from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import ConfigurationError, SparkOnceError

#: The input comes in at least this many micro-batches, so that every planned kill happens.
MIN_CHECKPOINTS: Final = 12

_TICK_S: Final = 0.1
_STALL_S: Final = 180.0
_STOP_S: Final = 60.0
_SETTLE_S: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of a user.

    Attributes:
        mode: one of `connectors.options.modes`.
        bootstrap: brokers; None starts a broker for the demo.
        flights: number of flights.
        seconds: duration of the load.
        output: folder for the picture and the logs.
        master: Spark's master URL.
        checkpoint: folder that driver and workers share, or an address; a temporary folder when
            None. Each run has a part of its own there, which stays.
        conf: Spark settings, ``key=value``.
    """

    mode: str = MICRO_BATCH
    bootstrap: str | None = None
    flights: int = FLIGHTS
    seconds: float = 25.0
    output: Path = Path("sparkonce-demo")
    master: str = "local[*]"
    checkpoint: str | None = None
    conf: tuple[str, ...] = ()

    def validate(self) -> None:
        """Refuse options that the demo cannot run with.

        Raises:
            ConfigurationError: a number is out of range, a Spark setting has no value, or the mode
                can have no checkpoint there.
        """
        check_mode(self.mode)
        if self.checkpoint is not None:
            location_in(self.mode, self.checkpoint, ())
        if not 1000 <= self.flights <= FLIGHTS:
            raise ConfigurationError(
                f"The number of flights must be from 1000 to {FLIGHTS:,}.",
                option=f"--flights={self.flights}",
            )
        if self.seconds < 0:
            raise ConfigurationError("The time is negative.", option=f"--seconds={self.seconds:g}")
        for pair in self.conf:
            if "=" not in pair:
                raise ConfigurationError(
                    "A Spark setting has no value.",
                    cause="the form is key=value",
                    option=f"--conf={pair}",
                )


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of the application and topics of one run; unique, so that runs share nothing."""

    mode: str = MICRO_BATCH
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def application(self) -> str:
        """The application id, and its consumer group."""
        return f"flights-demo-{self.suffix}"

    @property
    def topics(self) -> tuple[str, ...]:
        """Input, clean flights, and in micro-batch mode the counts per airport."""
        names = ["flights", "flights-clean"]
        names += ["flights-per-airport"] if self.mode == MICRO_BATCH else []
        return tuple(f"{name}-{self.suffix}" for name in names)


Watch = Callable[[History, str], None]
"""Called several times a second with the history and the present step."""


class Supervisor:
    """Runs the demo once; a context manager that ends everything that it started."""

    def __init__(self, options: DemoOptions, *, watch: Watch, clock: Clock = SYSTEM_CLOCK) -> None:
        options.validate()
        self._options = options
        self._watch = watch
        self._clock = clock
        self._begin = clock.monotonic()
        self._names = Names(mode=options.mode)
        self._plan = PLANS[options.mode]
        self._events = Events()
        self._stack = ExitStack()
        self._bootstrap = ""
        self._topics: DemoTopics | None = None
        self._job: Child | None = None
        self._loader: Child | None = None
        self._loader_done = False
        self._exit_code = -1
        self._doing = ""
        self._log = options.output / "demo.log"
        self.history = History(options.flights)

    def __enter__(self) -> Self:
        self._options.output.mkdir(parents=True, exist_ok=True)
        self._log.write_bytes(b"")
        scratch = Path(tempfile.mkdtemp(prefix="sparkonce-demo-"))
        self._stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        self._scratch = scratch
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    # --- the steps ----------------------------------------------------------------------------

    def run(self) -> None:
        """Run all steps, from the first loaded flight to the last visible one.

        Raises:
            SparkOnceError: a process ended unexpectedly, or there was no more progress.
        """
        self._prepare()
        with self._counting():
            for kill in self._plan:
                self._start_job(kill)
                if not self._run_until_killed(kill):
                    break
            else:
                self._start_job(None)
                self._run_until_consumed()
            self._stop_job()
            self._let_the_reader_catch_up()

    def _prepare(self) -> None:
        self._say("starting a Kafka broker" if self._options.bootstrap is None else "connecting")
        if self._options.bootstrap is None:
            cluster = self._stack.enter_context(LocalCluster())
            self._bootstrap = cluster.bootstrap_servers
        else:
            self._bootstrap = self._options.bootstrap
        self._topics = DemoTopics(self._bootstrap, self._names.topics)
        self._topics.create()
        if self._options.bootstrap is not None:  # our own broker needs no clean-up
            self._stack.callback(self._topics.remove, self._names.application)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        counter = VisibleCounter(
            self._bootstrap,
            self._names.topics[1],
            on_records=lambda n: self._events.put({"event": "visible", "records": n}),
        )
        try:
            yield
        finally:
            counter.close()

    def _start_job(self, kill: Kill | None) -> None:
        run = len(self.history.of(Kind.KILL)) + 1
        self._mark(Kind.RESTART if run > 1 else Kind.START, f"run {run} of the job starts")
        environment = {"TMPDIR": str(self._scratch)}
        if kill is not None:
            # The job freezes at the point. The demo then kills it with its JVM and workers.
            environment["SPARKONCE_CRASH_AT"] = kill.crash_at
            environment["SPARKONCE_CRASH_WHEN"] = str(self._due_file(kill))
            environment["SPARKONCE_CRASH_SIGNAL"] = "STOP"
        self._job = Child(
            self._job_arguments(), self._events, log=self._log, environment=environment
        )
        self._stack.callback(self._job.kill)

    def _due_file(self, kill: Kill) -> Path:
        return self._scratch / f"due-{kill.point}"

    def _job_arguments(self) -> list[str]:
        options = self._options
        checkpoint = CheckpointLocation.of(options.checkpoint or self._scratch)
        conf = [
            f"spark.local.dir={self._scratch}",
            f"spark.driver.extraJavaOptions=-Djava.io.tmpdir={self._scratch}",
            *options.conf,
        ]
        return [
            "connectors.demo.demo_job",
            *("--mode", options.mode, "--bootstrap", self._bootstrap),
            *(argument for name in self._names.topics for argument in ("--topic", name)),
            *("--app-id", self._names.application, "--master", options.master),
            *("--checkpoint", str(checkpoint.part(self._names.application).address)),
            *("--max-offsets", str(max(1, options.flights // MIN_CHECKPOINTS))),
            *(argument for pair in conf for argument in ("--conf", pair)),
        ]

    def _run_until_killed(self, kill: Kill) -> bool:
        """Return True after the kill, False if the input ended before the kill."""
        assert self._job is not None
        before = len(self.history.checkpoints)
        for _ in self._ticks():
            made = len(self.history.checkpoints) - before
            share = self.history.loaded / self.history.total
            if kill.is_due(share, self._options.seconds, made):
                self._due_file(kill).touch()
            if self._job.is_frozen():
                self._mark(Kind.KILL, kill.text)
                self._job.kill()
                return True
            if self._is_consumed():
                return False
        raise AssertionError("the ticks end by an exception only")

    def _run_until_consumed(self) -> None:
        for _ in self._ticks():
            if self._is_consumed():
                return

    def _stop_job(self) -> None:
        assert self._job is not None
        self._mark(Kind.STOP, "input consumed: SIGTERM to the job")
        self._job.ask_to_stop()
        deadline = Deadline(_STOP_S, self._clock)
        while (code := self._job.exit_code()) is None:
            if deadline.expired():
                raise self._job.failed("The job did not stop after SIGTERM; it")
            self._tick()
        self._exit_code = code

    def _let_the_reader_catch_up(self) -> None:
        deadline = Deadline(_SETTLE_S, self._clock)
        while self.history.visible < self.history.total and not deadline.expired():
            self._tick()
        self._tick()

    # --- time ---------------------------------------------------------------------------------

    def _ticks(self) -> Iterator[None]:
        """Yield several times a second while there is progress; all children must run."""
        deadline, moved = Deadline(_STALL_S, self._clock), self._moved()
        while True:
            self._tick()
            self._check_children()
            yield
            if self._moved() != moved:
                deadline, moved = Deadline(_STALL_S, self._clock), self._moved()
            if deadline.expired():
                raise SparkOnceError(
                    "The demo's job makes no progress.",
                    where=f"for {_STALL_S:g} s, log {self._log}",
                    cause="the brokers or Spark's master do not answer, or sparkonce has a bug",
                )

    def _tick(self) -> None:
        until = Deadline(_TICK_S, self._clock)
        while not until.expired():
            try:
                self._take(self._events.get(timeout=until.remaining()))
            except Empty:
                break
        self.history.sample(self._now())
        self._watch(self.history, self._doing)

    def _take(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "loaded":
                self.history.loaded = message["records"]
            case "visible":
                self.history.visible += message["records"]
            case "checkpoint":
                self.history.checkpoint(self._now(), message)
                self._doing = f"checkpoint {message['id']} committed"
            case "recovered":
                self.history.recommitted += message["recommitted"]
                if message["recommitted"]:
                    text = f"{message['recommitted']} decided transactions re-committed"
                    self._mark(Kind.RECOVERED, text)
            case "ready":
                self._mark(Kind.READY, "Spark is up")
                if self._loader is None:
                    self._start_loader()

    def _start_loader(self) -> None:
        options = self._options
        arguments = ["--bootstrap", self._bootstrap, "--topic", self._names.topics[0]]
        arguments += ["--flights", str(options.flights), "--seconds", str(options.seconds)]
        self._loader = Child(
            ["connectors.demo.demo_loader", *arguments], self._events, log=self._log
        )
        self._stack.callback(self._loader.kill)

    def _check_children(self) -> None:
        assert self._job is not None
        if self._job.exit_code() is not None:
            raise self._job.failed("The job was not stopped, but it")
        if self._loader is None or self._loader_done:
            return
        code = self._loader.exit_code()
        if code:
            raise self._loader.failed("The producer of the input")
        if code == 0:
            self._loader_done = True
            self._mark(Kind.LOADED, "the input is complete")

    def _is_consumed(self) -> bool:
        if not self._loader_done or self._topics is None:
            return False
        return self._topics.is_consumed(self._names.application, self._names.topics[0])

    def _moved(self) -> tuple[int, ...]:
        history = self.history
        return history.loaded, history.visible, len(history.checkpoints), len(history.marks)

    def _say(self, text: str) -> None:
        self._doing = text
        self._watch(self.history, text)

    def _mark(self, kind: Kind, text: str) -> None:
        self.history.mark(self._now(), kind, text)
        self._say(text)

    def _now(self) -> float:
        return self._clock.monotonic() - self._begin

    # --- the proof ----------------------------------------------------------------------------

    def sabotage(self, how: str) -> None:
        """Damage the output, so that the proof must fail; see `DemoTopics.sabotage`."""
        assert self._topics is not None
        self._say(f"sabotage: {how}")
        self._topics.sabotage(how, self._names.topics[1])

    def prove(self) -> list[Check]:
        """Read the output with consumers that know nothing about the job, and check it."""
        _, cleaned, *counted = self._names.topics
        self._say("an independent reader checks the output")
        flights = load_flights(self._options.flights)
        return [
            check_flights(read_committed(self._bootstrap, cleaned), flights),
            *(check_counts(read_committed(self._bootstrap, name), flights) for name in counted),
            check_nothing_open(
                hidden_partitions(self._bootstrap, self._names.topics),
                open_transactions(self._bootstrap, self._names.application),
            ),
            check_plot(len(self.history.of(Kind.KILL)), len(self._plan), self._exit_code),
        ]
