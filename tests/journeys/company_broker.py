"""A broker as companies have it: TLS, client certificates, tokens of an identity provider."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from connectors.cluster.broker_settings import choose_addresses
from connectors.cluster.local_cluster import LocalCluster
from tests.certificates import Certificate, self_signed
from tests.journeys.conftest import Stranger, stranger_on
from tests.token_endpoint import AUDIENCE, ISSUER, TokenEndpoint

OAUTH = "org.apache.kafka.common.security.oauthbearer"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@dataclass
class Company:
    """One broker with three doors.

    Attributes:
        inside: without a lock.
        tokens: TLS with a certificate of the client, and a token.
        password: a user and a password.
        endpoint: the identity provider.
        broker: the broker's certificate.
        client: the client's certificate.
    """

    inside: str
    tokens: str
    password: str
    endpoint: TokenEndpoint
    broker: Certificate
    client: Certificate
    _cluster: LocalCluster

    def stranger(self, folder: Path) -> Stranger:
        """Return somebody with topics of their own, who writes and reads them by the inner door."""
        return stranger_on(self.inside, self._cluster.create_topic, folder)


@contextlib.contextmanager
def company_broker(folder: Path, password: str) -> Iterator[Company]:
    """Start one.

    Args:
        folder: for certificates and keys.
        password: of the user `stranger`.
    """
    broker, client = self_signed(folder, "broker"), self_signed(folder, "client")
    one, other = choose_addresses(2, None)
    ports = (one.port, other.port, other.controller_port)
    inside, tokens, plain = (f"127.0.0.1:{port}" for port in ports)
    listeners = f"PLAINTEXT://{inside},TOKENS://{tokens},PASSWORD://{plain}"
    tls = "listener.name.tokens.ssl"
    with TokenEndpoint(folder) as endpoint:
        properties = {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{one.controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "TOKENS:SASL_SSL,PASSWORD:SASL_PLAINTEXT",
            "controller.quorum.voters": f"1@127.0.0.1:{one.controller_port}",
            "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.password.sasl.enabled.mechanisms": "PLAIN",
            "connections.max.reauth.ms": "3600000",  # so a session ends with its token
            "sasl.oauthbearer.jwks.endpoint.url": endpoint.keys_url,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "listener.name.tokens.oauthbearer.sasl.jaas.config": f"{OAUTH}."
            "OAuthBearerLoginModule required;",
            "listener.name.tokens.oauthbearer.sasl.server.callback.handler.class": f"{OAUTH}."
            "OAuthBearerValidatorCallbackHandler",
            f"{tls}.client.auth": "required",
            f"{tls}.keystore.type": "PEM",
            f"{tls}.keystore.location": str(broker.both),
            f"{tls}.truststore.type": "PEM",
            f"{tls}.truststore.location": str(client.path),
            "listener.name.password.plain.sasl.jaas.config": f'{PLAIN} username="b" password="b"'
            f' user_stranger="{password}";',
        }
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={endpoint.keys_url}"
        with LocalCluster(port=one.port, properties=properties, jvm_options=[allowed]) as cluster:
            yield Company(inside, tokens, plain, endpoint, broker, client, cluster)
