"""Healing in the continuous mode: what the driver writes itself, on librdkafka's mock cluster."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from connectors import KafkaSource
from connectors.kafka.sink import producer_pool
from connectors.kafka.sink.idle_cache import IdleCache
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.kafka_writer import KafkaTransaction
from connectors.kafka.source import range_reader
from connectors.pipeline import rewriting as rewriting_module
from connectors.pipeline.rewriting import Rewriting
from tests.both_halves import KafkaBothHalves
from tests.client_threads import librdkafka_clients
from tests.mock_cluster import MockCluster
from tests.waiting import until
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.log_entries import Decision
from transactions.sink import Owner

OWNER = Owner(application_id="app", log_id="log", run_epoch=2)
DECISION = Decision(
    checkpoint_id=7,
    query_id="q",
    generation=0,
    start_offsets=('{"in":{"0":0,"1":0}}',),
    end_offsets=('{"in":{"0":3,"1":3}}',),
    committables=(),
    partitioning={"0": "in-0", "1": "in-1"},
)


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as made:
        yield made


def lost_of(subtask: int, offsets: dict[str, int]) -> Committable:
    return Committable(
        sink="out",
        transactional_id=f"app.log.1.p.{subtask}",
        producer_id=1,
        producer_epoch=0,
        timeout_ms=60_000,
        checkpoint_id=7,
        subtask=subtask,
        attempt="1.1",
        token=f"7.{subtask}.x",
        record_count=3,
        fingerprint="",
        source_offsets=offsets,
    )


def test_b9_no_producer_stays_in_the_driver_after_healing(cluster, monkeypatch):
    """Nobody would poll it: it queued 104 kB of statistics a second, until the driver's end."""
    source, target = cluster.topic("in", 2), cluster.topic("out")
    feeder = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    for number in range(6):
        feeder.produce(source, f"{number}".encode(), partition=number % 2)
    assert feeder.flush(10) == 0
    monkeypatch.setattr(producer_pool, "_pools", IdleCache())
    sink = KafkaBothHalves(
        KafkaSink(bootstrap_servers=cluster.bootstrap, topic=target),
        timeout_ms=60_000,
        checkpoint_timeout_s=20.0,
    )
    rewriting = Rewriting(
        source=KafkaSource(bootstrap_servers=cluster.bootstrap, subscribe=source),
        transform=lambda batch: batch.select(["key", "value"]),
        writers={"out": sink},
        schemas={},
        owner=OWNER,
    )
    # Consumers have no statistics, and are used again; here by nobody else.
    monkeypatch.setattr(range_reader, "_POOL", range_reader._ConsumerPool(4))
    gc.collect()
    gc.disable()
    try:
        before = librdkafka_clients()
        made = rewriting.write_again(DECISION, [lost_of(0, {"in-0": 3}), lost_of(1, {"in-1": 3})])
        range_reader.close_idle_consumers()
        # A thread that was joined may still be listed.
        until(lambda: librdkafka_clients() <= before)
    finally:
        gc.enable()
    assert [one.record_count for one in made] == [3, 3]
    assert producer_pool._pools.values() == []
    assert sink.producers is None


class Slow(KafkaBothHalves):
    """A sink whose every step takes the whole time of a checkpoint."""

    def __init__(self) -> None:
        options = KafkaSink(bootstrap_servers="nowhere:9092", topic="out")
        super().__init__(options, timeout_ms=60_000, checkpoint_timeout_s=20.0)
        self.left: list[float] = []

    def invoke(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        self.left.append(transaction.deadline.remaining())
        transaction.deadline = Deadline(0.0)

    def pre_commit(self, transaction: KafkaTransaction) -> None:
        self.left.append(transaction.deadline.remaining())


def test_a_loss_that_takes_longer_to_write_than_a_checkpoint_heals(monkeypatch):
    """The next try would have as little time, so such a loss would never heal."""
    batch = pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([b"v"])})
    monkeypatch.setattr(rewriting_module, "read_range", lambda *_: iter([batch] * 3))
    sink = Slow()
    Rewriting(
        source=KafkaSource(bootstrap_servers="nowhere:9092", subscribe="in"),
        transform=lambda batch: batch,
        writers={"out": sink},
        schemas={},
        owner=OWNER,
    ).write_again(DECISION, [lost_of(0, {"in-0": 3})])
    assert len(sink.left) == 4
    assert min(sink.left) > 15.0
