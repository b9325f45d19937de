"""Our own clients of librdkafka, where they stand in for confluent's: without a broker."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import KafkaError, Producer

from connectors.kafka.sink import plain_producer, record_producer, transactional_producer
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.native import librdkafka
from connectors.native.native_consumer import before_errors
from connectors.native.native_producer import NativeTransactionalProducer
from connectors.native.producer_client import ProducerClient
from tests.mock_cluster import MockCluster
from transactions.clock import Deadline

USERS = [record_producer, transactional_producer, plain_producer]
END, BAD = KafkaError._PARTITION_EOF, KafkaError._BAD_MSG


def test_our_producer_has_all_that_is_called_on_confluents():
    """One call was missing, and `_producer` may be either: no type checker sees it."""
    called = set()
    for module in USERS:
        text = Path(str(module.__file__)).read_text("utf-8")
        called |= {*re.findall(r"self\._producer\.(\w+)", text)}
    called.discard("produce")  # the one that ours replaces
    assert {"list_topics", "flush", "init_transactions"} <= called
    assert [name for name in sorted(called) if not hasattr(Producer, name)] == []
    assert [name for name in sorted(called) if not hasattr(ProducerClient, name)] == []


@pytest.mark.parametrize("kind", [TransactionalProducer, NativeTransactionalProducer])
def test_a_topic_is_found(kind):
    with MockCluster() as cluster:
        cluster.topic("out")
        producer = kind({"bootstrap.servers": cluster.bootstrap}, "one", timeout_ms=10_000)
        producer.find_topic("out", Deadline(30))
        assert producer._found == {"out"}


def test_an_unexpected_error_of_the_offsets_is_not_taken_for_their_answer(monkeypatch):
    """It came on a thread of its own, where it would only be printed."""

    def fails(*_: object) -> None:
        raise MemoryError("none left")

    producer = TransactionalProducer({"bootstrap.servers": "b:1"}, "one", timeout_ms=10_000)
    monkeypatch.setattr(producer, "_call", fails)
    producer.send_offsets("group", {"in-0": 1}, "token", Deadline(5))
    with pytest.raises(MemoryError, match="none left"):
        producer.await_offsets()


def polled(*entries: tuple[int, int, int]) -> list[bool]:
    """Tell which of these may be handed out; each is (partition, offset, error)."""
    messages = np.zeros(len(entries), dtype=librdkafka.MESSAGE)
    messages["rkt"] = 1
    for name, values in zip(
        ("partition", "offset", "err"), zip(*entries, strict=True), strict=True
    ):
        messages[name] = values
    return before_errors(messages).tolist()


def test_nothing_behind_an_error_of_its_partition_is_handed_out():
    """Else the position would pass a record that librdkafka could not read."""
    entries = [(0, 5, 0), (1, 5, 0), (0, 6, BAD), (0, 7, 0), (1, 6, 0), (0, 8, END), (1, 7, END)]
    assert polled(*entries) == [True, True, False, False, True, False, True]
    assert polled((0, 5, 0), (0, 6, END)) == [True, True]
