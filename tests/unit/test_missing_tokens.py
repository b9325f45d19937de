"""A client whose login gets no new token: what may pass, and what may not."""

from __future__ import annotations

import types
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from connectors import KafkaSource
from connectors.clients.client_errors import ErrorWatch, translate
from connectors.clients.client_settings import settings_checked
from connectors.kafka.sink.record_producer import RecordProducer
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.kafka.source.group_offsets import GroupOffsets
from connectors.operations.bounded_scan import TopicEnds
from tests.simulation.virtual_clock import VirtualClock
from transactions.clock import Deadline
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    DeliveryError,
    SparkOnceError,
    TokenUnavailableError,
)
from transactions.restart_strategy import is_retried

NO_TOKEN = KafkaError(
    KafkaError._AUTHENTICATION,
    "Failed to acquire SASL OAUTHBEARER token: Could not connect to server",
)
REFUSED = KafkaError(
    KafkaError._AUTHENTICATION,
    'b:1/1: SASL authentication error: {"status":"invalid_token"} (after 3ms in state AUTH_REQ)',
)
NOT_MADE = KafkaError(
    KafkaError.SASL_AUTHENTICATION_FAILED, "OAuth token not set within 10 seconds timeout"
)
NO_RIGHT = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([NO_TOKEN], None),  # the old token is still good for a fifth of its life
        ([REFUSED], AuthenticationError),
        ([NO_TOKEN, REFUSED], TokenUnavailableError),
        ([REFUSED, NO_TOKEN], AuthenticationError),
        ([NO_TOKEN, NO_RIGHT], AuthenticationError),
    ],
)
def test_a_missing_token_may_pass_and_a_refused_login_may_not(errors, kind):
    watch = ErrorWatch()
    for error in errors:
        watch(error)
    if kind is None:
        assert watch.final is None
        assert "Could not connect" in watch.describe()
        return
    told = translate(watch.final, "in [0]", {})
    assert type(told) is kind
    assert told.cause
    assert is_retried(told) is (kind is TokenUnavailableError)


def test_a_missing_token_of_long_ago_explains_no_refusal():
    clock = VirtualClock()
    watch = ErrorWatch(clock)
    watch(NO_TOKEN)
    clock.sleep(4 * 3600)
    watch.forget()  # a reader turns to another range: librdkafka does not say it again
    watch(REFUSED)
    assert watch.final is NO_TOKEN
    watch.forget()
    clock.sleep(24 * 3600)
    watch(REFUSED)
    assert watch.final is REFUSED


def test_a_missing_token_of_long_ago_explains_no_silence():
    """A flush that times out days later would name an old token beside the usual cause."""
    clock = VirtualClock()
    producer = RecordProducer({"bootstrap.servers": "b:1"}, "a sink", {})
    producer._producer = types.SimpleNamespace(flush=lambda _seconds: 1)
    producer._trouble = ErrorWatch(clock)
    producer._note_error(NO_TOKEN)
    causes = []
    for _ in range(2):
        with pytest.raises(DeliveryError) as caught:
            producer.flush(Deadline(0))
        causes.append(caught.value.cause)
        clock.sleep(24 * 3600)
    assert causes[0] == f"{NO_TOKEN.str()}; or {causes[1]}"


def test_verify_does_not_say_that_the_broker_refused_whom_it_was_shown_no_token_of():
    ends = TopicEnds({"bootstrap.servers": "127.0.0.1:1"})
    ends._admin = types.SimpleNamespace(poll=lambda _seconds: 0)  # it would say more
    away = KafkaException(KafkaError(KafkaError._TRANSPORT, "broker away"))
    ends._remember(NO_TOKEN)
    told = ends._reason(away)
    assert type(told) is TokenUnavailableError
    assert "Could not connect" in told.cause
    ends._remember(away.args[0])
    assert type(ends._reason(away)) is BrokerUnavailableError
    ends._remember(REFUSED)
    ends._remember(away.args[0])  # says less
    assert type(ends._reason(away)) is AuthenticationError


def refusing(*_: object, **__: object) -> Any:
    raise KafkaException(NOT_MADE)


def group_offsets() -> None:
    GroupOffsets(KafkaSource(bootstrap_servers="b:1", subscribe="in"), "app")


def settings() -> None:
    with settings_checked({"bootstrap.servers": "b:1"}, "producer"):
        refusing()


def transactional_producer() -> None:
    producer = TransactionalProducer({"bootstrap.servers": "b:1"}, "id", timeout_ms=60_000)
    producer._producer = types.SimpleNamespace(list_topics=refusing)
    producer.find_topic("out", Deadline(1))


@pytest.mark.parametrize("make", [group_offsets, settings, transactional_producer])
def test_a_client_that_got_no_token_when_it_was_made_may_get_one(make, monkeypatch):
    """confluent-kafka says it with the code of a broker that refuses a login."""
    monkeypatch.setattr("connectors.clients.client_settings.AdminClient", refusing)
    with pytest.raises(SparkOnceError) as caught:
        make()
    assert type(caught.value) is TokenUnavailableError
    assert "not set within 10 seconds" in caught.value.cause
    assert caught.value.where
