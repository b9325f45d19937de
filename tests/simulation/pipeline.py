"""A pipeline without Spark and Kafka: Spark's order of log writes around our coordinator.

`offsets/N -> the batch -> commits/N`; a batch without commits/N is run again with the same
offsets. Input is a row of numbers, two subtasks, two sinks under one decision.
"""

from __future__ import annotations

import dataclasses

from tests.simulation.fake_broker import FakeBroker, FakeSink
from tests.simulation.virtual_clock import VirtualClock
from transactions.clock import Deadline
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog
from transactions.list_state import offsets_of, offsets_state
from transactions.log_backend import MemoryBackend
from transactions.recovery import recover
from transactions.replay import Checkpoint
from transactions.sink import Attempt

PER_BATCH = 4
SUBTASKS = 2


class Crash(BaseException):
    """SIGKILL: nothing below may catch it."""


@dataclasses.dataclass
class Durable:
    """What survives a crash."""

    broker: FakeBroker = dataclasses.field(default_factory=FakeBroker)
    log: MemoryBackend = dataclasses.field(default_factory=MemoryBackend)
    offsets: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    commits: set[int] = dataclasses.field(default_factory=set)
    counter: list[int] = dataclasses.field(default_factory=lambda: [0])


class Driver:
    """One run: fence, recover, then batches until the input is used up."""

    def __init__(self, durable: Durable, application_id: str = "app") -> None:
        self.durable = durable
        self.clock = VirtualClock()
        self.log = DecisionLog.open(
            durable.log, application_id=application_id, identity={}, clock=self.clock
        )
        self.sinks = {
            name: FakeSink(name, durable.broker, durable.counter) for name in ("left", "right")
        }
        settled = recover(self.log, self.sinks, Deadline(60, self.clock))
        self.coordinator = CheckpointCoordinator(
            self.log,
            self.sinks,
            timeout_s=60,
            stopping=lambda: False,
            lost=settled.lost,
            clock=self.clock,
        )

    def run(self, total: int) -> None:
        """Run every batch that is left of an input of `total` numbers."""
        durable = self.durable
        while True:
            number = max(durable.commits, default=-1) + 1
            start = durable.offsets[number - 1][1] if number else 0
            if number not in durable.offsets:
                if start == total:
                    break
                durable.offsets[number] = (start, min(total, start + PER_BATCH))
            self.batch(number)
            durable.commits.add(number)
        self.coordinator.close()

    def batch(self, number: int) -> None:
        """Do what foreachBatch does."""
        start, end = self.durable.offsets[number]
        checkpoint = Checkpoint(
            checkpoint_id=number,
            query_id="q",
            start_offsets=(str(start),),
            end_offsets=(str(end),),
        )

        def rerun(lost):
            return self.phase_one(number, {(one.sink, one.subtask) for one in lost})

        self.coordinator.run(checkpoint, lambda: self.phase_one(number), rerun)

    def phase_one(self, number: int, only=None):
        """Write the numbers of a batch to both sinks; `only` names what a healing writes again."""
        start, end = self.durable.offsets[number]
        split = offsets_state({"in-0": end}).even_split(SUBTASKS)
        committables = []
        for subtask in range(SUBTASKS):
            mine = list(range(start, end))[subtask::SUBTASKS]
            for name, sink in self.sinks.items():
                if only is not None and (name, subtask) not in only:
                    continue
                attempt = Attempt(
                    owner=self.coordinator.owner,
                    checkpoint_id=number,
                    subtask=subtask,
                    attempt_id=f"{self.log.run_epoch}.{subtask}",
                    source_offsets=offsets_of(split[subtask]) if name == "left" else {},
                )
                transaction = sink.begin_transaction(attempt)
                sink.invoke(transaction, [f"{name}:{value}" for value in mine])
                committables.append(sink.pre_commit(transaction))
        return [one for one in committables if one is not None]
