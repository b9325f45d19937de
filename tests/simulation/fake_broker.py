"""An in-memory transaction coordinator, and a sink of the two-phase contract on it.

It answers as the real one does (see docs of the EndTxn table), for the states that version 4
meets: a commit of a transaction that is open or already committed is accepted, everything else
is refused. Answers can be dropped after they took effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import PhaseOneError
from transactions.sink import Attempt, Owner


@dataclasses.dataclass
class Transaction:
    """What the coordinator keeps per id."""

    start: int
    records: list[str]
    offsets: Mapping[str, int]
    state: str = "Ongoing"


@dataclasses.dataclass
class FakeBroker:
    """Transactions by id, and what a read_committed reader sees."""

    transactions: dict[str, Transaction] = dataclasses.field(default_factory=dict)
    visible: list[str] = dataclasses.field(default_factory=list)
    drop_answers: int = 0
    time: int = 0

    def begin(self, transactional_id: str, records: list[str], offsets: Mapping[str, int]) -> int:
        """Open a transaction; an id is used once in this fake."""
        assert transactional_id not in self.transactions
        self.time += 1
        self.transactions[transactional_id] = Transaction(self.time, records, offsets)
        return self.time

    def end(self, transactional_id: str) -> Outcome:
        """EndTxn(commit), version 4."""
        one = self.transactions[transactional_id]
        if one.state == "Ongoing":
            one.state = "CompleteCommit"
            self.visible += one.records
        if self.drop_answers:
            self.drop_answers -= 1
            return Outcome.UNKNOWN
        return Outcome.COMMITTED if one.state == "CompleteCommit" else Outcome.UNKNOWN

    def abort(self, transactional_id: str) -> None:
        """InitProducerId, or the timeout."""
        one = self.transactions[transactional_id]
        if one.state == "Ongoing":
            one.state = "CompleteAbort"

    def open_ids(self) -> list[str]:
        """Return what blocks readers."""
        return [name for name, one in self.transactions.items() if one.state == "Ongoing"]


@dataclasses.dataclass
class FakeSink:
    """The contract on the fake; one object per run, as in a driver."""

    name: str
    broker: FakeBroker
    counter: list[int] = dataclasses.field(default_factory=lambda: [0])

    def begin_transaction(self, attempt: Attempt) -> dict[str, object]:
        self.counter[0] += 1
        owner = attempt.owner
        name = f"{owner.application_id}.{owner.log_id}.{owner.run_epoch}.{self.name}"
        return {"attempt": attempt, "id": f"{name}.{self.counter[0]}", "records": []}

    def invoke(self, transaction, batch) -> None:
        transaction["records"] += batch

    def pre_commit(self, transaction) -> Committable | None:
        attempt: Attempt = transaction["attempt"]
        records, name = transaction["records"], transaction["id"]
        if not records and not attempt.source_offsets:
            return None
        self.broker.begin(name, records, attempt.source_offsets)
        for point in ("records_queued", "records_flushed", "offsets_sent"):
            crash_points.reach(point, attempt.checkpoint_id)
        return Committable(
            sink=self.name,
            transactional_id=name,
            producer_id=1,
            producer_epoch=0,
            timeout_ms=900_000,
            checkpoint_id=attempt.checkpoint_id,
            subtask=attempt.subtask,
            attempt=attempt.attempt_id,
            token=name,
            record_count=len(records),
            fingerprint="",
            source_offsets=attempt.source_offsets,
        )

    def abort(self, transaction) -> None:
        self.broker.abort(transaction["id"])

    def check_prepared(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> list[Committable]:
        for one in committables:
            if self.broker.transactions[one.transactional_id].state != "Ongoing":
                raise PhaseOneError("not as prepared", where=one.transactional_id)
        start = self.broker.transactions
        return [
            one.described(start_time_ms=start[one.transactional_id].start) for one in committables
        ]

    def commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        return {one.token: self.broker.end(one.transactional_id) for one in committables}

    def recover_and_commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        outcomes = {}
        for one in committables:
            state = self.broker.transactions[one.transactional_id].state
            if state == "Ongoing":
                outcomes[one.token] = self.broker.end(one.transactional_id)
            else:
                done = state == "CompleteCommit"
                outcomes[one.token] = Outcome.ALREADY_COMMITTED if done else Outcome.ABORTED
        return outcomes

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:
        prefix = [owner.application_id, owner.log_id]
        return [
            name
            for name in self.broker.open_ids()
            if name.split(".")[:2] == prefix
            and int(name.split(".")[2]) <= owner.run_epoch
            and name.split(".")[3] == self.name
        ]

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:
        for name in transaction_ids:
            self.broker.abort(name)

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:
        return []

    def retired(self) -> frozenset[str]:
        return frozenset()
