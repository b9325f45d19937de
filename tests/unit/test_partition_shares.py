"""Who reads what: each partition is one subtask's, however many there are and come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.continuous.partition_shares import PartitionShares

names = st.builds("{}-{}".format, st.sampled_from(("in", "a-b", "x")), st.integers(0, 40))
offsets = st.dictionaries(names, st.integers(0, 2**60), max_size=20)
growth = st.lists(offsets, max_size=5)
parallelism = st.integers(1, 8)


def shares_of(shares: PartitionShares, parallelism: int) -> list[dict[str, int]]:
    return [dict(shares.start_of(subtask)) for subtask in range(parallelism)]


@given(offsets, growth, parallelism)
def test_every_partition_is_read_by_exactly_one_subtask(start, later, count):
    shares = PartitionShares(start, count)
    wanted = dict(start)
    for found in later:
        given_out = shares.add(found)
        new = {name: offset for name, offset in found.items() if name not in wanted}
        dealt = [(name, at) for share in given_out.values() for name, at in share.items()]
        assert sorted(dealt) == sorted(new.items())
        assert set(given_out) <= set(range(count))
        for subtask, share in given_out.items():
            assert share, "an empty share says that there is something new"
            assert share.items() <= dict(shares.start_of(subtask)).items()
        wanted = {**new, **wanted}
    everything = [item for share in shares_of(shares, count) for item in share.items()]
    assert sorted(everything) == sorted(wanted.items())
    assert shares.offsets == wanted


@given(offsets, growth, parallelism)
def test_no_subtask_has_much_more_than_another(start, later, count):
    shares = PartitionShares(start, count)
    for found in later:
        shares.add(found)
    sizes = [len(share) for share in shares_of(shares, count)]
    assert max(sizes) - min(sizes) <= 1


@given(offsets, growth, parallelism, parallelism)
def test_a_restart_with_another_parallelism_reads_on_everywhere(start, later, before, after):
    shares = PartitionShares(start, before)
    for found in later:
        shares.add(found)
    again = PartitionShares(shares.offsets, after)
    assert again.offsets == shares.offsets
    assert sum(len(share) for share in shares_of(again, after)) == len(shares.offsets)


@given(offsets, growth, parallelism)
def test_the_names_in_a_decision_are_those_that_are_read(start, later, count):
    """Healing reads them again: `kafka.rewriting`."""
    shares = PartitionShares(start, count)
    for found in later:
        shares.add(found)
    named = shares.names()
    for subtask, share in enumerate(shares_of(shares, count)):
        assert sorted(filter(None, named[str(subtask)].split(","))) == sorted(share)


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
    assert shares.add({"gone-0": 0, "in-1": 0}) == {0: {"in-1": 0}}
    assert shares.offsets["gone-0"] == 7


def test_without_subtasks_nobody_would_read():
    with pytest.raises(ValueError, match="at least 1"):
        PartitionShares({"in-0": 0}, 0)
