"""Our own librdkafka handles with a callback for tokens: nobody has to poll, and a client can be
dropped while it is asked for one.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from connectors.clients import token_source
from connectors.clients.token_source import Token, TokenSource
from connectors.native import librdkafka
from connectors.native.client_handle import ClientHandle
from connectors.native.native_consumer import NativeConsumer
from connectors.native.producer_client import ProducerClient
from tests.token_endpoint import unsigned
from tests.waiting import until
from transactions.clock import Deadline

NOWHERE: dict[str, Any] = {
    "bootstrap.servers": "127.0.0.1:1",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanisms": "OAUTHBEARER",
    "log_level": 0,
}


class Tokens:
    """Gives a token that is good for two seconds, as soon as it may."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.failure: Exception | None = None
        self.extensions: dict[str, str] = {"pool": "one"}

    def __call__(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        self.threads.append(threading.current_thread())
        self.asked.set()
        assert self.may_answer.wait(10)
        if self.failure is not None:
            raise self.failure
        return unsigned("flights", 2.0), time.time() + 2.0, "flights", self.extensions


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


@pytest.mark.parametrize("kind", [ProducerClient, NativeConsumer])
def test_a_client_is_given_tokens_while_nobody_polls(kind, tokens: Tokens):
    more = {"group.id": "g"} if kind is NativeConsumer else {}
    client = kind({**NOWHERE, **more, "oauth_cb": tokens})
    until(lambda: len(tokens.threads) >= 2)
    assert threading.main_thread() not in tokens.threads
    del client


def test_making_a_client_does_not_wait_for_its_token(tokens: Tokens):
    tokens.may_answer.clear()
    began = time.monotonic()
    client = ProducerClient({**NOWHERE, "oauth_cb": tokens})
    assert time.monotonic() - began < 0.9
    assert tokens.asked.wait(10)
    tokens.may_answer.set()
    del client


def test_a_client_is_dropped_while_it_is_asked_for_a_token(tokens: Tokens):
    """Closing waits for the callback; on the callback's own thread librdkafka would abort."""
    tokens.may_answer.clear()
    client = ProducerClient({**NOWHERE, "oauth_cb": tokens})
    assert tokens.asked.wait(10)
    threading.Timer(0.2, tokens.may_answer.set).start()
    del client
    gc.collect()
    assert tokens.may_answer.is_set()


def test_a_client_in_a_cycle_is_closed_by_another_thread(tokens: Tokens):
    """The collector runs wherever Python allocates: in the callback of that same client too."""
    made: list[Any] = []
    may_drop, dropped = threading.Event(), threading.Event()

    def drops(config: str) -> tuple[Any, ...]:
        assert may_drop.wait(10)
        made.clear()
        gc.collect()
        dropped.set()
        return tokens(config)

    cycle: list[Any] = [ProducerClient({**NOWHERE, "oauth_cb": drops})]
    cycle.append(cycle)
    made.append(cycle)
    del cycle
    may_drop.set()
    assert dropped.wait(10)
    until(lambda: bool(tokens.threads))


def test_a_client_is_closed_by_the_thread_that_asks_for_its_token(monkeypatch):
    """The collector runs wherever Python allocates: also in the function, which another client of
    the same login waits for; and closing a client waits for its callback.
    """
    monkeypatch.setattr(token_source, "PATIENCE_S", 1.0)
    other: list[Any] = []
    may_drop, dropped, waits = threading.Event(), threading.Event(), threading.Event()

    def drops(_timeout_s: float) -> Token:
        assert may_drop.wait(10)
        other.clear()
        dropped.set()
        return Token(unsigned("flights", 9.0), int(time.time() * 1000) + 9000)

    source = TokenSource(drops)

    def asked_by_the_other(config: str) -> Any:
        waits.set()
        return source(config)

    first = ProducerClient({**NOWHERE, "oauth_cb": source})
    other.append(ProducerClient({**NOWHERE, "oauth_cb": asked_by_the_other}))
    assert waits.wait(10)
    may_drop.set()
    assert dropped.wait(10)
    source.usable(Deadline(5))
    del first


def said(client: ProducerClient, errors: list[KafkaError]) -> str:
    until(lambda: client.poll(0.01) >= 0 and bool(errors))
    return errors[0].str()


def failing(tokens: Tokens, of_login: list[KafkaError]) -> ProducerClient:
    def note(error: KafkaError) -> None:
        of_login.extend([error] if error.code() == KafkaError._AUTHENTICATION else [])

    return ProducerClient({**NOWHERE, "oauth_cb": tokens, "error_cb": note})


def test_a_client_says_why_it_has_no_token(tokens: Tokens):
    tokens.failure = OSError("no route \udcff")
    errors: list[KafkaError] = []
    assert "no route ?" in said(failing(tokens, errors), errors)


def test_a_token_that_librdkafka_does_not_take_is_told(tokens: Tokens):
    tokens.extensions = {"auth": "x"}
    errors: list[KafkaError] = []
    assert "reserved `auth`" in said(failing(tokens, errors), errors)


def test_a_client_of_another_mechanism_has_no_tokens():
    handle = ClientHandle(librdkafka.PRODUCER, {"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with pytest.raises(KafkaException, match="No SASL mechanism"):
        librdkafka.check_error(
            librdkafka.library().rd_kafka_sasl_background_callbacks_enable(handle.address)
        )
