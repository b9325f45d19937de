"""A broker with logins over SASL and TLS that checks rights, and what gives them.

It gives a fixture, to be imported where it is taken::

    from tests.integration.secure_broker import secure
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.certificates import self_signed
from tests.locked_broker import AUTHORIZER, JAAS, locked_broker, speaks_tls, wants_password
from tests.waiting import until

ANYBODY = AclBindingFilter(
    *(ResourceType.ANY, None, ResourcePatternType.ANY, None, None),
    *(AclOperation.ANY, AclPermissionType.ANY),
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
    users = dict.fromkeys(("root", "alice", "carol", "dave"), "right")
    made, (plain, sasl, tls) = locked_broker(
        {"LOGIN": "SASL_PLAINTEXT", "TLS": "SSL"},
        wants_password("login", **users),
        speaks_tls("tls", broker),
        AUTHORIZER | {"super.users": "User:ANONYMOUS;User:root"},
    )
    with made as cluster:
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
    give_acls(admin, bindings)


def give_acls(admin: AdminClient, bindings: Sequence[AclBinding]) -> None:
    """Give these rights, and wait until the broker knows them: the controller answers before."""
    for done in admin.create_acls([*bindings]).values():
        done.result(timeout=20)
    until(lambda: acls_on_broker(admin, ANYBODY).issuperset(bindings), pause_s=0.1)


def acls_on_broker(admin: AdminClient, which: AclBindingFilter) -> set[AclBinding]:
    """Return the rights by which the broker judges now."""
    return set(admin.describe_acls(which).result(timeout=20))
