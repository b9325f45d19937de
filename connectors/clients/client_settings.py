"""The user's ``kafka.*`` options, translated for the two clients that we use.

Users write the Java names from Spark (``kafka.sasl.jaas.config``). Data goes through librdkafka,
the driver's raw requests through kafka-python; each has names of its own. Unknown names go to
librdkafka, which refuses them; `settings_checked` turns the refusal into our error. This file
refuses options that would break exactly-once, or that the connectors set themselves.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, libversion, version

from connectors.clients.setting_names import told_with_the_nearest
from connectors.options.client_options import visible
from connectors.options.java_settings import WITHOUT_EFFECT
from transactions.errors import ConfigurationError

_OURS: Final = "sparkonce sets it"
_POSITIONS: Final = "offsets are committed in the transaction, never by the consumer"
_BYTES: Final = "records are bytes from end to end; there is nothing to (de)serialize"
_CODE: Final = "code inside the client could change or drop records"

#: Options that break the guarantee or that we set, each with the reason.
REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "transactional.id": f"{_OURS}: another user of the same id would abort our transactions",
        "enable.idempotence": f"{_OURS}: transactions need this option",
        "enable.gapless.guarantee": _OURS,
        "group.id": f"{_OURS} from the application id",
        "group.instance.id": _OURS,
        "auto.offset.reset": "a missing offset must stop the query; see startingOffsets",
        "enable.auto.commit": _POSITIONS,
        "auto.commit.enable": _POSITIONS,
        "auto.commit.interval.ms": _POSITIONS,
        "enable.auto.offset.store": _POSITIONS,
        "key.serializer": _BYTES,
        "value.serializer": _BYTES,
        "key.deserializer": _BYTES,
        "value.deserializer": _BYTES,
        "interceptor.classes": _CODE,
        "plugin.library.paths": _CODE,
        "test.mock.num.brokers": "it replaces the cluster with an empty one",
        "delivery.report.only.error": _OURS,
        "statistics.interval.ms": f"{_OURS}: producer id and epoch are read from statistics",
        "isolation.level": "use the option isolationLevel",
        "transaction.timeout.ms": "use transactionTimeoutMs of an exactly-once sink",
    }
)

#: Java name -> librdkafka name, where they differ (names that librdkafka knows pass through).
_LIBRDKAFKA_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sasl.mechanism": "sasl.mechanisms",
        "receive.buffer.bytes": "socket.receive.buffer.bytes",
        "send.buffer.bytes": "socket.send.buffer.bytes",
        "fetch.max.wait.ms": "fetch.wait.max.ms",
        "max.request.size": "message.max.bytes",
        "request.timeout.ms": "socket.timeout.ms",
        "delivery.timeout.ms": "message.timeout.ms",
    }
)

#: Java names that librdkafka knows, but names differently when it refuses a value.
_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "linger.ms": "queue.buffering.max.ms",
        "compression.type": "compression.codec",
        "retries": "message.send.max.retries",
        "max.in.flight.requests.per.connection": "max.in.flight",
        "max.partition.fetch.bytes": "fetch.message.max.bytes",
    }
)

#: Java or librdkafka name -> kafka-python name and type; other options concern data only.
_KAFKA_PYTHON_NAMES: Final[Mapping[str, tuple[str, type]]] = MappingProxyType(
    {
        "client.id": ("client_id", str),
        "client.dns.lookup": ("client_dns_lookup", str),
        "connections.max.idle.ms": ("connections_max_idle_ms", int),
        "metadata.max.age.ms": ("metadata_max_age_ms", int),
        "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
        "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    }
)

_ACKS: Final = ("acks", "request.required.acks")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PEM_SUFFIXES: Final = (".pem", ".crt", ".cer")
_JAAS_PAIR: Final = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")

#: Names this file translates itself, both spellings of each.
_SECURITY: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
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
_INLINE: Final = (
    "ssl.truststore.certificates",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.ca.pem",
    "ssl.certificate.pem",
    "ssl.key.pem",
)


def librdkafka_settings(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for confluent-kafka's producers and consumers.

    Raises:
        ConfigurationError: an option is refused, contradictory or cannot be translated.
    """
    _refuse(kafka)
    settings: dict[str, Any] = {
        _LIBRDKAFKA_NAMES.get(name, name): value
        for name, value in kafka.items()
        if name not in _SECURITY and name not in _ACKS and name not in WITHOUT_EFFECT
    }
    if "buffer.memory" in settings:
        del settings["buffer.memory"]
        settings["queue.buffering.max.kbytes"] = str(_number(kafka, "buffer.memory") // 1024)
    return settings | _security(kafka).for_librdkafka()


def kafka_python_settings(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for kafka-python's connections, without options that concern data only.

    Raises:
        ConfigurationError: see `librdkafka_settings`; or a PEM file does not exist here.
    """
    _refuse(kafka)
    settings: dict[str, Any] = {"bootstrap_servers": _servers(kafka)}
    for name, (ours, kind) in _KAFKA_PYTHON_NAMES.items():
        if name in kafka:
            settings[ours] = _number(kafka, name) if kind is int else kafka[name]
    return settings | _security(kafka).for_kafka_python()


@contextlib.contextmanager
def settings_checked(kafka: Mapping[str, str], client: str) -> Iterator[None]:
    """Make a librdkafka client inside this block: its refusals become `ConfigurationError`.

    Args:
        kafka: the user's settings, to show the value of the refused one.
        client: the kind of client, for the error text ("producer", "consumer").

    Raises:
        ConfigurationError: librdkafka knows no such option, or refuses its value.
    """
    try:
        yield
    except (KafkaException, ValueError, TypeError) as error:
        detail = error.args[0] if error.args else error
        text = detail.str() if hasattr(detail, "str") else str(detail)
        named = _named_in(text, kafka)
        raise ConfigurationError(
            f"The Kafka {client} cannot be made with these settings.",
            where=kafka.get("bootstrap.servers", ""),
            cause=told_with_the_nearest(text, named, {*_SECURITY, *_LIBRDKAFKA_NAMES, *_ALIASES}),
            option=", ".join(visible(name, kafka[name]) for name in named) or "kafka.*",
        ) from error


def _named_in(text: str, kafka: Mapping[str, str]) -> list[str]:
    """Find the user's options in librdkafka's refusal, which uses its own names for aliases."""
    aliases = {**_LIBRDKAFKA_NAMES, **_ALIASES}
    java = {theirs: name for name, theirs in aliases.items() if name in kafka}
    names = [java.get(name, name) for name in re.findall(r'"([\w.]+)"', text)]
    return [name for name in names if name in kafka]


def _refuse(kafka: Mapping[str, str]) -> None:
    for name, value in kafka.items():
        if not isinstance(value, str):
            raise ConfigurationError(
                f"The value of the Kafka option {name!r} is not text.",
                cause=f"it is of type {type(value).__name__}; Spark options are strings",
                option=f"kafka.{name}",
            )
        if name in REFUSED:
            raise ConfigurationError(
                f"The Kafka option {name!r} cannot be set.",
                cause=REFUSED[name],
                option=visible(name, value),
            )
        if name in _ACKS and value not in ("all", "-1"):
            raise ConfigurationError(
                f"The Kafka option {name!r} must stay 'all'.",
                cause="a record on only one broker is lost with this broker, even if committed",
                option=visible(name, value),
            )
        if name in _INLINE:
            raise ConfigurationError(
                f"The Kafka option {name!r} holds a certificate as text.",
                cause="both clients need files: write it to a PEM file that driver and workers can "
                "read, and set ssl.truststore.location / ssl.keystore.location to this file",
                option=visible(name, value),
            )
    _servers(kafka)


def _servers(kafka: Mapping[str, str]) -> list[str]:
    servers = [part.strip() for part in kafka.get("bootstrap.servers", "").split(",")]
    if not any(servers):
        raise ConfigurationError(
            "No Kafka cluster is given.",
            cause="bootstrap.servers is missing or empty",
            option=f"kafka.bootstrap.servers={kafka.get('bootstrap.servers', '')}",
        )
    return [server for server in servers if server]


def _number(kafka: Mapping[str, str], name: str) -> int:
    try:
        return int(kafka[name])
    except ValueError:
        raise ConfigurationError(
            f"The Kafka option {name!r} is not a number.",
            where=kafka["bootstrap.servers"],
            cause="Kafka takes whole numbers, in bytes or milliseconds, without a unit",
            option=visible(name, kafka[name]),
        ) from None


class _Security:
    """The meaning of all security options, read once, for both clients."""

    def __init__(self) -> None:
        self.protocol = "PLAINTEXT"
        self.mechanism: str | None = None
        self.username: str | None = None
        self.password: str | None = None
        self.ca: str | None = None
        self.certificate: str | None = None
        self.key: str | None = None
        self.key_password: str | None = None
        self.check_hostname = True

    def for_librdkafka(self) -> dict[str, Any]:
        found = {
            "security.protocol": self.protocol,
            "sasl.mechanisms": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            # Java keeps key and chain in one PEM file; librdkafka needs its name twice.
            "ssl.key.location": self.key or self.certificate,
            "ssl.key.password": self.key_password,
        }
        if self.protocol.endswith("SSL"):
            algorithm = "https" if self.check_hostname else "none"
            found["ssl.endpoint.identification.algorithm"] = algorithm
        return {name: value for name, value in found.items() if value is not None}

    def for_kafka_python(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
            "ssl_cafile": _existing("ssl.truststore.location", self.ca),
            "ssl_certfile": _existing("ssl.keystore.location", self.certificate),
            "ssl_keyfile": _existing("ssl.key.location", self.key),
            "ssl_password": self.key_password,
        }
        if self.protocol.endswith("SSL"):
            found["ssl_check_hostname"] = self.check_hostname
        return {name: value for name, value in found.items() if value is not None}


def _security(kafka: Mapping[str, str]) -> _Security:
    security = _Security()
    security.protocol = kafka.get("security.protocol", "PLAINTEXT").strip().upper()
    if security.protocol not in _PROTOCOLS:
        raise ConfigurationError(
            "The security protocol is unknown.",
            cause=f"known are {', '.join(_PROTOCOLS)}",
            option=visible("security.protocol", kafka["security.protocol"]),
        )
    if security.protocol.startswith("SASL"):
        _read_sasl(kafka, security)
    if security.protocol.endswith("SSL"):
        _read_ssl(kafka, security)
    return security


def _read_sasl(kafka: Mapping[str, str], security: _Security) -> None:
    mechanism = kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", ""))
    security.mechanism = mechanism.strip().upper()
    if security.mechanism not in _MECHANISMS:
        raise ConfigurationError(
            "The SASL mechanism is missing or not supported.",
            cause=f"the clients of driver and workers both support {', '.join(_MECHANISMS)}",
            option=visible("sasl.mechanism", mechanism),
        )
    if security.mechanism == "GSSAPI":
        _check_gssapi(kafka)
        return
    security.username = kafka.get("sasl.username")
    security.password = kafka.get("sasl.password")
    if "sasl.jaas.config" in kafka:
        if security.username is not None or security.password is not None:
            raise ConfigurationError(
                "The SASL credentials are given twice.",
                cause="use either sasl.jaas.config or sasl.username and sasl.password",
                option=visible("sasl.jaas.config", ""),
            )
        security.username, security.password = _read_jaas(kafka["sasl.jaas.config"], mechanism)
    if not security.username or security.password is None:
        raise ConfigurationError(
            f"SASL {security.mechanism} needs a user name and a password.",
            cause="neither sasl.jaas.config nor sasl.username and sasl.password give both",
            option=visible("sasl.jaas.config", kafka.get("sasl.jaas.config", "")),
        )


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


def _read_jaas(jaas: str, mechanism: str) -> tuple[str, str]:
    module = "ScramLoginModule" if mechanism.upper().startswith("SCRAM") else "PlainLoginModule"
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


def _read_ssl(kafka: Mapping[str, str], security: _Security) -> None:
    if kafka.get("enable.ssl.certificate.verification", "true").strip().lower() == "false":
        raise ConfigurationError(
            "Certificate verification cannot be switched off.",
            cause="anybody could pretend to be the broker; give the broker's CA instead",
            option="kafka.ssl.truststore.location",
        )
    security.ca = kafka.get("ssl.ca.location") or _pem_store(kafka, "truststore")
    security.certificate = kafka.get("ssl.certificate.location") or _pem_store(kafka, "keystore")
    security.key = kafka.get("ssl.key.location")
    security.key_password = kafka.get("ssl.key.password")
    algorithm = kafka.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("https", "none", ""):
        raise ConfigurationError(
            "The kind of host name check is unknown.",
            cause="known are https, and empty or none for no check",
            option=visible("ssl.endpoint.identification.algorithm", algorithm),
        )
    security.check_hostname = algorithm == "https"


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
