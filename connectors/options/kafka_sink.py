"""What a user says about a Kafka sink, parsed once and checked as a whole."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Final, Self

from connectors.options.client_options import ClientOptions, without_secret
from connectors.options.option import NAME
from connectors.options.table import KAFKA_SINK
from transactions.errors import ConfigurationError

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
NO_GUARANTEE: Final = "none"
#: The default first.
GUARANTEES: Final = (EXACTLY_ONCE, AT_LEAST_ONCE, NO_GUARANTEE)

_BOOTSTRAP: Final = "bootstrap.servers"
_OF_TRANSACTIONS: Final = ("transaction.timeout.ms",)
_LIVES: Final = (
    "a record is tried again for as long as its transaction lives",
    "checkpoint_timeout",
)
_BREAKS: Final = ("sparkonce sets it: a connection that breaks must be seen", "leave it out")
#: Client setting for which a producer with transactions has its own value -> why, and what to write
#: instead.
_NOT_WITH_TRANSACTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "transaction.timeout.ms": (
        "the driver tells every producer one value, checked against broker and checkpoint timeout",
        "transactionTimeoutMs={value}",
    ),
    "delivery.timeout.ms": _LIVES,
    "message.timeout.ms": _LIVES,
    "socket.max.fails": _BREAKS,
    "log.connection.close": _BREAKS,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSink:
    """A Kafka topic, or several, as the target of a branch.

    Attributes:
        bootstrap_servers: ``host:port`` list of the cluster.
        topic: target topic; wins over a `topic` column. None: each row names its own.
        name: unique in the driver and the same at every restart; the topic by default.
        guarantee: ``exactly-once``: in transactions; ``at-least-once``: visible at once, repeated
            after a failure, never lost; ``none``: nobody waits for it, so it can be lost as well
            (Flink's DeliveryGuarantee).
        transaction_timeout_ms: how long a prepared transaction outlives its writer; None takes what
            the broker allows (`transaction.max.timeout.ms`). Only for exactly-once.
        kafka: further client settings, with Kafka's own names and no ``kafka.`` before them.
    """

    bootstrap_servers: str
    topic: str | None = None
    name: str = ""
    guarantee: str = EXACTLY_ONCE
    transaction_timeout_ms: int | None = None
    kafka: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every option, and all of them together.

        Raises:
            ConfigurationError: an option is wrong.
        """
        object.__setattr__(self, "kafka", ClientOptions(self.kafka))
        if not self.bootstrap_servers:
            raise _wrong("A Kafka sink needs brokers.", "kafka.bootstrap.servers=(absent)")
        if not self.name:
            object.__setattr__(self, "name", re.sub(r"[^A-Za-z0-9_-]", "-", self.topic or "kafka"))
        if not NAME.fullmatch(self.name):
            raise _wrong("A sink's name has letters, digits, _ and -.", f"name={self.name}")
        if self.guarantee not in GUARANTEES:
            raise _wrong(
                f"The guarantee must be one of {', '.join(GUARANTEES)}.",
                f"guarantee={self.guarantee}",
            )
        self._refuse_transaction_options()
        timeout = self.transaction_timeout_ms
        if timeout is not None and timeout < 1000:
            raise _wrong(
                "A transaction timeout below a second would abort decided transactions.",
                f"transactionTimeoutMs={timeout}",
            )

    def _refuse_transaction_options(self) -> None:
        if self.is_transactional:
            self._refuse_what_transactions_set()
            return
        timeout = self.transaction_timeout_ms
        given = {"transactionTimeoutMs": None if timeout is None else str(timeout)}
        given |= {f"kafka.{name}": self.kafka.get(name) for name in _OF_TRANSACTIONS}
        for name, value in given.items():
            if value is not None:
                raise ConfigurationError(
                    f"{name} is an option of the guarantee {EXACTLY_ONCE}.",
                    where=f"sink {self.name!r}",
                    cause=f"with the guarantee {self.guarantee} there is no transaction that could "
                    "time out",
                    option=f"{name}={value}, guarantee={self.guarantee}",
                )

    def _refuse_what_transactions_set(self) -> None:
        for name in self.kafka.keys() & _NOT_WITH_TRANSACTIONS.keys():
            value, (why, instead) = self.kafka[name], _NOT_WITH_TRANSACTIONS[name]
            raise ConfigurationError(
                f"kafka.{name} has no effect on a sink with the guarantee {EXACTLY_ONCE}.",
                where=f"sink {self.name!r}",
                cause=why,
                option=f"kafka.{name}={value}; instead: {instead.format(value=value)}",
            )

    @property
    def is_transactional(self) -> bool:
        """Return whether records are written in transactions: the guarantee exactly-once."""
        return self.guarantee == EXACTLY_ONCE

    @property
    def settings(self) -> ClientOptions:
        """Client settings with the brokers in them."""
        return ClientOptions({**self.kafka, "bootstrap.servers": self.bootstrap_servers})

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Read Spark's option names; they are case-insensitive, ``kafka.*`` passes through.

        Raises:
            ConfigurationError: an option is unknown or wrong.
        """
        kafka: dict[str, str] = {}
        fields: dict[str, object] = {}
        for name, value in options.items():
            if KAFKA_SINK.passes(name):
                kafka[name[len(KAFKA_SINK.prefix) :].lower()] = value
            elif option := KAFKA_SINK.find(name):
                try:
                    fields[option.python_name] = option.kind.parse(value)
                except ValueError as error:
                    what = f"The value of {option.name} cannot be used: {option.kind.problem}."
                    raise _wrong(what, f"{option.name}={value}") from error
            else:
                raise ConfigurationError(
                    f"The Kafka sink has no option {name!r}.",
                    where="sink options",
                    cause=KAFKA_SINK.hint(name, f"{KAFKA_SINK.prefix}{_BOOTSTRAP}"),
                    option=f"{name}={without_secret(name, value)}",
                )
        servers = kafka.pop(_BOOTSTRAP, "")
        return cls(bootstrap_servers=servers, kafka=kafka, **fields)  # type: ignore[arg-type]


def _wrong(what: str, option: str) -> ConfigurationError:
    return ConfigurationError(what, where="sink options", cause="a wrong option", option=option)
