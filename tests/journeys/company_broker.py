"""A broker as companies have it: TLS, client certificates, tokens of an identity provider."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from connectors.cluster.local_cluster import LocalCluster
from tests.certificates import Certificate, self_signed
from tests.journeys.conftest import Stranger, stranger_on
from tests.locked_broker import locked_broker, speaks_tls, wants_password, wants_token
from tests.token_endpoint import TokenEndpoint


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
    with TokenEndpoint(folder) as endpoint:
        made, (inside, tokens, plain) = locked_broker(
            {"TOKENS": "SASL_SSL", "PASSWORD": "SASL_PLAINTEXT"},
            wants_token("tokens"),
            speaks_tls("tokens", broker, client),
            wants_password("password", stranger=password),
            issuer=endpoint,
        )
        with made as cluster:
            yield Company(inside, tokens, plain, endpoint, broker, client, cluster)
