"""The TLS part of a login: whom the clients trust, and the certificate that they show.

Certificates and keys are PEM, in files or as text; those of the client can be in a PKCS#12 store.
Both clients read a PEM file by its name, so that a new connection of kafka-python sees a file that
has changed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from connectors.clients.tls_context import context_of
from connectors.options.client_options import visible
from transactions.errors import ConfigurationError

_PEM, _PKCS12, _JKS = "PEM", "PKCS12", "JKS"
#: What a store is whose type is not given; Java takes every other one for a JKS.
_BY_SUFFIX: Final = {
    **dict.fromkeys((".pem", ".crt", ".cer"), _PEM),
    **dict.fromkeys((".p12", ".pfx"), _PKCS12),
}

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

_HOLDERS: Final = {name for names in (*_FILES.values(), *_TEXTS.values()) for name in names}
#: The options that are read here, Java's names and librdkafka's.
NAMES: Final = frozenset(
    _HOLDERS
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

_TO_PKCS12: Final = (
    "keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12"
)

#: A block of PEM between its two lines. Java takes any white space in it, OpenSSL needs lines.
_BLOCK: Final = re.compile(
    r"(-----BEGIN [A-Z0-9 ]+-----)(.+?)(-----END [A-Z0-9 ]+-----)", re.DOTALL
)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=\s]+")
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
        store: PKCS#12 file of the client's chain and key, in place of both.
        store_password: of that file.
    """

    check_hostname: bool = True
    ca: str | None = None
    ca_text: str | None = dataclasses.field(default=None, repr=False)
    certificate: str | None = None
    certificate_text: str | None = dataclasses.field(default=None, repr=False)
    key: str | None = None
    key_text: str | None = dataclasses.field(default=None, repr=False)
    key_password: str | None = dataclasses.field(default=None, repr=False)
    store: str | None = None
    store_password: str | None = dataclasses.field(default=None, repr=False)

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
            "ssl.keystore.location": self.store,
            "ssl.keystore.password": self.store_password,
        }

    def for_kafka_python(self) -> dict[str, Any]:
        """See `Login.for_kafka_python`. Everything is read once, also where only names are given:
        kafka-python reads the files when it connects, and says then that no broker has answered.
        """
        for part, path in (("ca", self.ca), ("certificate", self.certificate), ("key", self.key)):
            _check_existing(_FILES[part][0], path)
        _check_existing("ssl.keystore.location", self.store)
        context = context_of(self)
        if self.ca_text or self.certificate_text or self.store:
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
    check_not_empty(kafka, (*_FILES["ca"], *_TEXTS["ca"]))
    kafka = {name: value for name, value in kafka.items() if value.strip() or name not in _HOLDERS}
    for part in _FILES:
        _check_once(kafka, part)
    _, ca = _file(kafka, "ca")
    kind, keystore = _file(kafka, "certificate")
    is_pkcs12 = kind == _PKCS12
    if is_pkcs12 and (another := [n for n in (*_FILES["key"], *_TEXTS["key"]) if n in kafka]):
        raise ConfigurationError(
            "The PKCS#12 keystore holds the key already.",
            where=keystore or "",
            cause=f"{another[0]} is another one",
            option=f"kafka.{another[0]}",
        )
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
        ca=ca,
        ca_text=_text(kafka, "ca"),
        certificate=None if is_pkcs12 else keystore,
        certificate_text=certificate,
        key=kafka.get("ssl.key.location"),
        key_text=key,
        key_password=kafka.get("ssl.key.password"),
        store=keystore if is_pkcs12 else None,
        store_password=kafka.get("ssl.keystore.password") if is_pkcs12 else None,
    )


def check_not_empty(kafka: Mapping[str, str], names: Iterable[str]) -> None:
    """Refuse options of certificates to trust that hold nothing. Without one every public CA would
    be trusted: an empty file must not mean that.

    Raises:
        ConfigurationError: one of them is empty.
    """
    for name in names:
        if not kafka.get(name, "-").strip():
            raise ConfigurationError(
                f"The Kafka option {name!r} is empty.",
                cause="the file or the variable that it is taken from holds nothing; leave the "
                "option out if nothing is meant",
                option=f"kafka.{name}",
            )


def _check_once(kafka: Mapping[str, str], part: str) -> None:
    files = [name for name in _FILES[part] if name in kafka][-1:]
    given = files + [name for name in _TEXTS[part] if name in kafka]
    if len(given) > 1:
        raise ConfigurationError(
            f"The {_STORES[part]} is given twice.",
            cause=f"{' and '.join(given)} say the same thing: leave one of them out",
            option=", ".join(f"kafka.{name}" for name in given),
        )


def _text(kafka: Mapping[str, str], part: str) -> str | None:
    name = next((name for name in _TEXTS[part] if name in kafka), None)
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
    return read_pem(kafka, name, _FILES[part][0])


def read_pem(kafka: Mapping[str, str], name: str, for_files: str) -> str:
    """Return the blocks of an option that is PEM, without what stands beside them.

    Args:
        kafka: the user's options.
        name: of the option.
        for_files: the option that would take the name of a file.

    Raises:
        ConfigurationError: it holds no block, or one that has no end.
    """
    blocks = [_in_lines(block) for block in _BLOCK.finditer(kafka[name])]
    text = "".join(blocks)
    if not blocks or len(blocks) != kafka[name].count("-----BEGIN ") or not text.isascii():
        raise ConfigurationError(
            f"The Kafka option {name!r} holds no PEM.",
            cause="PEM begins with -----BEGIN and ends with -----END; the name of a file belongs "
            f"to {for_files}; in a job file ${{file:PATH}} is the content of a file",
            option=visible(name, "..."),
        )
    return text


def _in_lines(block: re.Match[str]) -> str:
    if not _BASE64.fullmatch(block[2]):  # an old encrypted key, which has a header
        return f"{block[0]}\n"
    body = "".join(block[2].split())
    lines = [body[at : at + _LINE] for at in range(0, len(body), _LINE)]
    return "\n".join([block[1], *lines, block[3], ""])


def _file(kafka: Mapping[str, str], part: str) -> tuple[str, str | None]:
    """Return the type of a file and its name; PEM and None if there is none. librdkafka's option
    wins: then a store that Java's option names is for a client of Java, and is not looked at.

    Raises:
        ConfigurationError: the clients cannot read it.
    """
    javas, theirs = _FILES[part]
    location = kafka.get(javas)
    if location is None or theirs in kafka:
        return _PEM, kafka.get(theirs)
    store = _STORES[part]
    guessed = _BY_SUFFIX.get(Path(location).suffix.lower(), _JKS)
    kind = kafka.get(f"ssl.{store}.type", guessed).strip().upper()
    if kind != _PEM and (kind, store) != (_PKCS12, "keystore"):
        raise _unreadable(store, kind, location)
    return kind, location


def _unreadable(store: str, kind: str, location: str) -> ConfigurationError:
    steps = [] if kind == _PKCS12 else [_TO_PKCS12]
    if store == "truststore":  # librdkafka reads no certificates to trust from PKCS#12
        steps += ["openssl pkcs12 -in FILE.p12 -nokeys -out trust.pem"]
    kind_then = _PEM if store == "truststore" else _PKCS12
    steps += [f"kafka.ssl.{store}.type={kind_then}"]
    return ConfigurationError(
        f"The SSL {store} is of type {kind}, which the clients do not read.",
        where=location,
        cause=f"convert it: {', then '.join(steps)}",
        option=visible(f"ssl.{store}.type", kind),
    )


def _check_existing(name: str, path: str | None) -> None:
    if path is not None and not Path(path).is_file():
        raise ConfigurationError(
            "A file of the login does not exist on the driver.",
            where=path,
            cause="driver and workers each read it from their own disk",
            option=visible(name, path),
        )
