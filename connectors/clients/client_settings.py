"""The user's ``kafka.*`` options, translated for the two clients that we use.

Users write the Java names from Spark (``kafka.sasl.jaas.config``). Data goes through librdkafka,
the driver's raw requests through kafka-python; each has names of its own. Unknown names go to
librdkafka, which refuses them; `settings_checked` turns the refusal into our error. This file
refuses options that would break exactly-once, or that the connectors set themselves.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from connectors.clients import login
from connectors.clients.client_errors import lacks_token, translate
from connectors.clients.client_log import log_settings
from connectors.clients.login import Login
from connectors.clients.login_oauth import OAuth
from connectors.clients.login_tls import JAVA_NAMES
from connectors.clients.setting_names import told_with_the_nearest
from connectors.clients.token_source import PATIENCE_S, await_token
from connectors.options.client_options import visible
from connectors.options.java_settings import WITHOUT_EFFECT
from transactions.clock import Deadline
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


def librdkafka_settings(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for confluent-kafka's producers and consumers.

    Raises:
        ConfigurationError: an option is refused, contradictory or cannot be translated.
    """
    _refuse(kafka)
    settings: dict[str, Any] = {
        _LIBRDKAFKA_NAMES.get(name, name): value
        for name, value in kafka.items()
        if name not in login.NAMES and name not in _ACKS and name not in WITHOUT_EFFECT
    }
    if "buffer.memory" in settings:
        del settings["buffer.memory"]
        settings["queue.buffering.max.kbytes"] = str(_number(kafka, "buffer.memory") // 1024)
    return settings | Login.of(kafka).for_librdkafka()


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
    return settings | Login.of(kafka).for_kafka_python()


def check_login(kafka: Mapping[str, str], *, newer_than_s: float = 60.0) -> None:
    """Ask an identity provider for a token, before librdkafka does: refused or not answered, that
    would ask again for each client, every ten seconds, and say only that no broker answers.

    On the driver. It asks no function: `settings_checked` waits for a function's token.

    Args:
        kafka: the user's settings.
        newer_than_s: the age at which the last answer says nothing any more.

    Raises:
        AuthenticationError: the provider refuses this client.
        TokenUnavailableError: it does not answer now.
    """
    sasl = Login.of(kafka).sasl
    if isinstance(sasl, OAuth) and sasl.callback is None:
        sasl.tokens().usable(Deadline(PATIENCE_S), newer_than_s=newer_than_s)


@contextlib.contextmanager
def settings_checked(kafka: Mapping[str, str], client: str) -> Iterator[None]:
    """Make a librdkafka client inside this block: its refusals become `ConfigurationError`.

    Args:
        kafka: the user's settings, to show the value of the refused one.
        client: the kind of client, for the error text ("producer", "consumer").

    Raises:
        ConfigurationError: librdkafka knows no such option, or refuses its value.
        SparkOnceError: the login needs a token, and there is none.
    """
    await_token(Login.of(kafka).for_librdkafka())
    try:
        yield
    except (KafkaException, ValueError, TypeError) as error:
        detail = error.args[0] if error.args else error
        if isinstance(detail, KafkaError) and lacks_token(detail):  # the one that was good is over
            raise translate(detail, f"making the {client}", kafka) from error
        text = detail.str() if hasattr(detail, "str") else str(detail)
        named = _named_in(text, kafka)
        raise ConfigurationError(
            f"The Kafka {client} cannot be made with these settings.",
            where=kafka.get("bootstrap.servers", ""),
            cause=told_with_the_nearest(text, named, {*login.NAMES, *_LIBRDKAFKA_NAMES, *_ALIASES}),
            option=", ".join(visible(name, kafka[name]) for name in named) or "kafka.*",
        ) from error


def admin_client(
    kafka: Mapping[str, str], *, newer_than_s: float = 60.0, **ours: Any
) -> AdminClient:
    """Make an admin client, which connects at its first question. On the driver.

    Args:
        kafka: the user's settings.
        newer_than_s: see `check_login`.
        ours: settings that no user may change.

    Raises:
        SparkOnceError: see `check_login` and `settings_checked`.
    """
    check_login(kafka, newer_than_s=newer_than_s)
    with settings_checked(kafka, "admin client"):
        return AdminClient({**log_settings(), **librdkafka_settings(kafka), **ours})


def _named_in(text: str, kafka: Mapping[str, str]) -> list[str]:
    """Find the user's options in librdkafka's refusal, which uses its own names for aliases."""
    aliases = {**_LIBRDKAFKA_NAMES, **_ALIASES, **JAVA_NAMES}
    java = {theirs: name for name, theirs in aliases.items() if name in kafka}
    names = [java.get(name, name) for name in re.findall(r"[a-z]\w*(?:\.\w+)*", text)]
    return [name for name in dict.fromkeys(names) if name in kafka]


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
