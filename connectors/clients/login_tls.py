"""The TLS part of a login: whom the clients trust, and the certificate that they show.

Certificates and keys are PEM, in files or as text. Both clients read a file by its name, so that a
new connection of kafka-python sees a file that has changed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from connectors.clients.tls_context import context_of
from connectors.options.client_options import visible
from transactions.errors import ConfigurationError

_PEM: Final = "PEM"
_PEM_SUFFIXES: Final = (".pem", ".crt", ".cer")

#: What is said -> the options that say it, Java's first: as a file, and as text.
_FILES: Final = {
    "ca": ("ssl.truststore.location", "ssl.ca.location"),
    "certificate": ("ssl.keystore.location", "ssl.certificate.location"),
    "key": ("ssl.key.location",),
}
_TEXTS: Final = {
    "ca": ("ssl.truststore.certificates", "ssl.ca.pem"),
    "certificate": ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
    "key": ("ssl.keystore.key", "ssl.key.pem"),
}
_STORES: Final = {"ca": "truststore", "certificate": "keystore", "key": "keystore"}

#: The options that are read here, Java's names and librdkafka's.
NAMES: Final = frozenset(
    {name for names in (*_FILES.values(), *_TEXTS.values()) for name in names}
    | {f"ssl.{store}.{part}" for store in _STORES.values() for part in ("type", "password")}
    | {
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
#: Java name -> librdkafka name, as its refusals say it.
JAVA_NAMES: Final = {
    javas: theirs
    for said in (_FILES, _TEXTS)
    for javas, *others in said.values()
    for theirs in others
}

#: A block of PEM between its two lines. Java takes any white space in it, OpenSSL needs lines.
_BLOCK: Final = re.compile(
    r"(-----BEGIN [A-Z0-9 ]+-----)([A-Za-z0-9+/=\s]+)(-----END [A-Z0-9 ]+-----)"
)
_LINE: Final = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What the user says about TLS; of a file and a text at most one is given.

    Attributes:
        check_hostname: the broker's certificate must name the host that we connect to.
        ca: PEM file of the certificates to trust; without it and a text: those of the machine.
        ca_text: the same as text.
        certificate: PEM file of the client's chain; it holds the key, too, where `key` is None.
        certificate_text: the chain as text.
        key: PEM file of the client's key.
        key_text: the key as text.
        key_password: None where the key is not encrypted.
    """

    check_hostname: bool = True
    ca: str | None = None
    ca_text: str | None = dataclasses.field(default=None, repr=False)
    certificate: str | None = None
    certificate_text: str | None = dataclasses.field(default=None, repr=False)
    key: str | None = None
    key_text: str | None = dataclasses.field(default=None, repr=False)
    key_password: str | None = dataclasses.field(default=None, repr=False)

    def for_librdkafka(self) -> dict[str, Any]:
        """See `Login.for_librdkafka`."""
        return {
            "ssl.endpoint.identification.algorithm": "https" if self.check_hostname else "none",
            "ssl.ca.location": self.ca,
            "ssl.ca.pem": self.ca_text,
            "ssl.certificate.location": self.certificate,
            "ssl.certificate.pem": self.certificate_text,
            # Java keeps key and chain in one PEM file; librdkafka needs its name twice.
            "ssl.key.location": self.key or self.certificate,
            "ssl.key.pem": self.key_text,
            "ssl.key.password": self.key_password,
        }

    def for_kafka_python(self) -> dict[str, Any]:
        """See `Login.for_kafka_python`. Everything is read once, also where only names are given:
        kafka-python reads the files when it connects, and says then that no broker has answered.
        """
        for part, path in (("ca", self.ca), ("certificate", self.certificate), ("key", self.key)):
            _check_existing(_FILES[part][0], path)
        context = context_of(self)
        if self.ca_text or self.certificate_text:
            return {"ssl_context": context}
        return {
            "ssl_check_hostname": self.check_hostname,
            "ssl_cafile": self.ca,
            "ssl_certfile": self.certificate,
            "ssl_keyfile": self.key,
            # Without any password OpenSSL would ask the terminal for one.
            "ssl_password": (self.key_password or "") if self.certificate else None,
        }


def read_tls(kafka: Mapping[str, str]) -> Tls:
    """Read the stores and the checks.

    Raises:
        ConfigurationError: a store is one that only Java reads, something is given twice or in
            part, or a check is switched off.
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
    for part in _FILES:
        _check_once(kafka, part)
    for store in ("truststore", "keystore"):
        _check_no_password(kafka, store)
    certificate, key = _text(kafka, "certificate"), _text(kafka, "key")
    if (certificate is None) != (key is None):
        names = [f"kafka.{_TEXTS[part][0]}" for part in ("certificate", "key")]
        raise ConfigurationError(
            "The client's certificate or its key is given as text without its other half.",
            cause="both are given as text, or both as files",
            option=" and ".join(names),
        )
    return Tls(
        check_hostname=algorithm == "https",
        ca=kafka.get("ssl.ca.location") or _pem_store(kafka, "truststore"),
        ca_text=_text(kafka, "ca"),
        certificate=kafka.get("ssl.certificate.location") or _pem_store(kafka, "keystore"),
        certificate_text=certificate,
        key=kafka.get("ssl.key.location") or None,
        key_text=key,
        key_password=kafka.get("ssl.key.password"),
    )


def _check_once(kafka: Mapping[str, str], part: str) -> None:
    given = [name for name in (*_FILES[part], *_TEXTS[part]) if kafka.get(name)]
    if len(given) > 1:
        raise ConfigurationError(
            f"The {_STORES[part]} is given twice.",
            cause=f"{' and '.join(given)} say the same thing: leave one of them out",
            option=", ".join(f"kafka.{name}" for name in given),
        )


def _check_no_password(kafka: Mapping[str, str], store: str) -> None:
    if kafka.get(f"ssl.{store}.password"):
        raise ConfigurationError(
            f"The SSL {store} has a password, and it is PEM.",
            cause="PEM has no password of its own; that of an encrypted key is ssl.key.password",
            option=visible(f"ssl.{store}.password", ""),
        )


def _text(kafka: Mapping[str, str], part: str) -> str | None:
    name = next((name for name in _TEXTS[part] if kafka.get(name)), None)
    if name is None:
        return None
    store = _STORES[part]
    kind = kafka.get(f"ssl.{store}.type", _PEM).strip().upper()
    if kind != _PEM:
        raise ConfigurationError(
            f"The SSL {store} is of type {kind}, and it is given as text.",
            cause="text is PEM",
            option=f"{visible(f'ssl.{store}.type', kind)}, kafka.{name}",
        )
    if "-----BEGIN " not in kafka[name] or not kafka[name].isascii():
        raise ConfigurationError(
            f"The Kafka option {name!r} holds no PEM.",
            cause="PEM begins with -----BEGIN; the name of a file belongs to "
            f"{_FILES[part][0]}; in a job file ${{file:PATH}} is the content of a file",
            option=visible(name, "..."),
        )
    return _BLOCK.sub(_in_lines, kafka[name])


def _in_lines(block: re.Match[str]) -> str:
    body = "".join(block[2].split())
    lines = [body[at : at + _LINE] for at in range(0, len(body), _LINE)]
    return "\n".join([block[1], *lines, block[3]])


def _pem_store(kafka: Mapping[str, str], store: str) -> str | None:
    location = kafka.get(f"ssl.{store}.location")
    if not location:
        return None
    suffix = Path(location).suffix.lower()
    guessed = _PEM if suffix in _PEM_SUFFIXES else "JKS"
    kind = kafka.get(f"ssl.{store}.type", guessed).strip().upper()
    if kind != _PEM:
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


def _check_existing(name: str, path: str | None) -> None:
    if path is not None and not Path(path).is_file():
        raise ConfigurationError(
            "A PEM file does not exist on the driver.",
            where=path,
            cause="driver and workers each read it from their own disk",
            option=visible(name, path),
        )
