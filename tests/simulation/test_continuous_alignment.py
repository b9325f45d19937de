"""The articles' example of barrier alignment, with our own tasks and their numbers.

One subtask counts page views of two partitions. At the last checkpoint it has seen 20,000; then two
more come from the first partition and three from the second, and there the barrier stands: 20,005.
Three more of the first partition are behind the barrier.

A barrier of ours is a cut: positions and open transaction are taken in one step, so what is read
afterwards is in the next checkpoint. With the exactly-once sink a reader sees 20,005, and 20,008
after a restore. With the at-least-once sink the positions are cut at the same place, but nothing
holds back what is written behind it: a reader sees 20,008 at once, and 20,011 after a restore.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping

import pyarrow as pa
import pytest

from connectors.kafka.source.partition_reader import Read
from connectors.options.guarantee import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.reads import read_of
from tests.simulation.continuous_task import here
from tests.simulation.continuous_world import ContinuousWorld
from transactions.coordinator import CheckpointReport

FIRST, SECOND = "pv-0", "pv-1"
BEFORE = {FIRST: 10_000, SECOND: 10_000}
AT_BARRIER = {FIRST: 10_002, SECOND: 10_003}
BEHIND = {FIRST: 10_005, SECOND: 10_003}
SOON_S = 10.0


class Alignment(ContinuousWorld):
    """The example: each barrier comes when the subtask has read up to its place, not before."""

    def __init__(self, guarantee: str) -> None:
        super().__init__(guarantee=guarantee)
        self.tasks, self.late = 1, set()
        self.inputs = {
            name: [f"{name}:{row}" for row in range(count)] for name, count in BEHIND.items()
        }
        self.expected = Counter(value for rows in self.inputs.values() for value in rows)
        self.limit = BEFORE
        self.at_the_place = threading.Event()
        self.barrier_came = threading.Event()
        self.read_behind = threading.Event()
        self.seen: list[int] = []

    @staticmethod
    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def make_reader(self, offsets: Mapping[str, int]) -> AlignmentReader:
        return AlignmentReader(self, offsets)

    def before_barrier(self) -> None:
        assert self.at_the_place.wait(SOON_S)

    def cut_is_made(self) -> None:
        if self.limit is AT_BARRIER:
            self.barrier_came.set()  # the reading thread goes on

    def completed(self, _: CheckpointReport) -> None:
        if self.limit is AT_BARRIER:
            assert self.read_behind.wait(SOON_S)
        self.seen.append(self.visible().total())
        driver = here.process.driver
        if self.limit is BEFORE:
            self.at_the_place.clear()
            self.limit = AT_BARRIER
        elif self.limit is AT_BARRIER:
            self.at_the_place.clear()
            self.limit = BEHIND
            here.process.die()  # all that is left is the log: a restore
        self.drain_at_the_end(driver)


class AlignmentReader:
    """Reads up to the barrier's place, and behind it when the barrier has come."""

    lag = 0

    def __init__(self, world: Alignment, offsets: Mapping[str, int]) -> None:
        self._world = world
        self._positions = dict(offsets)

    def read(self, timeout_s: float) -> Read:
        world, limit = self._world, self._world.limit
        read = self._up_to(limit)
        if read.positions:
            return read
        world.at_the_place.set()  # all of it is written by now
        if limit is AT_BARRIER and world.barrier_came.wait(0.01):
            read = self._up_to(BEHIND)
            if read.positions:
                return read
            world.read_behind.set()
        world.await_rows(0.005)
        return read

    def _up_to(self, limit: Mapping[str, int]) -> Read:
        before = dict(self._positions)
        moved = {name: end for name, end in limit.items() if before[name] < end}
        self._positions.update(moved)
        rows = self._world.inputs
        return read_of(moved, {name: rows[name][before[name] : end] for name, end in moved.items()})

    def add(self, offsets: Mapping[str, int]) -> None:
        raise AssertionError("no partition comes later")

    def remove(self, names: Collection[str]) -> None:
        raise AssertionError("no partition goes")

    def close(self) -> None:
        return


@pytest.mark.parametrize(
    ("guarantee", "at_the_checkpoint", "after_the_restore"),
    [(EXACTLY_ONCE, 20_005, 20_008), (AT_LEAST_ONCE, 20_008, 20_011)],
)
def test_alignment(guarantee, at_the_checkpoint, after_the_restore):
    world = Alignment(guarantee)
    world.run()
    assert world.seen == [20_000, at_the_checkpoint, after_the_restore]
    world.check()
    three = {f"{FIRST}:{row}": 1 for row in (10_002, 10_003, 10_004)}
    again = Counter(three if guarantee == AT_LEAST_ONCE else {})
    assert world.visible() - world.expected == again
