"""Where the native path cannot be used, the plain one is, and one line says why."""

from __future__ import annotations

import ctypes
import logging
import time

import confluent_kafka
import numpy as np
import pytest

from connectors.kafka.sink.plain_producer import PlainProducer
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.kafka.source.partition_reader import PartitionReader
from connectors.native import (
    arrow_messages,
    chosen_path,
    consumed_columns,
    librdkafka,
    self_test,
)
from connectors.native.native_producer import (
    NativePlainProducer,
    NativeTransactionalProducer,
)
from connectors.native.native_reader import NativePartitionReader


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
        (librdkafka.confluent_kafka, "__file__", "/none/confluent_kafka/__init__.py", "it has 0"),
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


def moved(layout: np.dtype, **offsets: int) -> np.dtype:
    """Return the layout with some of its fields at other places."""
    names = list(layout.names)
    fields = {name: layout.fields[name] for name in names}
    return np.dtype(
        {
            "names": names,
            "formats": [fields[name][0] for name in names],
            "offsets": [offsets.get(name, fields[name][1]) for name in names],
            "itemsize": layout.itemsize,
        }
    )


class OtherPosition(ctypes.Structure):
    _fields_ = [(name, kind) for name, kind in librdkafka.Position._fields_ if name != "offset"]


class OtherMessage(ctypes.Structure):
    _fields_ = [("err", ctypes.c_int), ("partition", ctypes.c_int32), ("rkt", ctypes.c_void_p)]


OtherPosition.offset = 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("target", "name", "layout", "found"),
    [
        (librdkafka, "Position", OtherPosition, "a position"),
        (librdkafka, "Message", OtherMessage, "a report"),
        (consumed_columns, "_CONSUMED", moved(consumed_columns._CONSUMED, len=40), "a message"),
        (consumed_columns, "_CONSUMED", moved(consumed_columns._CONSUMED, time=80), "times"),
        (arrow_messages, "MESSAGE", moved(librdkafka.MESSAGE, payload=40, key=24), "keys"),
        (librdkafka, "ARGUMENT", moved(librdkafka.ARGUMENT, kind=4), "VTYPE"),
    ],
    ids=["position", "report", "message read", "time read", "message written", "argument"],
)
def test_e1_another_layout_falls_back_to_the_plain_path(
    monkeypatch, caplog, target, name, layout, found
):
    monkeypatch.setattr(target, name, layout)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert chosen_path.producer_kind() is TransactionalProducer
            assert chosen_path.plain_producer_kind() is PlainProducer
            assert chosen_path.reader_kind() is PartitionReader
    (line,) = caplog.messages
    assert "the plain one is used: its self-test failed" in line
    assert found in line


def test_e1_the_self_test_is_cheap():
    """Some 2 ms of CPU; a worker asks once. The least of five: a collection of garbage, or another
    thread of this process, counts as well.
    """
    took = []
    for _ in range(5):
        began = time.process_time()
        assert self_test.failure() == ""
        took.append(time.process_time() - began)
    assert min(took) < 0.05
