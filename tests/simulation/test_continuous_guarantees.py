"""The continuous mode without transactions, ended at each step: nothing is lost, some comes twice.

The same world as for exactly-once, with the product's other sink. What a task wrote is visible at
once; the positions are decided after the flush; so a death between the two repeats a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from connectors.kafka.source.offsets import parse_offsets
from connectors.options.guarantee import AT_LEAST_ONCE, EXACTLY_ONCE, NO_GUARANTEE
from tests.simulation.continuous_task import TASK_STEPS_WITHOUT_END
from tests.simulation.continuous_world import ContinuousWorld, Moment, RecordsInEach
from transactions.log_entries import Decision, Entry

DRIVER_STEPS = (
    "barrier_sent",
    "batch_started",
    "committables_collected",
    "prepared_checked",
    "decision_durable",
    "all_committed",
    "batch_finished",
    "recovery_fenced",
    "recovery_settled",
)
FLUSHED_NOT_DECIDED = ("batch_started", "committables_collected", "prepared_checked")


def story(*moments: Moment, guarantee: str = AT_LEAST_ONCE) -> ContinuousWorld:
    """Run to the end; every record is there, and no transaction ever was: the sink's phase 2 would
    raise, and a recovery that asked for one would hang on a wire that is not there.
    """
    world = RecordsInEach(*moments, guarantee=guarantee)
    world.run()
    world.check()
    assert world.never_came == [], "the story did not come true"
    assert world.cluster.transactions == {}
    assert world.cluster.groups == {}
    for decision in decisions(world):
        assert decision.committables == ()
    return world


def decisions(world: ContinuousWorld) -> list[Decision]:
    numbers = sorted(name for name in world.backend.list() if name.isdigit())
    entries = [Entry.from_bytes(world.backend.get(name) or b"", where=name) for name in numbers]
    return [entry.body for entry in entries if isinstance(entry.body, Decision)]


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, NO_GUARANTEE])
def test_without_a_failure_every_record_comes_once(guarantee):
    world = story(guarantee=guarantee)
    assert world.visible() == world.expected
    assert len(decisions(world)) > 3, "positions are decided, although there is nothing to commit"


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", TASK_STEPS_WITHOUT_END)
def test_a_task_ends_at_each_step(step, nth):
    assert len(story((step, nth, "kill")).errors) == 1


@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_the_driver_dies_at_each_step(step):
    nth = 1 if step.startswith("recovery") else 2
    world = story((step, nth, "kill"))
    again = world.visible() - world.expected
    if step in FLUSHED_NOT_DECIDED:
        assert again, "what was flushed and not decided is written again"
    if step in ("recovery_fenced", "recovery_settled"):
        assert not again, "nothing had been read yet"


class DropsAll(ContinuousWorld):
    """The function drops every row, so that there is nothing to write."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.expected = Counter()

    @staticmethod
    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, 0)


@pytest.mark.parametrize(
    "options",
    [{"guarantee": AT_LEAST_ONCE}, {"guarantee": EXACTLY_ONCE, "carries_offsets": False}],
    ids=["at_least_once", "exactly_once_on_another_cluster"],
)
def test_positions_are_decided_where_nothing_is_written(options):
    """No transaction can carry them; undecided, all of it would be read again after a crash."""
    world = DropsAll(**options)
    world.run()
    world.check()
    ends = parse_offsets(decisions(world)[-1].end_offsets[0])
    assert ends == {name: len(rows) for name, rows in world.inputs.items()}
