"""Tasks and drivers without Spark, and what a test needs to stand between them and the broker.

The `Copier` calls our source, sink, coordinator and recovery in Spark's order of log writes
(``offsets/N -> the batch -> commits/N``) and starts a new run after every failure, as the driver's
restart strategy does; what it writes is judged by readers that know nothing of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from kafka.protocol.admin import UpdateFeaturesRequest
from kafka.protocol.metadata import ApiVersionsRequest

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.kafka_writer import KafkaTransaction
from connectors.kafka.source.batch_ranges import limit_offsets
from connectors.kafka.source.range_reader import read_range
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.kafka_source import KafkaSource
from connectors.wire.coordinator_wire import CoordinatorWire
from connectors.wire.wire_client import WireClient
from tests.both_halves import KafkaBothHalves
from tests.integration.wire_helpers import PATIENCE_S, eventually, soon
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog
from transactions.errors import SparkOnceError
from transactions.list_state import offsets_of, offsets_state
from transactions.log_backend import MemoryBackend
from transactions.recovery import recover
from transactions.replay import Checkpoint
from transactions.sink import Attempt, Owner

SUBTASKS = 2
_RUNS = itertools.count(1)
_INIT_PRODUCER_ID = 22


# -- one task, one driver ----------------------------------------------------------------------


def new_owner(application_id: str, log_id: str = "a1b2c3d4") -> Owner:
    """Return the owner of a run that no run before it in this process equals."""
    return Owner(application_id=application_id, log_id=log_id, run_epoch=next(_RUNS))


def make_sink(
    bootstrap: str,
    topic: str | None,
    *,
    timeout_ms: int = 60_000,
    checkpoint_timeout_s: float = 30.0,
    kafka: Mapping[str, str] | None = None,
) -> KafkaBothHalves:
    """Return our sink; a topic column of the rows is used without a topic."""
    options = KafkaSink(bootstrap_servers=bootstrap, topic=topic, name="out", kafka=kafka or {})
    return KafkaBothHalves(
        options, timeout_ms=timeout_ms, checkpoint_timeout_s=checkpoint_timeout_s
    )


def rows(*values: str, **columns: Sequence[Any]) -> pa.RecordBatch:
    """Return a batch of the sink's schema."""
    kinds = {"partition": pa.int32(), "topic": pa.string()}
    more = {name: pa.array(column, kinds[name]) for name, column in columns.items()}
    return pa.record_batch({"value": pa.array([v.encode() for v in values], pa.binary()), **more})


def attempt_of(owner: Owner, checkpoint: int, subtask: int = 0, **fields: Any) -> Attempt:
    """Return one try of one subtask."""
    name = f"{owner.run_epoch}.{subtask}"
    return Attempt(
        owner=owner, checkpoint_id=checkpoint, subtask=subtask, attempt_id=name, **fields
    )


def prepare(sink: KafkaBothHalves, attempt: Attempt, *batches: pa.RecordBatch) -> Committable:
    """Do what a task does, and leave its transaction prepared."""
    transaction = sink.begin_transaction(attempt)
    for batch in batches:
        sink.invoke(transaction, batch)
    committable = sink.pre_commit(transaction)
    assert committable is not None
    return committable


def decide(sink: KafkaBothHalves, *committables: Committable) -> list[Committable]:
    """Do what the driver does before its decision: the committables with their start times."""
    checked = sink.check_prepared(committables, soon())
    assert all(one.start_time_ms > 0 for one in checked)
    return [Committable.from_json(one.to_json()) for one in checked]  # as the log keeps them


def commit(sink: KafkaBothHalves, *committables: Committable) -> None:
    """Decide and commit."""
    outcomes = sink.commit(decide(sink, *committables), soon())
    assert set(outcomes.values()) == {Outcome.COMMITTED}


# -- what a broker can be made to do -------------------------------------------------------------


def raise_epoch(bootstrap: str, name: str, until: int) -> None:
    """Initialise a new id again and again until its epoch is `until`.

    The ordinary request, sent without waiting for each answer: 8,000 a second. A broker takes the
    requests of one connection one after another, so none meets another's half-done work.
    """
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as wire:
        wire.fence(name, 60_000, soon())  # epoch 0; the first id ever makes the coordinators' topic
    request = struct.pack(">hhih", _INIT_PRODUCER_ID, 1, 0, 1) + b"x"
    request += struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", 60_000)
    frame = struct.pack(">i", len(request)) + request
    host, port = bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        answers = connection.makefile("rb")
        epoch = sent = got = 0
        while epoch < until:
            burst = min(200 - (sent - got), until - sent)
            connection.sendall(frame * burst)
            sent += burst
            (size,) = struct.unpack(">i", answers.read(4))
            _, _, error, _, epoch = struct.unpack(">iihqh", answers.read(size))
            got += 1
            assert error == 0
            assert epoch == got
        answers.close()


def set_transaction_version(bootstrap: str, level: int) -> None:
    """Change the feature `transaction.version` of a running cluster and wait until it holds."""
    wire = WireClient({"bootstrap.servers": bootstrap}, PATIENCE_S)

    async def ask(request: Any) -> Any:
        return await wire.send(await wire.any_broker(), request, soon())

    def finalized() -> int:
        request = ApiVersionsRequest(
            client_software_name="t", client_software_version="1", min_version=3, max_version=3
        )
        found = wire.run(ask, request, deadline=soon()).finalized_features
        levels = {one.name: one.max_version_level for one in found}
        return int(levels.get("transaction.version", 0))

    upgrade, safe_downgrade = 1, 2
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version",
        max_version_level=level,
        upgrade_type=upgrade if level > finalized() else safe_downgrade,
    )
    request = UpdateFeaturesRequest(
        timeout_ms=10_000, feature_updates=[update], validate_only=False
    )
    try:
        answer = wire.run(ask, request, deadline=soon())
        assert answer.error_code == 0, answer
        eventually(finalized, level)
    finally:
        wire.close()


def produce(bootstrap: str, topic: str, count: int, partitions: int) -> list[str]:
    """Write unique numbers, not transactional, over the partitions in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    numbers = [f"{number:06d}" for number in range(count)]
    for index, number in enumerate(numbers):
        producer.produce(topic, number.encode(), partition=index % partitions)
    assert producer.flush(PATIENCE_S) == 0
    return numbers


# -- a driver that restarts ----------------------------------------------------------------------

#: Called after phase 1 of a try, with what it prepared: raises, or does harm behind our back.
Interfere = Callable[[int, KafkaBothHalves, Sequence[KafkaTransaction]], None]


@dataclasses.dataclass
class Copier:
    """Copies a topic to another one with as many partitions, keeping each record's partition.

    Attributes:
        bootstrap: of the cluster.
        application_id: of the pipeline.
        source: topic to read.
        target: topic to write.
        per_batch: most records of a batch.
        interfere: see `Interfere`; its number counts every try of every batch.
        timeout_s: longest checkpoint.
        failures: what ended a run, in order.
    """

    bootstrap: str
    application_id: str
    source: str
    target: str
    per_batch: int
    interfere: Interfere = lambda number, sink, transactions: None
    timeout_s: float = 30.0
    failures: list[SparkOnceError] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._log = MemoryBackend()
        self._offsets: dict[int, tuple[dict[str, int], dict[str, int]]] = {}
        self._done = -1
        self._tries = itertools.count()
        self._reads = KafkaSource(
            bootstrap_servers=self.bootstrap, subscribe=self.source, poll_timeout_ms=10_000
        )
        self._planner = SourcePlanner(self._reads)

    def run(self, seconds: float) -> None:
        """Copy all that is there, with a new run after each failure that is not permanent."""
        deadline = Deadline(seconds)
        while True:
            sink = make_sink(self.bootstrap, self.target, checkpoint_timeout_s=self.timeout_s)
            try:
                self._one_run(sink, deadline)
            except SparkOnceError as error:
                if error.permanent or deadline.expired():
                    raise
                self.failures.append(error)
            else:
                return
            finally:
                sink.close()

    def _one_run(self, sink: KafkaBothHalves, deadline: Deadline) -> None:
        log = DecisionLog.open(self._log, application_id=self.application_id, identity={})
        sinks = {sink.name: sink}
        settled = recover(log, sinks, Deadline(self.timeout_s), finished=self._done)
        coordinator = CheckpointCoordinator(
            log, sinks, timeout_s=self.timeout_s, stopping=lambda: False, lost=settled.lost
        )
        planner = self._planner
        try:
            for number in itertools.count(self._done + 1):
                assert not deadline.expired(), self.failures
                start = self._offsets[number - 1][1] if number else planner.earliest_offsets()
                if number not in self._offsets:
                    end = limit_offsets(start, planner.next_end(start), self.per_batch)
                    if end == start:
                        return
                    self._offsets[number] = (start, end)
                self._batch(coordinator, sink, number)
                self._done = number
        finally:
            coordinator.close()

    def _batch(
        self,
        coordinator: CheckpointCoordinator,
        sink: KafkaBothHalves,
        number: int,
    ) -> None:
        start, end = self._offsets[number]
        checkpoint = Checkpoint(
            checkpoint_id=number,
            query_id="q",
            start_offsets=(str(sorted(start.items())),),
            end_offsets=(str(sorted(end.items())),),
        )

        def phase_one(only: frozenset[int] = frozenset(range(SUBTASKS))) -> list[Committable]:
            ranges = self._planner.plan(start, end)
            split = offsets_state(end).even_split(SUBTASKS)
            transactions, committables = [], []
            for subtask in sorted(only):
                attempt = attempt_of(
                    coordinator.owner,
                    number,
                    subtask,
                    source_offsets=offsets_of(split[subtask]),
                    last_decided=coordinator.last_decided(),
                    retired=coordinator.retired(),
                )
                transaction = sink.begin_transaction(attempt)
                for one in ranges:
                    if one.partition % SUBTASKS == subtask:
                        for batch in read_range(self._reads, one):
                            sink.invoke(transaction, batch.select(["value", "partition"]))
                transactions.append(transaction)
                committables.append(sink.pre_commit(transaction))
            self.interfere(next(self._tries), sink, transactions)
            return [one for one in committables if one is not None]

        def rerun(lost: Sequence[Committable]) -> list[Committable]:
            return phase_one(frozenset(one.subtask for one in lost))

        coordinator.run(checkpoint, phase_one, rerun)


def by_partition(records: Sequence[Any]) -> Mapping[int, list[str]]:
    """Return the values of each partition in the order of their offsets, or as they were seen."""
    found: dict[int, list[str]] = {}
    for record in records:
        found.setdefault(record.partition, []).append((record.value or b"").decode())
    return found
