"""A broker with a plain listener, and with others that ask who comes."""

from __future__ import annotations

from collections.abc import Mapping

from connectors.cluster.broker_settings import choose_addresses
from connectors.cluster.local_cluster import LocalCluster
from tests.certificates import Certificate
from tests.token_endpoint import AUDIENCE, ISSUER, TokenEndpoint

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
JAAS = PLAIN + ' username="{user}" password="{password}";'
OAUTH = "org.apache.kafka.common.security.oauthbearer"
AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}


def locked_broker(
    locks: Mapping[str, str], *properties: Mapping[str, str], issuer: TokenEndpoint | None = None
) -> tuple[LocalCluster, list[str]]:
    """Return a broker, to be started, and its addresses: that of the plain listener is the first.

    Args:
        locks: the security protocol of each other listener, by its name.
        properties: what these listeners ask for, and more settings of the broker.
        issuer: whose tokens the broker believes.
    """
    first, *others = choose_addresses(1 + len(locks), None)
    addresses = [f"127.0.0.1:{one.port}" for one in (first, *others)]
    controller = f"127.0.0.1:{first.controller_port}"
    kinds = {"PLAINTEXT": "PLAINTEXT", **locks}
    listeners = ",".join(f"{name}://{at}" for name, at in zip(kinds, addresses, strict=True))
    kinds["CONTROLLER"] = "PLAINTEXT"
    settings = {
        "listeners": f"{listeners},CONTROLLER://{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ",".join(f"{one}:{kinds[one]}" for one in kinds),
        "controller.quorum.voters": f"1@{controller}",
    }
    options = []
    if issuer is not None:
        settings |= {
            "sasl.oauthbearer.jwks.endpoint.url": issuer.keys_url,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        options = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.keys_url}"]
    for more in properties:
        settings |= more
    return LocalCluster(port=first.port, properties=settings, jvm_options=options), addresses


def wants_password(listener: str, **users: str) -> dict[str, str]:
    """Return the properties of a listener for these users, by their passwords."""
    known = "".join(f' user_{name}="{password}"' for name, password in users.items())
    return {
        f"listener.name.{listener}.sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{listener}.plain.sasl.jaas.config": JAAS.format(user="b", password="b")[:-1]
        + f"{known};",
    }


def wants_token(listener: str, by: str = "OAuthBearerValidatorCallbackHandler") -> dict[str, str]:
    """Return the properties of a listener for tokens; a class of Kafka looks at them."""
    bearer = f"listener.name.{listener}.oauthbearer.sasl"
    return {
        f"listener.name.{listener}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{bearer}.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        f"{bearer}.server.callback.handler.class": f"{OAUTH}.{by}",
        "connections.max.reauth.ms": "3600000",  # so a session ends with its token
    }


def speaks_tls(
    listener: str, broker: Certificate, client: Certificate | None = None
) -> dict[str, str]:
    """Return the properties of a listener with TLS, if need be for one client certificate only."""
    tls = f"listener.name.{listener}.ssl"
    ours = {f"{tls}.keystore.type": "PEM", f"{tls}.keystore.location": str(broker.both)}
    if client is None:
        return ours
    return ours | {
        f"{tls}.client.auth": "required",
        f"{tls}.truststore.type": "PEM",
        f"{tls}.truststore.location": str(client.path),
    }
