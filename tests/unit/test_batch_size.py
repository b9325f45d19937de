"""How large the next micro-batch is: pure, but for the file that the source reads."""

import pytest

from connectors.spark.batch_size import BatchSize, read_size
from transactions.errors import ConfigurationError

FIRST = 10_000


def simulated(size, *, fixed_s, per_offset_s, waiting=10**9, batches=12):
    """Run batches whose cost is a straight line; return what each took."""
    took = []
    for _ in range(batches):
        offsets = min(size.size, waiting)
        took.append(fixed_s + per_offset_s * offsets)
        size.after(offsets, took[-1])
    return took


@pytest.mark.parametrize("per_offset_s", [1e-6, 1e-5, 1e-4, 5e-4])
@pytest.mark.parametrize("fixed_s", [0.02, 0.1])
def test_it_comes_to_the_target_whatever_a_record_costs(tmp_path, fixed_s, per_offset_s):
    took = simulated(BatchSize(1.0, tmp_path), fixed_s=fixed_s, per_offset_s=per_offset_s)
    assert 0.9 < took[-1] < 1.1
    assert read_size(tmp_path / "batch-size") == pytest.approx(
        (1.0 - fixed_s) / per_offset_s, rel=0.15
    )


def test_batches_that_are_not_full_say_nothing_about_larger_ones(tmp_path):
    size = BatchSize(1.0, tmp_path)
    simulated(size, fixed_s=0.05, per_offset_s=1e-6, waiting=100)
    assert size.size == FIRST


def test_a_batch_that_is_not_full_and_too_slow_makes_the_next_one_smaller(tmp_path):
    size = BatchSize(1.0, tmp_path)
    size.after(5_000, 2.0)
    assert size.size == 5_000


def test_one_slow_batch_costs_a_quarter_at_most_and_one_quick_one_doubles(tmp_path):
    size = BatchSize(1.0, tmp_path)
    size.after(FIRST, 100.0)
    assert size.size == FIRST / 4
    size.after(2_500, 0.001)
    assert size.size == 5_000


def test_it_never_becomes_so_small_that_planning_is_all_there_is(tmp_path):
    size = BatchSize(0.1, tmp_path)
    simulated(size, fixed_s=0.5, per_offset_s=1e-6)
    assert size.size == 1_000


def test_the_next_run_goes_on_with_it(tmp_path):
    BatchSize(1.0, tmp_path).after(FIRST, 0.5)
    assert BatchSize(1.0, tmp_path).size == 2 * FIRST


@pytest.mark.parametrize("text", [None, "", "many", "\x00"])
def test_without_a_readable_file_it_begins_small(tmp_path, text):
    if text is not None:
        (tmp_path / "batch-size").write_text(text)
    assert BatchSize(1.0, tmp_path).size == FIRST


@pytest.mark.parametrize("target_s", [0.0, -1.0, float("nan")])
def test_a_target_that_is_no_time_is_refused(tmp_path, target_s):
    with pytest.raises(ConfigurationError, match="target_checkpoint_s="):
        BatchSize(target_s, tmp_path)
