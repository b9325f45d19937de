"""The first connection of the raw wire: wrong credentials, and a broker that goes away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as kafka_errors

from connectors.wire.wire_client import WireClient
from transactions.clock import Deadline

SASL = {
    "bootstrap.servers": "b:9092",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "p",
}


class Manager:
    """One broker. It closes the connection in the login so often, then nothing connects."""

    def __init__(self, closes: int) -> None:
        self._left = closes
        self.cluster = SimpleNamespace(bootstrap_brokers=lambda: [SimpleNamespace(node_id=1)])

    def get_connection(self, _node: int, *, refresh_metadata_on_err: bool) -> Any:
        assert not refresh_metadata_on_err
        if not self._left:
            raise kafka_errors.NodeNotReadyError("back-off")
        self._left -= 1
        return SimpleNamespace(init_future=None, broker_version_data=object())

    async def wait_for(self, _future: object, _milliseconds: float) -> None:
        raise kafka_errors.KafkaConnectionError("closed")


def greet(closes: int) -> None:
    wire = WireClient(SASL, 1.0)
    wire._manager = Manager(closes)
    wire.pause = lambda _seconds: asyncio.sleep(0)  # type: ignore[method-assign]
    asyncio.run(wire._greet(Deadline(5.0)))


def test_a_broker_that_goes_away_during_one_login_has_refused_nobody():
    greet(closes=1)


def test_a_broker_that_closes_each_login_has_refused_the_credentials():
    with pytest.raises(kafka_errors.SaslAuthenticationFailedError, match="3 times"):
        greet(closes=3)
