"""A task's two producers: which one begins when, and with how much time."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.kafka_stage_writer import KafkaStageWriter, statistics_ms
from connectors.kafka.sink.producer_pool import Slot
from tests.both_halves import KafkaBothHalves
from transactions.clock import Deadline
from transactions.errors import PhaseOneError
from transactions.sink import Attempt, Owner

OWNER = Owner(application_id="app", log_id="log", run_epoch=3)
BATCH = pa.record_batch({"value": pa.array([b"v"], pa.binary())})


class FakeProducer:
    """Takes every call and notes how much time it was given."""

    producer_id, producer_epoch = 7, 0

    def __init__(self, name: str) -> None:
        self.transactional_id = name
        self.spent = False
        self.time_left: dict[str, float] = {}
        self.offsets: Mapping[str, int] = {}
        self.served = 0

    def serve(self) -> None:
        self.served += 1

    def begin(self) -> None:
        return

    def produce(self, batch: Any, topic: Any, deadline: Deadline) -> None:
        self.time_left["produce"] = deadline.remaining()

    def flush(self, deadline: Deadline) -> None:
        self.time_left["flush"] = deadline.remaining()

    def send_offsets(self, group: str, offsets: Any, token: str, deadline: Deadline) -> None:
        self.offsets = offsets
        self.time_left["send_offsets"] = deadline.remaining()

    def await_offsets(self) -> None:
        return

    def resync(self, deadline: Deadline) -> None:
        self.time_left["resync"] = deadline.remaining()


@pytest.fixture
def writer():
    options = KafkaSink(bootstrap_servers="nowhere:9092", topic="out")
    sink = KafkaBothHalves(options, timeout_ms=900_000, checkpoint_timeout_s=60.0)
    one = KafkaStageWriter(sink, carries_offsets=True)
    one._free = [Slot(FakeProducer("id-0")), Slot(FakeProducer("id-1"))]  # type: ignore[arg-type]
    return one


def attempt(number: int) -> Attempt:
    return Attempt(owner=OWNER, checkpoint_id=number, subtask=0, attempt_id="3.0")


def prepared(writer: KafkaStageWriter, transaction: Any, offsets: dict[str, int]) -> Any:
    writer.flush(transaction, offsets)
    return writer.pre_commit(transaction)


def test_a_silence_before_the_first_record_costs_no_time(writer):
    """The transaction was begun at the barrier before it, perhaps an hour ago."""
    transaction = writer.begin_transaction(attempt(5))
    transaction.deadline = Deadline(0.0)
    writer.invoke(transaction, BATCH)
    transaction.deadline = Deadline(0.0)  # a long interval, and a queue that is full again
    transaction.slot.producer.time_left.clear()
    writer.invoke(transaction, BATCH)
    transaction.deadline = Deadline(0.0)  # and the rest of it, until the barrier
    assert prepared(writer, transaction, {"in-0": 1}) is not None
    writer.end(transaction)
    steps = transaction.slot.producer.time_left
    assert set(steps) == {"produce", "flush", "send_offsets", "resync"}
    assert min(steps.values()) > 50.0


def test_one_fills_while_the_other_commits(writer):
    five, six = (writer.begin_transaction(attempt(number)) for number in (5, 6))
    writer.invoke(five, BATCH)
    prepared(writer, five, {"in-0": 1})
    writer.invoke(six, BATCH)
    assert five.slot is not six.slot
    with pytest.raises(PhaseOneError, match="Every producer"):
        writer.invoke(writer.begin_transaction(attempt(7)), BATCH)
    writer.end(five)
    seven = writer.begin_transaction(attempt(7))
    writer.invoke(seven, BATCH)
    assert seven.slot is five.slot


def test_the_one_that_has_rested_longer_begins(writer):
    """Rule 5: what has just committed waits for the next barrier. A checkpoint that had no records
    until the one before it was committed takes the other producer.
    """
    five, six = (writer.begin_transaction(attempt(number)) for number in (5, 6))
    writer.invoke(five, BATCH)
    prepared(writer, five, {"in-0": 1})
    writer.end(five)
    writer.invoke(six, BATCH)
    assert six.slot is not five.slot


def served(writer: KafkaStageWriter, *slots: Slot) -> list[int]:
    """Serve once, and return how often each producer was served by that."""
    producers: list[Any] = [slot.producer for slot in slots]
    before = [one.served for one in producers]
    writer.serve()
    return [one.served - was for one, was in zip(producers, before, strict=True)]


def test_who_is_free_or_fills_is_served(writer):
    """Nobody else takes the statistics of a client, or its refused records, until the barrier: for
    hours perhaps. From the barrier on the control thread has the producer to itself.
    """
    one, other = writer._free
    assert served(writer, one, other) == [1, 1]
    five, six = (writer.begin_transaction(attempt(number)) for number in (5, 6))
    writer.invoke(five, BATCH)
    assert five.slot is one
    assert served(writer, one, other) == [1, 1]
    writer.flush(five, {"in-0": 1})
    assert served(writer, one, other) == [0, 1]
    writer.invoke(six, BATCH)
    writer.pre_commit(five)
    assert served(writer, one, other) == [0, 1]
    writer.end(five)
    assert served(writer, one, other) == [1, 1]
    writer.flush(six, {"in-0": 2})
    assert served(writer, one, other) == [1, 0]


def test_who_takes_a_producer_at_the_barrier_keeps_it_to_itself(writer):
    """For offsets alone; nothing fills."""
    one, other = writer._free
    writer.flush(writer.begin_transaction(attempt(5)), {"in-0": 4})
    assert served(writer, one, other) == [0, 1]


def test_positions_alone_are_a_transaction_where_they_can_travel(writer):
    transaction = writer.begin_transaction(attempt(5))
    assert prepared(writer, transaction, {"in-0": 4}).source_offsets == {"in-0": 4}
    assert transaction.slot.producer.offsets == {"in-0": 4}


def test_an_empty_one_takes_no_producer(writer):
    transaction = writer.begin_transaction(attempt(5))
    writer.invoke(transaction, BATCH.slice(0, 0))
    assert prepared(writer, transaction, {}) is None
    assert len(writer._free) == 2


def test_offsets_of_another_cluster_stay_at_home(writer):
    writer._carries_offsets = False
    transaction = writer.begin_transaction(attempt(5))
    assert prepared(writer, transaction, {"in-0": 4}) is None


@pytest.mark.parametrize("doubt", ["raises", "spent"])
def test_a_producer_in_doubt_is_never_free_again(writer, doubt):
    transaction = writer.begin_transaction(attempt(5))
    writer.invoke(transaction, BATCH)
    prepared(writer, transaction, {"in-0": 1})
    producer = transaction.slot.producer
    if doubt == "spent":
        producer.spent = True
    else:

        def resync(self: Any, deadline: Deadline) -> None:
            raise PhaseOneError("no clear answer")

        producer.resync = types.MethodType(resync, producer)
    with pytest.raises(PhaseOneError):
        writer.end(transaction)
    assert transaction.slot not in writer._free


def test_the_statistics_of_a_stage_do_not_grow_with_its_tasks():
    """Each producer emits them for ever, and 128 of them, ten a second, filled a core."""
    per_second = {tasks: 2 * tasks * 1000 / statistics_ms(tasks) for tasks in (1, 2, 16, 64)}
    assert statistics_ms(2) == 100  # a stage of few tasks starts as quickly as before
    assert max(per_second.values()) <= 200
