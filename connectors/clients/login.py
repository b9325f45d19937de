"""How a client logs in: the user's options, read once, and the same login for both clients.

The options become one frozen `Login`. Its settings for librdkafka (data) and for kafka-python (the
driver's raw requests) name the same principal and trust the same brokers. This is translation only:
nothing here connects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from connectors.clients import login_sasl, login_tls
from connectors.clients.login_oauth import OAuth
from connectors.clients.login_sasl import Kerberos, Password
from connectors.clients.login_tls import Tls
from connectors.options.client_options import visible
from transactions.errors import ConfigurationError

_PROTOCOL: Final = "security.protocol"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

#: The options that a login is read from, Java's names and librdkafka's.
NAMES: Final = frozenset({_PROTOCOL}) | login_sasl.NAMES | login_tls.NAMES


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to reach the brokers of one cluster, and as whom. Its text shows no secret.

    Attributes:
        protocol: Kafka's security protocol.
        sasl: None where the protocol has no SASL.
        tls: None where the protocol has no TLS.
    """

    protocol: str
    sasl: Password | Kerberos | OAuth | None
    tls: Tls | None

    @classmethod
    def of(cls, kafka: Mapping[str, str]) -> Login:
        """Read a user's client options.

        Raises:
            ConfigurationError: an option is missing, contradictory or cannot be translated.
        """
        protocol = _protocol(kafka)
        return cls(
            protocol=protocol,
            sasl=login_sasl.read_sasl(kafka) if protocol.startswith("SASL") else None,
            tls=login_tls.read_tls(kafka) if protocol.endswith("SSL") else None,
        )

    def for_librdkafka(self) -> dict[str, Any]:
        """Return the settings for confluent-kafka's clients and for our own handles."""
        found = {_PROTOCOL: self.protocol}
        for part in (self.sasl, self.tls):
            found |= {} if part is None else part.for_librdkafka()
        return {name: value for name, value in found.items() if value is not None}

    def for_kafka_python(self) -> dict[str, Any]:
        """Return the settings for kafka-python's connections.

        Raises:
            ConfigurationError: a file does not exist here.
        """
        found = {"security_protocol": self.protocol}
        for part in (self.sasl, self.tls):
            found |= {} if part is None else part.for_kafka_python()
        return {name: value for name, value in found.items() if value is not None}


def named_user(kafka: Mapping[str, str]) -> tuple[str, str]:
    """Return how a user's client options log in, and the user that they name. It tries nothing: no
    file is read, and no library is needed.

    Returns:
        The SASL mechanism, or without SASL the security protocol; the name, "" where the options
        have none, as with a certificate or a token.

    Raises:
        ConfigurationError: see `Login.of`.
    """
    protocol = _protocol(kafka)
    if not protocol.startswith("SASL"):
        return protocol, ""
    mechanism = login_sasl.read_mechanism(kafka)
    if mechanism in login_sasl.WITHOUT_USER:
        return mechanism, ""
    return mechanism, login_sasl.read_password(kafka, mechanism).username


def _protocol(kafka: Mapping[str, str]) -> str:
    protocol = kafka.get(_PROTOCOL, "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise ConfigurationError(
            "The security protocol is unknown.",
            cause=f"known are {', '.join(_PROTOCOLS)}",
            option=visible(_PROTOCOL, kafka[_PROTOCOL]),
        )
    return protocol
