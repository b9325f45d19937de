"""A new checkpoint begins where the last decision ends, or nothing of it runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.simulation.pipeline import Driver, Durable
from tests.unit.samples import decision
from transactions.decision_log import read_log
from transactions.errors import ReplayMismatchError
from transactions.log_backend import MemoryBackend
from transactions.log_state import LogState
from transactions.replay import Checkpoint, Replay, replay_of

LAST = decision(7, query_id="q", start_offsets=('{"in":{"0":5}}',), end_offsets=('{"in":{"0":9}}',))
LOG = LogState(decision=LAST)
NEXT = Checkpoint(
    checkpoint_id=8,
    query_id="q",
    start_offsets=('{"in":{"0":9}}',),
    end_offsets=('{"in":{"0":12}}',),
)


def test_the_next_checkpoint_runs():
    assert replay_of(LOG, NEXT) is Replay.AFRESH
    assert replay_of(LogState(), NEXT) is Replay.AFRESH


def test_the_same_offsets_may_be_printed_in_another_way():
    spaced = dataclasses.replace(NEXT, start_offsets=('{"in": {"0": 9}}',))
    assert replay_of(LOG, spaced) is Replay.AFRESH


def test_one_source_may_be_used_more_or_less_often():
    """Another set of sinks: Spark has the offsets of a source once for each use."""
    twice = dataclasses.replace(NEXT, start_offsets=('{"in":{"0":9}}', '{"in": {"0": 9}}'))
    assert replay_of(LOG, twice) is Replay.AFRESH
    before = dataclasses.replace(LAST, end_offsets=LAST.end_offsets * 3)
    assert replay_of(LogState(decision=before), twice) is Replay.AFRESH
    assert replay_of(LogState(decision=before), NEXT) is Replay.AFRESH


@pytest.mark.parametrize(
    "changed",
    [
        {"start_offsets": ()},
        {"start_offsets": ('{"in":{"0":9}}', '{"in":{"0":7}}')},
        {"start_offsets": ('{"in":{"0":7}}',)},  # 7 and 8 would be written twice
        {"start_offsets": ('{"in":{"0":11}}',)},  # 9 and 10 would be lost
        {"start_offsets": ('{"in":{"0":9}}', '{"more":{"0":9}}')},
        {"start_offsets": ("not JSON",)},
        {"checkpoint_id": 9},
        {"query_id": "another"},
    ],
)
def test_a_gap_stops(changed: dict[str, Any]):
    with pytest.raises(ReplayMismatchError) as raised:
        replay_of(LOG, dataclasses.replace(NEXT, **changed))
    error = raised.value
    assert "does not begin where the last decided checkpoint ends" in error.what
    assert "checkpoint 7 of query q" in error.where
    assert "--from-savepoint" in error.option


def test_what_a_savepoint_left_out_is_no_gap():
    """A restore raises the generation; it may take topics out of the offsets."""
    restored = dataclasses.replace(LOG, generation=LAST.generation + 1)
    without = dataclasses.replace(NEXT, start_offsets=("{}",), query_id="another")
    assert replay_of(restored, without) is Replay.AFRESH


@pytest.mark.parametrize("end", [2, 6])
def test_offsets_that_a_slow_driver_wrote_over_the_decided_ones_are_not_read_from(end: int):
    """Spark's file manager looks whether offsets/N exists, and then renames over it: a JVM that is
    paused in between replaces the file of a newer driver, whose N is decided and committed.
    """
    durable = Durable(log=MemoryBackend())
    Driver(durable).run(8)
    before = list(durable.broker.visible)
    durable.offsets[1] = (4, end)
    with pytest.raises(ReplayMismatchError, match="does not begin where"):
        Driver(durable).run(12)
    assert list(durable.broker.visible) == before
    last = read_log(durable.log).decision
    assert last is not None
    assert last.checkpoint_id == 1
