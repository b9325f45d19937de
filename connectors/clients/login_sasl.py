"""The SASL part of a login: which mechanism, and the credentials for it."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, libversion, version

from connectors.options.client_options import visible
from transactions.errors import ConfigurationError

_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
_JAAS_PAIR: Final = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")

#: The options that are read here, Java's names and librdkafka's.
NAMES: Final = frozenset(
    {"sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config", "sasl.username", "sasl.password"}
)


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

    mechanism: str = "GSSAPI"

    def for_librdkafka(self) -> dict[str, Any]:
        """See `Login.for_librdkafka`."""
        return {"sasl.mechanisms": self.mechanism}

    def for_kafka_python(self) -> dict[str, Any]:
        """See `Login.for_kafka_python`."""
        return {"sasl_mechanism": self.mechanism}


def read_sasl(kafka: Mapping[str, str]) -> Password | Kerberos:
    """Read the mechanism and its credentials.

    Raises:
        ConfigurationError: one of them is missing, unknown or given twice.
    """
    given = kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", ""))
    mechanism = given.strip().upper()
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(
            "The SASL mechanism is missing or not supported.",
            cause=f"the clients of driver and workers both support {', '.join(_MECHANISMS)}",
            option=visible("sasl.mechanism", given),
        )
    if mechanism == "GSSAPI":
        _check_gssapi(kafka)
        return Kerberos()
    return _read_password(kafka, mechanism)


def _read_password(kafka: Mapping[str, str], mechanism: str) -> Password:
    username, password = kafka.get("sasl.username"), kafka.get("sasl.password")
    if "sasl.jaas.config" in kafka:
        if username is not None or password is not None:
            raise ConfigurationError(
                "The SASL credentials are given twice.",
                cause="use either sasl.jaas.config or sasl.username and sasl.password",
                option=visible("sasl.jaas.config", ""),
            )
        username, password = _read_jaas(kafka["sasl.jaas.config"], mechanism)
    if not username or password is None:
        raise ConfigurationError(
            f"SASL {mechanism} needs a user name and a password.",
            cause="neither sasl.jaas.config nor sasl.username and sasl.password give both",
            option=visible("sasl.jaas.config", kafka.get("sasl.jaas.config", "")),
        )
    return Password(mechanism, username, password)


def _read_jaas(jaas: str, mechanism: str) -> tuple[str, str]:
    module = "ScramLoginModule" if mechanism.startswith("SCRAM") else "PlainLoginModule"
    pairs = {
        name: re.sub(r"\\(.)", r"\1", double or single)
        for name, double, single in _JAAS_PAIR.findall(jaas)
    }
    if module not in jaas or "username" not in pairs or "password" not in pairs:
        raise ConfigurationError(
            "sasl.jaas.config cannot be read.",
            cause=f"for {mechanism} it must be: org.apache.kafka.common.security."
            f"{'scram' if module[0] == 'S' else 'plain'}.{module} required "
            'username="..." password="...";',
            option=visible("sasl.jaas.config", jaas),
        )
    return pairs["username"], pairs["password"]


def _check_gssapi(kafka: Mapping[str, str]) -> None:
    """Check that both clients support Kerberos: the wheels from pip are built without it."""
    missing = []
    try:
        Consumer({"group.id": "-", "builtin.features": "sasl_gssapi", "log_level": 0}).close()
    except KafkaException as error:
        missing.append(f"confluent-kafka has none ({error.args[0].str()})")
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
