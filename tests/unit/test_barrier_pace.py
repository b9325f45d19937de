"""When the next barrier is due: bounds that nothing breaks, and where it settles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.continuous.barrier_pace import BarrierPace

targets = st.floats(0.001, 10.0)
longest = st.floats(0.001, 60.0)
checkpoints = st.floats(0.0, 1000.0)
backlogs = st.floats(0.0, 1e9)
#: More than anybody could read in the longest interval.
FAR_BEHIND = 1e9


@given(targets, longest, st.lists(st.tuples(checkpoints, backlogs), max_size=50))
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
        assert pace.after(checkpoint_s, behind=FAR_BEHIND) >= before
        before = pace.wait_s
    assert pace.wait_s == max(most_s, target_s)


@given(targets, longest, st.floats(0.0, 1.0))
def test_with_room_a_record_is_visible_within_the_target_on_average(target_s, most_s, share):
    """A record waits half of it on average, and for the checkpoint."""
    checkpoint_s = target_s * share
    pace = BarrierPace(target_s, most_s)
    for _ in range(60):
        pace.after(checkpoint_s, behind=FAR_BEHIND)
    for _ in range(60):
        pace.after(checkpoint_s)
    room = max(target_s - checkpoint_s, target_s / 10)
    assert pace.wait_s == pytest.approx(room / 2)
    assert pace.wait_s / 2 + checkpoint_s <= max(target_s, checkpoint_s + target_s / 20)


def test_a_slow_checkpoint_gets_a_wait_that_leaves_the_machine_to_the_records():
    """At once, not after a dozen steps: a tenth of the time goes into checkpoints."""
    pace = BarrierPace(0.02, 10.0)
    assert pace.after(0.05, behind=FAR_BEHIND) == pytest.approx(0.5)


def test_what_a_hiccup_has_left_does_not_make_every_record_wait():
    """Seen: 100,000 records/s, a read as large as one may be, and the next records waited 1 s."""
    pace = BarrierPace(0.02, 1.0)
    for _ in range(20):
        pace.after(0.04)
    before = pace.wait_s
    assert pace.after(0.05, behind=0.9) <= before, "less than an interval's is no backlog"
    assert pace.after(0.05, behind=4.0) == pytest.approx(before * 1.5)
    assert pace.after(0.04, behind=0.0) == pytest.approx(before)
    # Seen: what the task had read was the short interval's before; the long checkpoint came after.
    assert pace.after(0.284, behind=10.08) == pytest.approx(before * 1.5)


@given(targets, longest, checkpoints, st.floats(1.01, 100.0))
def test_a_small_backlog_that_stays_gets_the_longest_wait_too(
    target_s, most_s, checkpoint_s, behind
):
    pace = BarrierPace(target_s, most_s)
    for _ in range(60):
        pace.after(checkpoint_s, behind=behind)
    assert pace.wait_s == max(most_s, target_s)


@given(st.floats(0.0, 10.0), st.lists(st.tuples(checkpoints, backlogs), max_size=10))
def test_an_interval_that_was_chosen_is_kept_from_start_to_start(fixed_s, history):
    """Flink's rule: what the checkpoint took is part of the interval."""
    pace = BarrierPace(0.02, 1.0, fixed_s)
    assert pace.wait_s == fixed_s
    for checkpoint_s, behind in history:
        wait_s = pace.after(checkpoint_s, behind=behind)
        assert wait_s == pace.wait_s >= 0.0
        assert wait_s + checkpoint_s == pytest.approx(max(fixed_s, checkpoint_s))
