"""Where the native path cannot be used, the plain one is, and one line says why."""

from __future__ import annotations

import logging

import confluent_kafka
import pytest

from connectors.kafka.native import chosen_path, librdkafka
from connectors.kafka.native.native_producer import (
    NativePlainProducer,
    NativeTransactionalProducer,
)
from connectors.kafka.native.native_reader import NativePartitionReader
from connectors.kafka.sink.plain_producer import PlainProducer
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.kafka.source.partition_reader import PartitionReader


@pytest.fixture(autouse=True)
def _asked_anew():
    for asked in (librdkafka._load, chosen_path._is_available):
        asked.cache_clear()
    yield
    for asked in (librdkafka._load, chosen_path._is_available):
        asked.cache_clear()


def test_here_it_is_native_unless_it_is_not_wanted():
    assert librdkafka.available() == ""
    assert librdkafka.library().rd_kafka_version_str().decode() == confluent_kafka.libversion()[0]
    assert chosen_path.producer_kind() is NativeTransactionalProducer
    assert chosen_path.plain_producer_kind() is NativePlainProducer
    assert chosen_path.reader_kind() is NativePartitionReader
    assert chosen_path.producer_kind(native=False) is TransactionalProducer
    assert chosen_path.plain_producer_kind(native=False) is PlainProducer
    assert chosen_path.reader_kind(native=False) is PartitionReader


@pytest.mark.parametrize(
    ("target", "name", "value", "reason"),
    [
        (librdkafka.sys, "platform", "darwin", "this is darwin"),
        (librdkafka.confluent_kafka, "__file__", "/none/confluent_kafka/__init__.py", "here are 0"),
        (librdkafka.confluent_kafka, "libversion", lambda: ("1.9.2", 0), "runs 1.9.2"),
        (librdkafka, "_FUNCTIONS", {"rd_kafka_no_such_call": (None, ())}, "rd_kafka_no_such_call"),
    ],
    ids=["platform", "no wheel", "another version", "a call is missing"],
)
def test_elsewhere_it_is_plain_and_told_once(monkeypatch, caplog, target, name, value, reason):
    monkeypatch.setattr(target, name, value)
    with caplog.at_level(logging.WARNING):
        assert chosen_path.producer_kind() is TransactionalProducer
        assert chosen_path.plain_producer_kind() is PlainProducer
        assert chosen_path.reader_kind() is PartitionReader
    assert len(caplog.messages) == 1
    assert reason in caplog.messages[0]
    with pytest.raises(OSError, match=reason):
        librdkafka.library()
