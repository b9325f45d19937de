"""Drivers killed with SIGKILL while they append to an object store; the log stays whole.

The store lives in this process, so what it holds is read here without any code of the log.
"""

import random
import threading
import time
from typing import Any

import pytest

from tests.unit.killed_drivers import Driver, decisions_of, whole_entries
from tests.unit.log_writer import FENCED
from tests.unit.s3_server import Fault, S3Server
from tests.waiting import until
from transactions.decision_log import DecisionLog, read_log
from transactions.object_store_backend import ObjectStoreBackend

URL = "s3://bucket/app/log"


@pytest.fixture
def server():
    with S3Server() as one:
        yield one


def driver_on(server: S3Server) -> Driver:
    return Driver(URL, server.options())


def entries_of(server: S3Server) -> list[dict[str, Any]]:
    """Return every entry that was ever stored. A request that comes later than a compaction stores
    its number once more.
    """
    return whole_entries(
        (key.removeprefix("app/log/"), data)
        for key, data in server.stored
        if key.startswith("app/log/")
    )


@pytest.mark.long
def test_drivers_killed_at_random_moments_leave_a_dense_log(server):
    """Half of them are killed, half are fenced by the next one, which starts beside them."""
    chance = random.Random(7)
    drivers: list[Driver] = []
    for number in range(10):
        drivers.append(driver_on(server))
        drivers[-1].wait_for_its_fence()
        if number and number % 2 == 0:
            assert drivers[-2].wait() == FENCED  # it was alive when this one came
        time.sleep(chance.uniform(0.0, 0.15))
        if number % 2 == 0:
            drivers[-1].kill()
        else:
            server.fail(Fault(method="PUT", carried_out=True, status=0))
    drivers[-1].kill()
    # What a killed driver has sent can be stored at any time. Behind one more Fence it cannot: its
    # number is taken.
    backend = ObjectStoreBackend(URL, **server.options())
    DecisionLog.open(backend, application_id="app", identity={"sinks": "out"})

    entries = entries_of(server)
    numbers = decisions_of(entries)
    assert numbers == list(range(len(numbers)))  # no decision twice, none skipped
    said = set().union(*(one.decided() for one in drivers))
    assert said
    assert said <= set(numbers)
    assert len([one for one in entries if one["kind"] == "fence"]) == len(drivers) + 1
    state = read_log(backend)
    assert state.tail == len(entries)
    assert state.decision is not None
    assert state.decision.checkpoint_id == numbers[-1]


def kill_in_a_put(server: S3Server, fault: Fault) -> Driver:
    driver = driver_on(server)
    driver.wait_for_its_fence()
    server.fail(fault)
    assert fault.met.wait(30.0)
    driver.kill()
    server.heal()
    return driver


def test_killed_when_the_put_is_stored_and_nobody_was_told(server):
    """The decision stands, although the driver that made it never knew."""
    fault = Fault(method="PUT", carried_out=True, after=threading.Event(), status=0)
    driver = kill_in_a_put(server, fault)
    fault.after.set()
    server.wait_idle()
    last = decisions_of(entries_of(server))[-1]
    assert last == max(driver.decided(), default=-1) + 1
    state = read_log(ObjectStoreBackend(URL, **server.options()))
    assert state.decision.checkpoint_id == last


def test_the_put_of_a_dead_driver_arrives_after_the_next_fence(server):
    """It wants a number that the Fence has: a dead process decides nothing any more."""
    fault = Fault(method="PUT", before=threading.Event(), status=None)
    dead = kill_in_a_put(server, fault)
    known = decisions_of(entries_of(server))
    heir = driver_on(server)
    heir.wait_for_its_fence()
    heir.kill()
    fault.before.set()
    server.wait_idle()
    entries = entries_of(server)
    numbers = decisions_of(entries)
    assert numbers[: len(known)] == known
    assert set(known) == dead.decided() | set(known)
    fence = [one for one in entries if one["kind"] == "fence"][-1]["sequence"]
    assert len(decisions_of(entries[:fence])) == len(known)
    assert numbers == list(range(len(numbers)))


def test_a_put_that_is_later_than_a_compaction_decides_nothing(server):
    """It is stored, since its number was deleted again; the floor tells its driver the truth."""
    late = Fault(method="PUT", before=threading.Event(), status=None)
    slow = driver_on(server)
    slow.wait_for_its_fence()
    server.fail(late)
    assert late.met.wait(30.0)
    known = entries_of(server)
    name = f"app/log/{len(known) + 1:020d}"  # what it wants; the heir's Fence gets it
    heir = driver_on(server)
    heir.wait_for_its_fence()
    until(lambda: name not in server.objects)
    heir.kill()
    late.before.set()
    assert slow.wait() == FENCED
    assert [key for key, _ in server.stored].count(name) == 2
    entries = entries_of(server)
    assert entries[len(known)]["kind"] == "fence"
    assert slow.decided() <= set(decisions_of(known))
    assert decisions_of(entries) == list(range(len(decisions_of(entries))))
