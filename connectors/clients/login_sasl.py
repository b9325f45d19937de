"""The SASL part of a login: which mechanism, and the credentials for it."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import libversion, version

from connectors.clients import jaas, login_oauth
from connectors.clients.login_oauth import OAuth
from connectors.clients.setting_names import library_lacks
from connectors.options.client_options import visible
from transactions.errors import ConfigurationError

_KERBEROS: Final = "GSSAPI"
#: The mechanisms whose options name no user.
WITHOUT_USER: Final = (_KERBEROS, login_oauth.MECHANISM)
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", *WITHOUT_USER)

#: The options that are read here, Java's names and librdkafka's.
NAMES: Final = login_oauth.NAMES | {
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", jaas.OPTION)
}


@dataclasses.dataclass(frozen=True, slots=True)
class Password:
    """PLAIN or SCRAM: a user name and a password."""

    mechanism: str
    username: str
    password: str = dataclasses.field(repr=False)

    def for_librdkafka(self) -> dict[str, Any]:
        """See `Login.for_librdkafka`."""
        return {
            "sasl.mechanisms": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
        }

    def for_kafka_python(self) -> dict[str, Any]:
        """See `Login.for_kafka_python`."""
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Kerberos:
    """GSSAPI: the ticket is in the machine's own cache or key table."""

    mechanism: str = _KERBEROS

    def for_librdkafka(self) -> dict[str, Any]:
        """See `Login.for_librdkafka`."""
        return {"sasl.mechanisms": self.mechanism}

    def for_kafka_python(self) -> dict[str, Any]:
        """See `Login.for_kafka_python`."""
        return {"sasl_mechanism": self.mechanism}


def read_sasl(kafka: Mapping[str, str]) -> Password | Kerberos | OAuth:
    """Read the mechanism and its credentials.

    Raises:
        ConfigurationError: one of them is missing, unknown or given twice.
    """
    mechanism = read_mechanism(kafka)
    if mechanism == login_oauth.MECHANISM:
        return _read_oauth(kafka)
    login_oauth.check_none(kafka, mechanism)
    if mechanism == _KERBEROS:
        _check_gssapi(kafka)
        return Kerberos()
    return read_password(kafka, mechanism)


def read_mechanism(kafka: Mapping[str, str]) -> str:
    """Read the mechanism.

    Raises:
        ConfigurationError: it is missing or unknown.
    """
    given = kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", ""))
    mechanism = given.strip().upper()
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(
            "The SASL mechanism is missing or not supported.",
            cause=f"the clients of driver and workers both support {', '.join(_MECHANISMS)}",
            option=visible("sasl.mechanism", given),
        )
    return mechanism


def _read_oauth(kafka: Mapping[str, str]) -> OAuth:
    if lacks := library_lacks("sasl_oauthbearer"):
        raise ConfigurationError(
            "The librdkafka on this machine cannot do OAUTHBEARER.",
            cause=f"it was built without OpenSSL ({lacks})",
            option="kafka.sasl.mechanism=OAUTHBEARER",
        )
    for name in ("sasl.username", "sasl.password"):
        if kafka.get(name):
            raise ConfigurationError(
                f"The Kafka option {name!r} belongs to another mechanism.",
                cause="sasl.mechanism is OAUTHBEARER, whose tokens name the user",
                option=visible(name, kafka[name]),
            )
    return login_oauth.read_oauth(kafka)


def read_password(kafka: Mapping[str, str], mechanism: str) -> Password:
    """Read the user name and the password of PLAIN or SCRAM.

    Raises:
        ConfigurationError: one of them is missing or given twice.
    """
    username, password = kafka.get("sasl.username"), kafka.get("sasl.password")
    if jaas.OPTION in kafka:
        if username is not None or password is not None:
            raise ConfigurationError(
                "The SASL credentials are given twice.",
                cause="use either sasl.jaas.config or sasl.username and sasl.password",
                option=visible(jaas.OPTION, ""),
            )
        module = "scram.ScramLoginModule" if mechanism[0] == "S" else "plain.PlainLoginModule"
        needed = ("username", "password")
        found = jaas.read_jaas(kafka[jaas.OPTION], mechanism, module, needed)
        username, password = (found[name] for name in needed)
    if not username or password is None:
        raise ConfigurationError(
            f"SASL {mechanism} needs a user name and a password.",
            cause="neither sasl.jaas.config nor sasl.username and sasl.password give both",
            option=visible(jaas.OPTION, kafka.get(jaas.OPTION, "")),
        )
    return Password(mechanism, username, password)


def _check_gssapi(kafka: Mapping[str, str]) -> None:
    """Check that both clients support Kerberos: the wheels from pip are built without it."""
    lacks = library_lacks("sasl_gssapi")
    missing = [f"confluent-kafka has none ({lacks})"] if lacks else []
    if importlib.util.find_spec("gssapi") is None:
        missing.append("kafka-python finds no package gssapi")
    if missing:
        raise ConfigurationError(
            "The Kafka clients on this machine cannot do GSSAPI (Kerberos).",
            where=kafka.get("bootstrap.servers", ""),
            cause=f"{'; '.join(missing)}. On driver and workers: apt-get install libsasl2-dev "
            "libsasl2-modules-gssapi-mit libkrb5-dev, build librdkafka "
            f"{libversion()[0]} from source, then pip install --force-reinstall --no-binary "
            f"confluent-kafka confluent-kafka=={version()[0]} gssapi",
            option="kafka.sasl.mechanism=GSSAPI (or PLAIN, SCRAM-SHA-256, SCRAM-SHA-512)",
        )
