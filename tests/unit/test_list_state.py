"""ListState: each element goes to exactly one subtask, or to every one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transactions.list_state import ListState, PartitionOffset, offsets_of, offsets_state

elements = st.lists(st.integers(), max_size=50).map(tuple)


@given(elements, st.integers(1, 20))
def test_even_split_gives_each_element_to_exactly_one_subtask(items, parallelism):
    parts = ListState(items).even_split(parallelism)
    assert len(parts) == parallelism
    assert ListState.merge(parts).elements == items
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(elements, st.integers(1, 20), st.integers(1, 20))
def test_rescaling_keeps_every_element(items, before, after):
    merged = ListState.merge(ListState(items).even_split(before))
    assert ListState.merge(merged.even_split(after)).elements == items


@given(elements, st.integers(1, 20))
def test_union_gives_every_element_to_every_subtask(items, parallelism):
    assert [part.elements for part in ListState(items).union(parallelism)] == [items] * parallelism


@pytest.mark.parametrize("redistribute", ["even_split", "union"])
def test_parallelism_below_one_is_refused(redistribute):
    with pytest.raises(ValueError, match="at least 1"):
        getattr(ListState((1,)), redistribute)(0)


def test_offsets_make_a_stable_state_and_come_back():
    state = offsets_state({"b-0": 2, "a-1": 1, "a-0": 7})
    assert state.elements == (
        PartitionOffset("a-0", 7),
        PartitionOffset("a-1", 1),
        PartitionOffset("b-0", 2),
    )
    assert offsets_of(state) == {"a-0": 7, "a-1": 1, "b-0": 2}
