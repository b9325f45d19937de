"""The schedule of a chaos run: which fault when, all of it from one seed, before anything starts.

Storms of several faults, close together or overlapping, alternate with quiet windows in which the
system must be seen to go on. Nothing here touches a process: the same arguments give the same
schedule for ever, and `picks` are the numbers by which a fault chooses its victim when it happens.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass


class Kind(enum.Enum):
    """What is done to the system under test, and to the brokers."""

    WORKER_KILL = "SIGKILL of a Python worker"
    WORKER_STOP = "SIGSTOP of a Python worker, SIGCONT later"
    DRIVER_KILL = "SIGKILL of the driver process; its JVM notices"
    DRIVER_STOP = "SIGSTOP of the driver process, SIGCONT later"
    DRIVER_ZOMBIE = "SIGSTOP of the driver, a second driver takes over, SIGCONT of the first"
    JVM_KILL = "SIGKILL of the driver's JVM"
    JVM_STOP = "SIGSTOP of the driver's JVM, SIGCONT later"
    TWO_IN_A_ROW = "SIGKILL of the driver, and of the next one while it starts"
    CRASH_AT_POINT = "the next driver dies at a crash point of the protocol"
    CRASH_IN_RECOVERY = "SIGKILL of the driver; the next one dies while it recovers"
    BROKER_KILL = "SIGKILL of one broker, started again later"
    BROKER_RESTART = "SIGTERM of one broker, started again later"
    BROKER_STOP = "SIGSTOP of one broker, SIGCONT later"
    COORDINATOR_KILL = "SIGKILL of the broker that coordinates our transactions"
    ALL_BROKERS_KILL = "SIGKILL of all brokers, started again later"
    ALL_BROKERS_STOP = "SIGSTOP of all brokers, SIGCONT later"
    DISK_FULL = "the checkpoint's disk is full for a while"
    READ_ONLY = "the checkpoint's file system is read-only for a while"
    REQUESTS = "single requests are lost, late, repeated or answered by a closed connection"
    HELD_BACK = "transaction requests are cut off, late, or arrive behind a closed connection"
    PARTITIONED = "no connection between the system and the brokers for a while"


EVERYTHING = tuple(Kind)
#: Kinds that need more than one broker to be different from another kind.
OF_THREE = {Kind.ALL_BROKERS_KILL, Kind.ALL_BROKERS_STOP, Kind.COORDINATOR_KILL}
#: Longer than a broker's session (3 s), than one request (10 s), and shorter than both.
_STOPS_S = (0.5, 2.0, 5.0, 12.0, 25.0)
_DOWN_S = (0.0, 1.0, 4.0, 10.0)
_LONGEST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at: seconds after the start.
        kind: what.
        seconds: how long until it is undone; 0 where there is nothing to undo.
        picks: numbers in [0, 1) that choose among what is there when it happens.
    """

    at: float
    kind: Kind
    seconds: float
    picks: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How faults lie in time, in seconds."""

    first: float = 15.0
    storm: tuple[int, int] = (2, 5)
    between: tuple[float, float] = (1.0, 12.0)
    quiet: tuple[float, float] = (15.0, 30.0)
    longest_stop: float = 25.0


def make_schedule(
    seed: int, seconds: float, kinds: Sequence[Kind], rhythm: Rhythm | None = None
) -> list[Fault]:
    """Return the faults of a run, in order; every kind comes once before any comes again."""
    rhythm = rhythm or Rhythm()
    chance = random.Random(f"sparkonce chaos {seed}")
    faults: list[Fault] = []
    bag: list[Kind] = []
    now = rhythm.first
    while True:
        for _ in range(chance.randint(*rhythm.storm)):
            if now >= seconds:
                return faults
            if not bag:
                bag = chance.sample(list(kinds), len(kinds))
            kind = bag.pop()
            longest = min(rhythm.longest_stop, max(2.0, seconds * _LONGEST_SHARE))
            length = min(chance.choice(_lengths(kind)), longest)
            picks = (chance.random(), chance.random(), chance.random())
            faults.append(Fault(round(now, 2), kind, length, picks))
            now += chance.uniform(*rhythm.between)
        now += chance.uniform(*rhythm.quiet)


def _lengths(kind: Kind) -> tuple[float, ...]:
    if kind.name.endswith("_STOP") or kind in {Kind.DRIVER_ZOMBIE, Kind.REQUESTS, Kind.PARTITIONED}:
        return _STOPS_S
    if kind is Kind.HELD_BACK:  # some checkpoints must begin in it
        return _STOPS_S[2:]
    if "BROKER" in kind.name or kind is Kind.COORDINATOR_KILL:
        return _DOWN_S
    if kind in {Kind.DISK_FULL, Kind.READ_ONLY}:
        return _STOPS_S[1:4]
    return (0.0,)
