"""The first connection of the raw wire: wrong credentials, and a broker that goes away or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import IllegalSaslStateError
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from connectors.wire.wire_client import NotSentError, WireClient
from tests.token_endpoint import TokenEndpoint
from transactions.clock import Deadline
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    TokenUnavailableError,
)
from transactions.restart_strategy import is_retried

API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
REFUSED = 58
VERSIONS = {API_VERSIONS: 4, HANDSHAKE: 1, AUTHENTICATE: 2}


class Broker:
    """Answers each connection up to one request of its login; then it closes, or hangs.

    Args:
        last: the last request that a connection gets an answer to, 0 for none; connection by
            connection, and the last one for all that follow.
        then: "closes" or "hangs", when the request behind it has come.
    """

    def __init__(self, *last: int, then: str = "closes") -> None:
        self._last = [*last]
        self._then = then
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                last = self._last.pop(0) if len(self._last) > 1 else self._last[0]
                threading.Thread(target=self._serve, args=(connection, last), daemon=True).start()

    def _serve(self, connection: socket.socket, last: int) -> None:
        answered = 0
        with connection, contextlib.suppress(OSError, struct.error):
            while True:
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                asked = connection.recv(size, socket.MSG_WAITALL)
                if answered != last:
                    answered, version, correlation = struct.unpack_from(">hhi", asked)
                    answer = ANSWERS[answered](version)
                    answer.with_header(correlation_id=correlation)
                    connection.sendall(answer.encode(framed=True, header=True))
                elif self._then == "closes":
                    return


def versions(version: int) -> Any:
    keys = [
        ApiVersionsResponse.ApiVersion(version=version, api_key=k, min_version=0, max_version=most)
        for k, most in VERSIONS.items()
    ]
    return ApiVersionsResponse(version=version, error_code=0, api_keys=keys)


ANSWERS = {
    API_VERSIONS: versions,
    HANDSHAKE: lambda version: SaslHandshakeResponse(
        version=version, error_code=0, mechanisms=["PLAIN"]
    ),
    AUTHENTICATE: lambda version: SaslAuthenticateResponse(
        version=version, error_code=REFUSED, error_message="no such user", auth_bytes=b""
    ),
}


def connect(broker: Broker, within_s: float) -> None:
    kafka = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "hunter2",
    }
    with contextlib.closing(broker):
        WireClient(kafka, request_timeout_s=0.2).connect(Deadline(within_s))


def test_a_broker_that_goes_away_during_one_login_has_refused_nobody():
    """A proxy takes connections and closes them at once while its broker is away."""
    with pytest.raises(BrokerUnavailableError):
        connect(Broker(API_VERSIONS, 0), 1.0)


def test_a_broker_that_hangs_in_the_login_has_refused_nobody():
    with pytest.raises(BrokerUnavailableError):
        connect(Broker(API_VERSIONS, then="hangs"), 1.5)


@pytest.mark.parametrize(
    ("last", "then", "cause"),
    [
        (API_VERSIONS, "closes", "closed the connection during the login, 3 times"),
        (HANDSHAKE, "closes", "closed the connection during the login, 3 times"),
        (AUTHENTICATE, "hangs", "no such user"),
    ],
)
def test_a_broker_that_refuses_the_credentials_is_believed_at_once(last, then, cause):
    began = time.monotonic()
    with pytest.raises(AuthenticationError) as raised:
        connect(Broker(last, then=then), 60.0)
    assert cause in raised.value.cause
    assert time.monotonic() - began < 20.0


def test_a_broker_that_refuses_is_believed_also_after_a_login_that_failed():
    """The first connection comes while it starts, or while this machine is busy."""
    with pytest.raises(AuthenticationError, match="3 times"):
        connect(Broker(0, HANDSHAKE), 60.0)


@pytest.mark.parametrize("last", [HANDSHAKE, AUTHENTICATE])
def test_a_password_is_not_in_the_log_of_the_wire(last, caplog):
    """At DEBUG kafka-python logs each request as it is, and its bytes."""
    with caplog.at_level(logging.DEBUG, "kafka"), pytest.raises(AuthenticationError):
        connect(Broker(last, then="closes" if last == HANDSHAKE else "hangs"), 60.0)
    assert "SaslAuthenticateRequest" in caplog.text
    assert "SaslHandshakeRequest(version=1, mechanism='PLAIN')" in caplog.text
    assert "hunter2" not in caplog.text


# -- tokens ----------------------------------------------------------------------------------------


def with_tokens(broker: str, endpoint: str) -> WireClient:
    kafka = {
        "bootstrap.servers": broker,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": endpoint,
        "sasl.oauthbearer.client.credentials.client.id": "flights",
        "sasl.oauthbearer.client.credentials.client.secret": "hunter2",
    }
    return WireClient(kafka, request_timeout_s=0.2)


def test_an_endpoint_of_tokens_that_is_away_may_come_back():
    with pytest.raises(TokenUnavailableError) as raised:
        with_tokens("127.0.0.1:1", "http://127.0.0.1:1/token").connect(Deadline(0.1))
    assert raised.value.where == "http://127.0.0.1:1/token"
    assert is_retried(raised.value)


def test_an_endpoint_of_tokens_that_refuses_the_client_is_believed_at_once():
    with TokenEndpoint() as endpoint:
        endpoint.status, endpoint.answer = 401, b'{"error": "invalid_client"}'
        wire = with_tokens("127.0.0.1:1", endpoint.url)
        with pytest.raises(AuthenticationError, match="invalid_client") as raised:
            wire.connect(Deadline(60))
        assert not is_retried(raised.value)
        assert len(endpoint.requests) == 1


def test_a_connection_without_a_token_has_sent_nothing():
    """The next try may find a token: a commit waits for it as for a broker that is away."""

    async def logs_in(*_: Any) -> None:
        raise TokenUnavailableError("No token.", where="idp", cause="away", option="url")

    wire = with_tokens("127.0.0.1:1", "http://127.0.0.1:1/token")
    connection = SimpleNamespace(connected=False, init_future=None)
    wire._manager = SimpleNamespace(get_connection=lambda _: connection, wait_for=logs_in)
    with pytest.raises(NotSentError, match=r"No token\. away"):
        asyncio.run(wire._ready(1, Deadline(1)))


def test_a_second_login_within_a_second_has_refused_nobody():
    """A connection logs in again with the rest of a token's life; see KafkaChannel.java."""

    async def logs_in(*_: Any) -> None:
        raise IllegalSaslStateError("again")

    wire = with_tokens("127.0.0.1:1", "http://127.0.0.1:1/token")
    connection = SimpleNamespace(connected=False, init_future=None)
    wire._manager = SimpleNamespace(get_connection=lambda _: connection, wait_for=logs_in)
    with pytest.raises(NotSentError, match="again"):
        asyncio.run(wire._ready(1, Deadline(1)))
