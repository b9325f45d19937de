"""Who reads what: each partition is one subtask's, however many there are, come and move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.continuous.partition_shares import PartitionShares

names = st.builds("{}-{}".format, st.sampled_from(("in", "a-b", "x")), st.integers(0, 40))
offsets = st.dictionaries(names, st.integers(0, 2**60), max_size=20)
parallelism = st.integers(1, 8)
#: What is found, how many subtasks should read, and how far each reads up to the barrier.
barriers = st.lists(st.tuples(offsets, st.integers(0, 9), st.integers(0, 5)), max_size=8)


class Tasks:
    """What the subtasks of a stage do with its barriers."""

    def __init__(self, start: dict[str, int], count: int) -> None:
        self.shares = PartitionShares(start, count)
        self.reading = [dict(self.shares.start_of(subtask)) for subtask in range(count)]
        self.positions = dict(start)

    def barrier(self, found: dict[str, int], active: int, read: int) -> None:
        before = {str(n): ",".join(sorted(one)) for n, one in enumerate(self.reading)}
        new = {name: at for name, at in found.items() if name not in self.positions}
        for share in self.reading:
            for name in share:
                share[name] += read
        self.positions.update({name: at for one in self.reading for name, at in one.items()} | new)
        change = self.shares.change(found, active)
        assert change.partitioning == before, "healing reads what was read up to the barrier"
        assert {n for n, one in enumerate(self.reading) if one} <= change.readers
        assert not (change.added and change.removed), "a partition would move in one barrier"
        for subtask in change.readers:  # what they acknowledge
            self.shares.offsets.update(self.reading[subtask])
        for subtask, gone in change.removed.items():
            for name in gone:
                del self.reading[subtask][name]
        for subtask, share in change.added.items():
            assert subtask in change.readers
            assert share, "an empty share says that there is something new"
            self.reading[subtask] |= share

    def settle(self) -> None:
        """Make barriers until nothing moves any more."""
        for _ in range(2):
            self.barrier({}, self.shares._active, 0)


@given(offsets, parallelism, barriers)
def test_every_partition_is_read_by_one_subtask_from_where_the_last_one_stopped(
    start, count, barriers
):
    tasks = Tasks(start, count)
    for one in barriers:
        tasks.barrier(*one)
        found = [name for share in tasks.reading for name in share]
        assert len(found) == len(set(found))
        assert tasks.shares.is_moving == (len(found) < len(tasks.positions))
    tasks.settle()
    everything = [item for share in tasks.reading for item in share.items()]
    assert sorted(everything) == sorted(tasks.positions.items())
    assert tasks.shares.offsets == tasks.positions


@given(offsets, parallelism, barriers, st.integers(1, 8))
def test_the_active_subtasks_have_even_shares(start, count, barriers, active):
    tasks = Tasks(start, count)
    for one in barriers:
        tasks.barrier(*one)
    tasks.settle()
    tasks.barrier({}, active, 0)
    tasks.settle()
    active = min(active, count)
    sizes = [len(share) for share in tasks.reading]
    assert tasks.shares.active == len([size for size in sizes if size])
    assert max(sizes[:active]) - min(sizes[:active]) <= 1
    assert not any(sizes[active:])


def test_no_more_partitions_move_than_that_needs():
    shares = PartitionShares({f"in-{n}": 0 for n in range(9)}, 4)
    shares.change({}, 2)
    shares.change({}, 2)
    first = shares.change({}, 4)
    assert {n: len(share) for n, share in first.removed.items()} == {0: 2, 1: 2}
    second = shares.change({}, 4)
    assert {n: len(share) for n, share in second.added.items()} == {2: 2, 3: 2}
    assert second.readers == {0, 1, 2, 3}


def test_who_has_nothing_to_read_takes_no_part():
    shares = PartitionShares({"in-0": 0, "in-1": 0}, 4)
    assert shares.change({}, 4).readers == {0, 1}
    assert shares.change({}, 1).readers == {0, 1}  # it says how far it came
    assert shares.change({}, 1).added == {0: {"in-1": 0}}
    assert shares.change({}, 1).readers == {0}


@given(offsets, parallelism, barriers, parallelism)
def test_a_restart_with_another_parallelism_reads_on_everywhere(start, before, barriers, after):
    tasks = Tasks(start, before)
    for one in barriers:
        tasks.barrier(*one)
    again = Tasks(dict(tasks.shares.offsets), after)
    assert again.shares.offsets == tasks.shares.offsets
    assert sum(len(share) for share in again.reading) == len(tasks.positions)


def test_what_is_handed_out_is_a_copy():
    shares = PartitionShares({"in-0": 5}, 1)
    dict(shares.start_of(0))["in-1"] = 0
    shares.offsets["in-0"] = 9  # what was decided since; a task that starts late begins at 5
    assert shares.start_of(0) == {"in-0": 5}


def test_what_rests_is_decided_and_not_read():
    """Also when it is found again: who reads it from 0 would repeat it."""
    shares = PartitionShares({"in-0": 5}, 1, resting={"gone-0": 7})
    assert shares.start_of(0) == {"in-0": 5}
    assert shares.offsets == {"in-0": 5, "gone-0": 7}
    assert shares.change({"gone-0": 0, "in-1": 0}, 1).added == {0: {"in-1": 0}}
    assert shares.offsets["gone-0"] == 7


def test_what_rests_needs_no_reader():
    assert PartitionShares({"in-0": 5}, 4, resting={"gone-0": 7, "gone-1": 7}).active == 1


def test_without_subtasks_nobody_would_read():
    with pytest.raises(ValueError, match="at least 1"):
        PartitionShares({"in-0": 0}, 0)
