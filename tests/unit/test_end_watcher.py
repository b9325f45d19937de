"""The end of an output is asked for again when a broker's answer may change."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from connectors.bench import end_watcher
from connectors.bench.end_watcher import EndWatcher
from connectors.clients import client_settings
from transactions.errors import BrokerUnavailableError, MissingTopicError


class Offset:
    offset = 7


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return what the broker says, one after the other: an error code, or None for an offset."""
    script: list[int | None] = []

    class Admin:
        def __init__(self, _settings: Any) -> None:
            self.used = False

        def list_offsets(self, asked: Any, **_: Any) -> dict[Any, Future[Any]]:
            assert not self.used, "a client that failed is not asked again"
            code = script.pop(0) if len(script) > 1 else script[0]
            self.used = code is not None
            done: Future[Any] = Future()
            if code is None:
                done.set_result(Offset())
            else:
                done.set_exception(KafkaException(KafkaError(code)))
            return dict.fromkeys(asked, done)

    monkeypatch.setattr(client_settings, "AdminClient", Admin)
    return script


def watcher() -> EndWatcher:
    return EndWatcher({"bootstrap.servers": "nobody:1"}, "out", 2)


def test_a_broker_that_does_not_lead_yet_is_asked_again(answers):
    answers += [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.NOT_LEADER_FOR_PARTITION, None]
    one = watcher()
    assert one.sample() == 14
    assert one.ends == [(7, 7)]


def test_a_topic_that_is_not_there_is_not_waited_for(answers):
    answers += [KafkaError.UNKNOWN_TOPIC_OR_PART]
    with pytest.raises(MissingTopicError):
        watcher().sample()


def test_it_is_not_asked_for_ever(answers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(end_watcher, "_ASK_S", 0.2)
    answers += [KafkaError.NOT_LEADER_FOR_PARTITION]
    with pytest.raises(BrokerUnavailableError, match="out"):
        watcher().sample()
