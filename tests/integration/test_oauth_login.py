"""OAUTHBEARER and TLS from text on a real broker: tokens of an identity provider and of a function,
renewed under an open transaction, refused, and without a right.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Self

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from connectors import KafkaSource
from connectors.clients.client_settings import librdkafka_settings
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.kafka.source.partition_reader import PartitionReader
from connectors.native.native_producer import NativeTransactionalProducer
from connectors.native.native_reader import NativePartitionReader
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.certificates import Certificate, self_signed
from tests.integration.wire_helpers import begin, committable, eventually, soon, values
from tests.locked_broker import AUTHORIZER, locked_broker, speaks_tls, wants_token
from tests.tiers import long
from tests.token_endpoint import TokenEndpoint, unsigned
from transactions.clock import Deadline
from transactions.committable import Outcome
from transactions.errors import AuthenticationError, TokenUnavailableError
from transactions.restart_strategy import is_retried

TOPIC = "tokens"
PASSWORD = "hunter2"


@dataclasses.dataclass(frozen=True)
class Secure:
    plain: str
    unsecured: str
    oidc: str
    mtls: str
    endpoint: TokenEndpoint
    broker: Certificate
    client: Certificate

    def provider(self, **more: str) -> dict[str, str]:
        """Log in with tokens of the identity provider."""
        return {
            "bootstrap.servers": self.oidc,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": self.endpoint.url,
            "sasl.oauthbearer.client.credentials.client.id": "flights",
            "sasl.oauthbearer.client.credentials.client.secret": PASSWORD,
            # A login of its own has tokens of its own.
            "sasl.oauthbearer.scope": uuid.uuid4().hex,
            **{f"sasl.oauthbearer.{name.replace('_', '.')}": text for name, text in more.items()},
        }

    def function(self, listener: str, subject: str = "flights") -> dict[str, str]:
        """Log in with tokens of `tokens`, which nobody has signed."""
        return {
            "bootstrap.servers": listener,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.callback": f"{__name__}:tokens",
            "sasl.oauthbearer.config": f"{subject} {uuid.uuid4().hex}",
        }


LIFE_S = 4.0
asked: list[str] = []


def tokens(config: str) -> tuple[str, float]:
    asked.append(config)
    return unsigned(config.split(maxsplit=1)[0], LIFE_S), time.time() + LIFE_S


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("oauth")
    broker, client = self_signed(folder, "broker"), self_signed(folder, "client")
    with TokenEndpoint(folder) as endpoint:
        made, addresses = locked_broker(
            {"UNSECURED": "SASL_PLAINTEXT", "OIDC": "SASL_PLAINTEXT", "MTLS": "SSL"},
            wants_token(
                "unsecured", "internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
            ),
            wants_token("oidc"),
            speaks_tls("mtls", broker, client),
            AUTHORIZER | {"super.users": "User:ANONYMOUS;User:flights;User:CN=client"},
            issuer=endpoint,
        )
        with made as cluster:
            cluster.create_topic(TOPIC)
            plain, unsecured, oidc, mtls = addresses
            yield Secure(plain, unsecured, oidc, mtls, endpoint, broker, client)


@pytest.fixture
def endpoint(secure: Secure) -> Iterator[TokenEndpoint]:
    """Return the endpoint of the broker's issuer; whatever a test does to it ends with the test."""
    made = secure.endpoint
    made.requests.clear()
    yield made
    made.lifetime_s, made.status, made.answer = 60.0, 200, None


def commit_through(kafka: Mapping[str, str], name: str, plain: str) -> None:
    """Write with librdkafka and commit with raw requests, both from the same settings."""
    producer = Producer(librdkafka_settings(kafka) | {"transactional.id": name})
    producer.init_transactions(20)
    begin(producer, TOPIC, [name])
    with CoordinatorWire(kafka) as wire:
        assert wire.commit([committable(wire, name)], soon()) == {name: Outcome.COMMITTED}
    eventually(lambda: name in values(plain, TOPIC), True)


def test_commit_with_tokens_of_an_identity_provider(secure, endpoint):
    commit_through(secure.provider(), "app.oidc.1.a.0", secure.plain)
    assert {path for path, _, _ in endpoint.requests} == {endpoint.path}


def test_commit_with_tokens_of_a_function(secure):
    commit_through(secure.function(secure.unsecured), "app.function.1.a.0", secure.plain)


def test_commit_with_a_certificate_and_a_key_as_text(secure):
    kafka = {
        "bootstrap.servers": secure.mtls,
        "security.protocol": "SSL",
        "ssl.truststore.certificates": secure.broker.text,
        "ssl.keystore.certificate.chain": secure.client.text,
        "ssl.keystore.key": secure.client.encrypted_key(PASSWORD),
        "ssl.key.password": PASSWORD,
    }
    commit_through(kafka, "app.text.1.a.0", secure.plain)


def test_commit_with_a_pkcs12_store(secure):
    kafka = {
        "bootstrap.servers": secure.mtls,
        "security.protocol": "SSL",
        "ssl.truststore.location": str(secure.broker.path),
        "ssl.keystore.location": str(secure.client.pkcs12(PASSWORD)),
        "ssl.keystore.password": PASSWORD,
    }
    commit_through(kafka, "app.store.1.a.0", secure.plain)


@dataclasses.dataclass
class Client:
    """A producer, a reader and the driver's wire, with one login."""

    name: str
    producer: TransactionalProducer
    reader: PartitionReader
    wire: CoordinatorWire

    @classmethod
    def of(cls, kind: type[Any], reads: type[Any], login: str, secure: Secure) -> Self:
        kafka = secure.provider() if login == "provider" else secure.function(secure.unsecured)
        name = f"app.renewed.{login}.{kind.__name__}.0"
        rest = dict(kafka)
        servers = rest.pop("bootstrap.servers")
        source = KafkaSource(bootstrap_servers=servers, subscribe=TOPIC, kafka=rest)
        reader = reads(source, {f"{TOPIC}-0": len(values(secure.plain, TOPIC))})
        producer = kind(librdkafka_settings(kafka), name, timeout_ms=300_000)
        return cls(name, producer, reader, CoordinatorWire(kafka))

    def write(self, number: int) -> None:
        rows = pa.record_batch({"value": pa.array([f"{self.name} {number}"], pa.string())})
        self.producer.produce(rows, TOPIC, soon())
        self.producer.flush(soon())

    def read(self, count: int) -> list[str]:
        """Return this client's records, as its own reader reads them."""
        found: list[str] = []
        deadline = Deadline(20)
        while len(found) < count and not deadline.expired():
            batch = self.reader.read(0.1).batch
            rows = [] if batch is None else batch["value"].to_pylist()
            found += [row.decode() for row in rows if row.startswith(self.name.encode())]
        return found


@long
def test_a_token_is_renewed_while_a_transaction_is_open(secure, endpoint, monkeypatch):
    """Nobody polls meanwhile: the tasks are in a user's function. The broker ends each session with
    its token, so that a connection whose token was not renewed would break: a doubt.
    """
    endpoint.lifetime_s = life_s = 40.0
    monkeypatch.setattr(f"{__name__}.LIFE_S", life_s)
    kinds = (
        (NativeTransactionalProducer, NativePartitionReader),
        (TransactionalProducer, PartitionReader),
    )
    logins = ("provider", "function")
    clients = [Client.of(*kind, login, secure) for kind in kinds for login in logins]
    for client in clients:
        client.producer.init(soon())
        client.producer.begin()
        client.write(0)
        client.wire.describe([client.name], soon())
        client.reader.read(0.1)
        client.producer._connections_broke()  # that to the bootstrap address was given up
    asks = len(endpoint.requests), len(asked)
    Deadline(60).pause(life_s * 1.2)  # no event says that a session has ended
    for client in clients:
        client.write(1)
        assert not client.producer._connections_broke(), client.name
        name = client.name
        done = client.wire.commit([committable(client.wire, name)], soon())
        assert done == {name: Outcome.COMMITTED}
        assert client.wire.doubtful == frozenset(), client.name
        client.producer.resync(soon())
        assert not client.producer.spent
    # Each client of an identity provider asks itself; a function is asked once for all of them.
    assert len(endpoint.requests) >= asks[0] + 6
    assert len(asked) >= asks[1] + 2
    for client in clients:
        assert client.read(2) == [f"{client.name} 0", f"{client.name} 1"]
        client.reader.close()
        client.wire.close()


def test_a_token_that_the_broker_refuses_is_permanent(secure):
    kafka = secure.function(secure.oidc)  # nobody has signed it
    deadline = Deadline(15)
    with CoordinatorWire(kafka) as wire, pytest.raises(AuthenticationError) as caught:
        wire.describe(["a"], deadline)
    assert deadline.remaining() > 5
    assert not is_retried(caught.value)
    assert caught.value.where == secure.oidc


def test_an_identity_provider_that_is_away_may_come_back(secure, endpoint):
    kafka = secure.provider()
    endpoint.status, endpoint.answer = 503, b""
    with CoordinatorWire(kafka) as wire:
        with pytest.raises(TokenUnavailableError) as caught:
            wire.describe(["a"], Deadline(1))
        assert is_retried(caught.value)
        endpoint.status, endpoint.answer = 200, None
        assert wire.describe(["a"], soon())


def test_a_connection_outlives_an_identity_provider_that_is_away_for_a_moment(secure, endpoint):
    endpoint.lifetime_s = LIFE_S
    with CoordinatorWire(secure.provider()) as wire:
        wire.describe(["a"], soon())
        endpoint.status, endpoint.answer = 503, b""
        Deadline(60).pause(LIFE_S * 2)
        endpoint.status, endpoint.answer = 200, None
        assert wire.describe(["a"], soon())


def test_a_right_that_is_missing_is_permanent(secure):
    with (
        CoordinatorWire(secure.function(secure.unsecured, subject="stranger")) as wire,
        pytest.raises(AuthenticationError, match="lacks a right") as caught,
    ):
        wire.fence("app.stranger.1.a.0", 60_000, soon())
    assert not is_retried(caught.value)
