"""When the next barrier is due: bounds that nothing breaks, and where it settles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.continuous.barrier_pace import BarrierPace

targets = st.floats(0.001, 10.0)
longest = st.floats(0.001, 60.0)
checkpoints = st.floats(0.0, 1000.0)


@given(targets, longest, st.lists(st.tuples(checkpoints, st.booleans()), max_size=50))
def test_the_wait_stays_between_its_bounds(target_s, most_s, history):
    pace = BarrierPace(target_s, most_s)
    assert 0.0 < pace.wait_s <= target_s
    for checkpoint_s, behind in history:
        wait_s = pace.after(checkpoint_s, behind=behind)
        assert wait_s == pace.wait_s
        assert target_s / 20 <= wait_s <= max(most_s, target_s)


@given(targets, longest, checkpoints)
def test_tasks_that_stay_behind_get_the_longest_wait_soon(target_s, most_s, checkpoint_s):
    """Within 60 checkpoints from any start; the wait never shrinks on its way."""
    pace = BarrierPace(target_s, most_s)
    before = pace.wait_s
    for _ in range(60):
        assert pace.after(checkpoint_s, behind=True) >= before
        before = pace.wait_s
    assert pace.wait_s == max(most_s, target_s)


@given(targets, longest, st.floats(0.0, 1.0))
def test_with_room_a_record_is_visible_within_the_target_on_average(target_s, most_s, share):
    """A record waits half of it on average, and for the checkpoint."""
    checkpoint_s = target_s * share
    pace = BarrierPace(target_s, most_s)
    for _ in range(60):
        pace.after(checkpoint_s, behind=True)
    for _ in range(60):
        pace.after(checkpoint_s, behind=False)
    room = max(target_s - checkpoint_s, target_s / 10)
    assert pace.wait_s == pytest.approx(room / 2)
    assert pace.wait_s / 2 + checkpoint_s <= max(target_s, checkpoint_s + target_s / 20)


def test_a_slow_checkpoint_gets_a_wait_that_leaves_the_machine_to_the_records():
    """At once, not after a dozen steps: a tenth of the time goes into checkpoints."""
    pace = BarrierPace(0.02, 10.0)
    assert pace.after(0.05, behind=True) == pytest.approx(0.5)


@given(st.floats(0.0, 10.0), st.lists(st.tuples(checkpoints, st.booleans()), max_size=10))
def test_an_interval_that_was_chosen_is_kept_from_start_to_start(fixed_s, history):
    """Flink's rule: what the checkpoint took is part of the interval."""
    pace = BarrierPace(0.02, 1.0, fixed_s)
    assert pace.wait_s == fixed_s
    for checkpoint_s, behind in history:
        wait_s = pace.after(checkpoint_s, behind=behind)
        assert wait_s == pace.wait_s >= 0.0
        assert wait_s + checkpoint_s == pytest.approx(max(fixed_s, checkpoint_s))
