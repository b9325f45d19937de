"""A batch waits for enough records, but not for ever."""

from __future__ import annotations

from connectors.kafka.source.batch_wait import BatchWait
from connectors.options.kafka_source import KafkaSource
from tests.simulation.virtual_clock import VirtualClock


def waiting(clock: VirtualClock, **options: int) -> BatchWait:
    return BatchWait(KafkaSource(bootstrap_servers="b:1", subscribe="t", **options), clock)


def test_no_batch_waits_without_the_option() -> None:
    wait = waiting(VirtualClock())
    assert not wait.holds_back({"t-0": 5}, {"t-0": 5})
    assert not wait.holds_back({"t-0": 5}, {"t-0": 6})


def test_the_first_batch_starts_and_the_next_ones_wait_for_enough() -> None:
    wait = waiting(VirtualClock(), min_offsets_per_trigger=10)
    assert wait.holds_back({"t-0": 5}, {"t-0": 5})  # nothing there: not a batch
    assert not wait.holds_back({"t-0": 5}, {"t-0": 6})
    assert wait.holds_back({"t-0": 6}, {"t-0": 12, "t-1": 3})
    assert not wait.holds_back({"t-0": 6}, {"t-0": 12, "t-1": 4})
    assert wait.holds_back({"t-0": 12, "t-1": 4}, {"t-0": 13, "t-1": 4})


def test_a_batch_that_waits_starts_when_the_delay_since_the_last_one_is_over() -> None:
    clock = VirtualClock()
    wait = waiting(clock, min_offsets_per_trigger=10, max_trigger_delay_ms=60_000)
    assert not wait.holds_back({}, {"t-0": 1})
    clock.sleep(59.0)
    assert wait.holds_back({"t-0": 1}, {"t-0": 2})
    clock.sleep(1.0)
    assert wait.holds_back({"t-0": 1}, {"t-0": 1})  # an empty one does not count as a start
    assert not wait.holds_back({"t-0": 1}, {"t-0": 2})
    assert wait.holds_back({"t-0": 2}, {"t-0": 3})


def test_a_partition_that_went_back_takes_nothing_from_what_waits() -> None:
    wait = waiting(VirtualClock(), min_offsets_per_trigger=2)
    assert not wait.holds_back({}, {"t-0": 1})
    assert not wait.holds_back({"t-0": 100, "t-1": 0}, {"t-0": 1, "t-1": 2})
