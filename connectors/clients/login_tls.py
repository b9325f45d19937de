"""The TLS part of a login: whom the clients trust, and the certificate that they show."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from connectors.options.client_options import visible
from transactions.errors import ConfigurationError

_PEM_SUFFIXES: Final = (".pem", ".crt", ".cer")

#: The options that are read here, Java's names and librdkafka's.
NAMES: Final = frozenset(
    {
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.truststore.password",
        "ssl.ca.location",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.password",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What the user says about TLS.

    Attributes:
        check_hostname: the broker's certificate must name the host that we connect to.
        ca: PEM file of the certificates to trust; None: those of the machine.
        certificate: PEM file of the client's chain; it holds the key, too, where `key` is None.
        key: PEM file of the client's key.
        key_password: None where the key is not encrypted.
    """

    check_hostname: bool = True
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = dataclasses.field(default=None, repr=False)

    def for_librdkafka(self) -> dict[str, Any]:
        """See `Login.for_librdkafka`."""
        return {
            "ssl.endpoint.identification.algorithm": "https" if self.check_hostname else "none",
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            # Java keeps key and chain in one PEM file; librdkafka needs its name twice.
            "ssl.key.location": self.key or self.certificate,
            "ssl.key.password": self.key_password,
        }

    def for_kafka_python(self) -> dict[str, Any]:
        """See `Login.for_kafka_python`."""
        return {
            "ssl_check_hostname": self.check_hostname,
            "ssl_cafile": _existing("ssl.truststore.location", self.ca),
            "ssl_certfile": _existing("ssl.keystore.location", self.certificate),
            "ssl_keyfile": _existing("ssl.key.location", self.key),
            "ssl_password": self.key_password,
        }


def read_tls(kafka: Mapping[str, str]) -> Tls:
    """Read the stores and the checks.

    Raises:
        ConfigurationError: a store is one that only Java reads, or a check is switched off.
    """
    if kafka.get("enable.ssl.certificate.verification", "true").strip().lower() == "false":
        raise ConfigurationError(
            "Certificate verification cannot be switched off.",
            cause="anybody could pretend to be the broker; give the broker's CA instead",
            option="kafka.ssl.truststore.location",
        )
    algorithm = kafka.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("https", "none", ""):
        raise ConfigurationError(
            "The kind of host name check is unknown.",
            cause="known are https, and empty or none for no check",
            option=visible("ssl.endpoint.identification.algorithm", algorithm),
        )
    return Tls(
        check_hostname=algorithm == "https",
        ca=kafka.get("ssl.ca.location") or _pem_store(kafka, "truststore"),
        certificate=kafka.get("ssl.certificate.location") or _pem_store(kafka, "keystore"),
        key=kafka.get("ssl.key.location"),
        key_password=kafka.get("ssl.key.password"),
    )


def _pem_store(kafka: Mapping[str, str], store: str) -> str | None:
    location = kafka.get(f"ssl.{store}.location")
    if not location:
        return None
    suffix = Path(location).suffix.lower()
    kind = kafka.get(f"ssl.{store}.type", "PEM" if suffix in _PEM_SUFFIXES else "JKS").upper()
    if kind != "PEM":
        flags = "-nokeys -out truststore.pem" if store == "truststore" else "-out keystore.pem"
        raise ConfigurationError(
            f"The SSL {store} is of type {kind}, which only Java can read.",
            where=location,
            cause="convert it: keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 "
            f"-deststoretype PKCS12, then openssl pkcs12 -in FILE.p12 {flags}, "
            f"then kafka.ssl.{store}.type=PEM",
            option=visible(f"ssl.{store}.type", kind),
        )
    return location


def _existing(name: str, path: str | None) -> str | None:
    if path is not None and not Path(path).is_file():
        raise ConfigurationError(
            "A PEM file does not exist on the driver.",
            where=path,
            cause="driver and workers each read it from their own disk",
            option=visible(name, path),
        )
    return path
