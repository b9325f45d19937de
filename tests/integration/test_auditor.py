"""The auditor's reader on a real broker: it never counts behind an open transaction (S11)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.testing.auditor import reader
from tests.auditor import (
    Follower,
    IncompleteRead,
    OpenTransaction,
    assert_exactly_once,
    history_of,
    read_committed,
    read_uncommitted,
)
from tests.auditor.checkers import INTENT_HEADER, judge, readers_disagree


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(30)
    return producer


def write(producer: Producer, topic: str, numbers: range, intent: str) -> None:
    producer.begin_transaction()
    for number in numbers:
        producer.produce(topic, str(number), partition=number % 2, headers={INTENT_HEADER: intent})
    assert producer.flush(30) == 0


def test_s11_an_open_transaction_is_named_with_both_offsets(bootstrap, topic):
    """K11: readers stop at its first record."""
    target = topic(2)
    producer = transactional(bootstrap, f"x-{target}")
    write(producer, target, range(10), "committed")
    producer.commit_transaction(30)
    write(producer, target, range(11, 12), "aborted")
    with pytest.raises(OpenTransaction, match=rf"{target}-1: read_committed ends at 6, the log"):
        read_committed(bootstrap, target, timeout=0.5)
    assert len(read_uncommitted(bootstrap, target)) == 11
    producer.abort_transaction(30)
    assert len(read_committed(bootstrap, target)) == 10


def test_k9_k10_aborted_records_are_in_the_log_and_in_no_history(bootstrap, topic):
    """read_uncommitted sees both, and the checker that is given it fails by name."""
    target = topic(2)
    producer = transactional(bootstrap, f"x-{target}")
    write(producer, target, range(4), "aborted")
    producer.abort_transaction(30)
    write(producer, target, range(4), "committed")
    producer.commit_transaction(30)
    committed = read_committed(bootstrap, target)
    assert [record.value for record in committed] == [b"0", b"2", b"1", b"3"]
    assert_exactly_once(history_of(committed, committed, identify=lambda r: r.value))
    every = read_uncommitted(bootstrap, target)
    cases = judge(history_of(committed, every, identify=lambda r: r.value))
    assert [case.anomaly for case in cases] == ["aborted value visible"] * 4


def test_k1_a_reader_during_the_run_saw_what_a_reader_after_it_sees(bootstrap, topic):
    """The follower is there before the first record, and ends behind a control record."""
    target = topic(2)
    producer = transactional(bootstrap, f"x-{target}")
    with Follower(bootstrap, target) as follower:
        for start in range(0, 60, 20):
            write(producer, target, range(start, start + 10), "aborted")
            producer.abort_transaction(30)
            write(producer, target, range(start, start + 20), "committed")
            producer.commit_transaction(30)
            follower.until(lambda seen, least=start + 20: len(seen) >= least)
        during = follower.drain()
    after = read_committed(bootstrap, target)
    assert len(after) == 60
    assert readers_disagree(during, after) == []


def test_a_condition_that_never_holds_ends_in_an_error(bootstrap, topic):
    """No wait is endless."""
    with Follower(bootstrap, topic()) as follower, pytest.raises(IncompleteRead, match="0 seen"):
        follower.until(bool, timeout=0.3)


def test_a_reader_that_has_failed_says_why(bootstrap, topic, monkeypatch):
    """Else records that it has not read look lost. The client is made to fail: whatever a broker
    does, a client of librdkafka rather tries again.
    """

    def consume(*_: object) -> NoReturn:
        raise KafkaException(KafkaError(KafkaError._LOG_TRUNCATION))

    client = SimpleNamespace(assign=lambda _: None, consume=consume, close=lambda: None)
    monkeypatch.setattr(reader, "_consumer", lambda *_: client)
    with Follower(bootstrap, topic()) as follower:
        with pytest.raises(IncompleteRead, match="_LOG_TRUNCATION"):
            follower.until(lambda _: False, timeout=60)
        with pytest.raises(IncompleteRead, match="_LOG_TRUNCATION"):
            follower.check()


def test_an_empty_topic_is_read_to_its_end(bootstrap, topic):
    """Without waiting for a record."""
    assert read_committed(bootstrap, topic(3)) == []
