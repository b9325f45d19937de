"""How each kind of fault is done, and undone, to real processes and real connections."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psutil
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from tests.chaos import kafka_proxy
from tests.chaos.disk import Disk
from tests.chaos.kafka_proxy import NAMES, TRANSACTION_REQUESTS, Action, Rule
from tests.chaos.proxied_cluster import ProxiedCluster
from tests.chaos.schedule import Fault
from tests.chaos.system import System
from transactions.crash_points import POINTS
from transactions.errors import SparkOnceError

#: Kinds of requests that the proxy gets at: the protocol's own more often than the rest.
PROXIED = (
    kafka_proxy.END_TXN,
    kafka_proxy.END_TXN,
    kafka_proxy.ADD_OFFSETS_TO_TXN,
    kafka_proxy.TXN_OFFSET_COMMIT,
    kafka_proxy.INIT_PRODUCER_ID,
    kafka_proxy.ADD_PARTITIONS_TO_TXN,
    kafka_proxy.PRODUCE,
    kafka_proxy.FETCH,
    kafka_proxy.FIND_COORDINATOR,
    kafka_proxy.DESCRIBE_TRANSACTIONS,
    kafka_proxy.LIST_TRANSACTIONS,
)
ACTIONS = tuple(Action)
#: What becomes of a share of all transaction requests, and of which share at most.
HELD_BACK = (Action.HOLD_BACK, Action.CLOSE_AFTER, Action.DELAY_REQUEST)
SHARES = (0.02, 0.06, 0.15)
#: How long such a request is late: longer than its repetition takes, and one checkpoint or several.
LATE_S = (0.5, 4.0)
RECOVERY_POINTS = tuple(point for point in POINTS if point.startswith("recovery_"))
_START_SECONDS = 90.0
_ADMIN_MS = 3000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, for people, and how it is undone."""

    what: str
    undo: Callable[[], None] | None = None


NOTHING = Done("nothing to do it to")


class Brokers:
    """Stops and starts brokers of a cluster; a start runs beside, since it takes seconds."""

    def __init__(self, cluster: ProxiedCluster, number: int) -> None:
        self.cluster = cluster
        self.all = tuple(range(number))
        self._starting: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._closing = False

    def up(self) -> list[int]:
        """Return the brokers whose process runs, frozen or not."""
        return [b for b in self.all if b not in self._starting and self.cluster.pid(b) is not None]

    def down(self, brokers: Sequence[int], *, gently: bool = False) -> None:
        """Kill, or stop in order."""
        for broker in brokers:
            if gently:
                self.cluster.stop_broker(broker)
            else:
                self.cluster.kill_broker(broker)

    def start(self, brokers: Sequence[int]) -> None:
        """Start again, all at the same time: one of three alone has no quorum."""
        for broker in brokers:
            if broker not in self._starting and self.cluster.pid(broker) is None:
                self._starting.add(broker)
                thread = threading.Thread(target=self._start, args=(broker,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def resume(self, brokers: Sequence[int]) -> None:
        """Let frozen ones go on."""
        for broker in brokers:
            if self.cluster.pid(broker) is not None:
                self.cluster.resume_broker(broker)

    def heal(self) -> None:
        """Bring all of them back, and wait until they serve."""
        self.resume(self.up())
        self.start(self.all)
        for thread in self._threads:
            thread.join(_START_SECONDS)

    def close(self) -> None:
        """Start nothing more."""
        self._closing = True

    def coordinator(self, application_id: str) -> int | None:
        """Return the broker that coordinates transactions of the application, if it says so."""
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=self.cluster.bootstrap_servers.split(","),
                request_timeout_ms=_ADMIN_MS,
                bootstrap_timeout_ms=_ADMIN_MS,
            )
        except KafkaError:
            return None
        with contextlib.closing(admin), contextlib.suppress(KafkaError, RuntimeError):
            for node, listing in admin.list_transactions().items():
                if any(one.transactional_id.startswith(f"{application_id}.") for one in listing):
                    return int(node) - 1
        return None

    def _start(self, broker: int) -> None:
        end = time.monotonic() + _START_SECONDS
        try:
            while not self._closing and time.monotonic() < end:
                with contextlib.suppress(SparkOnceError, KeyError):
                    self.cluster.start_broker(broker)
                    return
        finally:
            self._starting.discard(broker)


class Faults:
    """Does the faults of a schedule; `do` returns how each is undone.

    Args:
        system: the pipeline.
        brokers: its brokers, with the proxy.
        disk: its checkpoint's file system.
        application_id: of the pipeline.
        points: the crash points that the pipeline can meet.
    """

    def __init__(
        self,
        system: System,
        brokers: Brokers,
        disk: Disk,
        application_id: str,
        points: Sequence[str] = POINTS,
    ) -> None:
        self._points = points
        self._system = system
        self._brokers = brokers
        self._proxy = brokers.cluster.proxy
        self._disk = disk
        self._application_id = application_id

    def do(self, fault: Fault) -> Done:
        """Do one fault; called on the runner's thread."""
        name = f"_{fault.kind.name.lower()}"
        done: Done = getattr(self, name)(fault)
        return done

    # -- the system ---------------------------------------------------------------------------

    def _worker_kill(self, fault: Fault) -> Done:
        worker = _pick(self._system.current.workers(), fault.picks[0])
        return _kill(worker)

    def _worker_stop(self, fault: Fault) -> Done:
        return _freeze(_pick(self._system.current.workers(), fault.picks[0]))

    def _driver_kill(self, _fault: Fault) -> Done:
        driver = self._system.current
        driver.signal(signal.SIGKILL)
        return Done(f"driver {driver.number}, pid {driver.process.pid}")

    def _driver_stop(self, _fault: Fault) -> Done:
        driver = self._system.current
        driver.signal(signal.SIGSTOP)
        what = f"driver {driver.number}, pid {driver.process.pid}"
        return Done(what, lambda: driver.signal(signal.SIGCONT))

    def _driver_zombie(self, _fault: Fault) -> Done:
        older = self._system.current
        older.signal(signal.SIGSTOP)
        newer = self._system.start()
        what = f"driver {older.number} frozen, driver {newer.number} started beside it"
        return Done(what, lambda: older.signal(signal.SIGCONT))

    def _jvm_kill(self, _fault: Fault) -> Done:
        return _kill(self._system.current.jvm())

    def _jvm_stop(self, _fault: Fault) -> Done:
        return _freeze(self._system.current.jvm())

    def _two_in_a_row(self, fault: Fault) -> Done:
        first = self._system.current
        first.signal(signal.SIGKILL)
        second = self._system.start()
        # The start of a session takes some 8 s: anywhere in it, and a little behind.
        killer = threading.Timer(fault.picks[0] * 12.0, second.signal, (signal.SIGKILL,))
        killer.daemon = True
        killer.start()
        return Done(
            f"driver {first.number}, then driver {second.number} in {killer.interval:.1f} s"
        )

    def _crash_at_point(self, fault: Fault) -> Done:
        point = _pick(self._points, fault.picks[0])
        return self._next_dies_at(str(point))

    def _crash_in_recovery(self, fault: Fault) -> Done:
        point = _pick(RECOVERY_POINTS, fault.picks[0])
        return self._next_dies_at(str(point))

    def _next_dies_at(self, point: str) -> Done:
        driver = self._system.current
        self._system.crash_next.append(point)
        driver.signal(signal.SIGKILL)
        return Done(f"driver {driver.number}; the next one at {point}")

    # -- the brokers --------------------------------------------------------------------------

    def _broker_kill(self, fault: Fault) -> Done:
        return self._down(_pick(self._brokers.up(), fault.picks[0]))

    def _broker_restart(self, fault: Fault) -> Done:
        return self._down(_pick(self._brokers.up(), fault.picks[0]), gently=True)

    def _coordinator_kill(self, fault: Fault) -> Done:
        broker = self._brokers.coordinator(self._application_id)
        if broker not in self._brokers.up():
            broker = _pick(self._brokers.up(), fault.picks[0])
        return self._down(broker)

    def _all_brokers_kill(self, _fault: Fault) -> Done:
        victims = self._brokers.up()
        self._brokers.down(victims)
        return Done(f"brokers {victims}", lambda: self._brokers.start(victims))

    def _broker_stop(self, fault: Fault) -> Done:
        broker = _pick(self._brokers.up(), fault.picks[0])
        return NOTHING if broker is None else self._pause([broker])

    def _all_brokers_stop(self, _fault: Fault) -> Done:
        return self._pause(self._brokers.up())

    def _down(self, broker: int | None, *, gently: bool = False) -> Done:
        if broker is None:
            return NOTHING
        self._brokers.down([broker], gently=gently)
        return Done(f"broker {broker}", lambda: self._brokers.start([broker]))

    def _pause(self, victims: list[int]) -> Done:
        for broker in victims:
            self._brokers.cluster.pause_broker(broker)
        return Done(f"brokers {victims}", lambda: self._brokers.resume(victims))

    # -- disk and network ---------------------------------------------------------------------

    def _disk_full(self, _fault: Fault) -> Done:
        if why_not := self._disk.fill():
            return Done(f"not done: {why_not}")
        return Done("checkpoint folder", self._disk.free)

    def _read_only(self, _fault: Fault) -> Done:
        if why_not := self._disk.read_only():
            return Done(f"not done: {why_not}")
        return Done("checkpoint folder", self._disk.writable)

    def _requests(self, fault: Fault) -> Done:
        api_key, action = _pick(PROXIED, fault.picks[0]), _pick(ACTIONS, fault.picks[1])
        assert api_key is not None
        assert action is not None
        times = 1 + int(fault.picks[2] * 4)
        rule = self._proxy.add(Rule(api_key, action, times=times, seconds=fault.seconds))

        def undo() -> None:
            self._proxy.remove(rule)

        return Done(f"{NAMES[api_key]} x {times}: {action.name}", undo)

    def _held_back(self, fault: Fault) -> Done:
        share = _pick(SHARES, fault.picks[0])
        assert share is not None
        chance = random.Random(fault.picks[1])
        rules = [
            Rule(
                TRANSACTION_REQUESTS,
                action,
                times=None,
                seconds=LATE_S[0],
                spread=LATE_S[1] - LATE_S[0],
                share=share,
                chance=chance,
            )
            for action in HELD_BACK
        ]
        for rule in rules:
            self._proxy.add(rule)

        def undo() -> None:
            for rule in rules:
                self._proxy.remove(rule, let_go=False)

        return Done(f"{share:.0%} of the transaction requests each", undo)

    def _partitioned(self, _fault: Fault) -> Done:
        self._proxy.refuse(True)
        return Done("proxy closed", lambda: self._proxy.refuse(False))


def _pick(among: Sequence[T], number: float) -> T | None:
    """Choose by a number in [0, 1); None when there is nothing to choose."""
    return among[int(number * len(among))] if among else None


def _kill(process: psutil.Process | None) -> Done:
    if process is None:
        return NOTHING
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
    return Done(f"pid {process.pid}")


def _freeze(process: psutil.Process | None) -> Done:
    if process is None:
        return NOTHING

    def undo() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):  # psutil knows a reused pid
            process.resume()

    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
    return Done(f"pid {process.pid}", undo)
