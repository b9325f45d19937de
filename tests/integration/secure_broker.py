"""A broker with logins over SASL and TLS that checks rights, and what gives them.

It gives a fixture, to be imported where it is taken::

    from tests.integration.secure_broker import secure
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from connectors.cluster.broker_settings import choose_addresses
from connectors.cluster.local_cluster import LocalCluster
from tests.certificates import self_signed

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="{user}" password="{password}";'
)


@dataclasses.dataclass(frozen=True)
class Secure:
    plain: str
    sasl: str
    tls: str
    certificate: str

    def login(self, user: str, password: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.sasl,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": JAAS.format(user=user, password=password),
        }

    def trusting(self, certificate: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.tls,
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": certificate,
        }


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("tls")
    broker = self_signed(folder, "broker")
    one, other = choose_addresses(2, None)
    plain, sasl, tls = (
        f"127.0.0.1:{port}" for port in (one.port, other.port, other.controller_port)
    )
    listeners = f"PLAINTEXT://{plain},LOGIN://{sasl},TLS://{tls}"
    properties = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{one.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "LOGIN:SASL_PLAINTEXT,TLS:SSL",
        "controller.quorum.voters": f"1@127.0.0.1:{one.controller_port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": JAAS.format(user="b", password="b")[:-1]
        + ' user_root="right" user_alice="right" user_carol="right" user_dave="right";',
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(broker.both),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:root",
    }
    with LocalCluster(port=one.port, properties=properties) as cluster:
        cluster.create_topic("secure")
        yield Secure(plain, sasl, tls, str(broker.path))


def grant(
    admin: AdminClient,
    resource: ResourceType,
    name: str,
    pattern: ResourcePatternType,
    *rights: str,
    user: str = "carol",
) -> None:
    """Give somebody these rights."""
    bindings = [
        AclBinding(
            *(resource, name, pattern, f"User:{user}", "*"),
            *(AclOperation[right], AclPermissionType.ALLOW),
        )
        for right in rights
    ]
    for done in admin.create_acls(bindings).values():
        done.result(timeout=20)
