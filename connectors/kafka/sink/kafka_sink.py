"""The Kafka sink: what a user says about it, checked as a whole, and how a run opens it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Self

from connectors.clients.transaction_timeout import MOST_TIMEOUT_MS, check_request_timeout
from connectors.options.client_options import ClientOptions, servers_of, without_secret
from connectors.options.guarantee import AT_LEAST_ONCE, EXACTLY_ONCE, GUARANTEES
from connectors.options.java_settings import WITHOUT_EFFECT as JAVA
from connectors.options.java_settings import tell_without_effect
from connectors.options.option import NAME
from connectors.options.sink_table import KAFKA_SINK
from transactions.clock import Deadline
from transactions.errors import ConfigurationError
from transactions.nothing_to_commit import NothingToCommit
from transactions.sink import OpenSink, Sink, SinkContext

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.wire.coordinator_wire import CoordinatorWire

#: Where its options are given, for the log.
PLACE: Final = "options of the Kafka sink"
_BOOTSTRAP: Final = "bootstrap.servers"
_BREAKS: Final = "sparkonce sets it: a broken connection must be detected"
#: Client setting that a producer with transactions must have as it is -> why.
_NOT_WITH_TRANSACTIONS: Final[Mapping[str, str]] = {
    "socket.max.fails": _BREAKS,
    "log.connection.close": _BREAKS,
}
#: Client setting that means nothing to a sink -> why: people give source and sink the same ones.
_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "group.id": "a sink joins no group",
    "isolation.level": "a sink reads nothing; readers of its topic choose read_committed",
}
_LIVES: Final = "a record is retried until its transaction times out; see checkpoint_timeout"
#: The same, where it is written in transactions.
_WITHOUT_EFFECT_IN_TRANSACTIONS: Final[Mapping[str, str]] = {
    **_WITHOUT_EFFECT,
    "delivery.timeout.ms": _LIVES,
    "message.timeout.ms": _LIVES,
}
_IDEMPOTENCE: Final = "enable.idempotence"
_TIMEOUT: Final = "transaction.timeout.ms"
_PARTITIONER: Final = "partitioner.class"
#: Kafka's own partitioners put a record without a key anywhere, and so does librdkafka's.
_KAFKAS_OWN: Final = "org.apache.kafka.clients.producer."
#: Options of Spark's source and sink that its sink accepts and does not need, in small letters.
_NOT_NEEDED: Final = (
    "includeheaders",  # a column `headers` is written in any case
    "groupidprefix",  # a sink joins no group
)


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
        write_timestamp: a column `timestamp` of a DataFrame becomes the time of the record. By
            default it is left out, as in Spark's own sink. An Arrow function that returns the
            column needs no option.
        kafka: further client settings, with Kafka's own names and no ``kafka.`` before them.
    """

    takes_messages: ClassVar[bool] = True

    bootstrap_servers: str
    topic: str | None = None
    name: str = ""
    guarantee: str = EXACTLY_ONCE
    transaction_timeout_ms: int | None = None
    write_timestamp: bool = False
    kafka: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every option, and all of them together.

        Raises:
            ConfigurationError: an option is wrong.
        """
        object.__setattr__(self, "kafka", ClientOptions(self.kafka))
        self._take_over_timeout()
        self.tell_without_effect()
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
        self._refuse_partitioner()
        self._refuse_transaction_options()
        timeout = self.transaction_timeout_ms
        if timeout is not None and timeout < 1000:
            raise _wrong(
                "A transaction timeout below a second would abort decided transactions.",
                f"transactionTimeoutMs={timeout}",
            )

    def _take_over_timeout(self) -> None:
        """Give `transaction.timeout.ms` its meaning, that of `transactionTimeoutMs`."""
        text = self.kafka.get(_TIMEOUT)
        if text is None or not self.is_transactional:
            return
        if not text.strip().isdecimal():
            raise _wrong("The transaction timeout is a number of ms.", f"kafka.{_TIMEOUT}={text}")
        timeout = int(text)
        if self.transaction_timeout_ms not in {None, timeout}:
            given = f"kafka.{_TIMEOUT}={text}, transactionTimeoutMs={self.transaction_timeout_ms}"
            raise _wrong("The transaction timeout is given twice.", given)
        object.__setattr__(self, "transaction_timeout_ms", timeout)
        others = {name: value for name, value in self.kafka.items() if name != _TIMEOUT}
        object.__setattr__(self, "kafka", ClientOptions(others))

    def tell_without_effect(self) -> None:
        """Name the client settings that mean nothing here, once in a process."""
        known = {**JAVA, **self._without_effect}
        found = [(f"kafka.{name}", known[name]) for name in self.kafka if name in known]
        tell_without_effect(PLACE, found)

    @property
    def _without_effect(self) -> Mapping[str, str]:
        return _WITHOUT_EFFECT_IN_TRANSACTIONS if self.is_transactional else _WITHOUT_EFFECT

    def _refuse_partitioner(self) -> None:
        name = self.kafka.get(_PARTITIONER, _KAFKAS_OWN)
        if not name.startswith(_KAFKAS_OWN):
            raise ConfigurationError(
                "A partitioner of Java's client cannot run here.",
                where=f"sink {self.name!r}",
                cause="without it a key would go to another partition than it does today",
                option=f"kafka.{_PARTITIONER}={name}: leave it out, and give each row its "
                "partition in a column `partition`",
            )

    def _refuse_transaction_options(self) -> None:
        if self.is_transactional:
            self._refuse_what_transactions_set()
            return
        timeout = self.transaction_timeout_ms
        given = {"transactionTimeoutMs": None if timeout is None else str(timeout)}
        given[f"kafka.{_TIMEOUT}"] = self.kafka.get(_TIMEOUT)
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
            raise ConfigurationError(
                f"kafka.{name} cannot be set on a sink with the guarantee {EXACTLY_ONCE}.",
                where=f"sink {self.name!r}",
                cause=_NOT_WITH_TRANSACTIONS[name],
                option=f"kafka.{name}={self.kafka[name]}; instead: leave it out",
            )

    def identity(self) -> Mapping[str, str | None]:
        """See `Sink.identity`. The brokers may change: a cluster is known by what is on it."""
        return {"kind": "kafka", "topic": self.topic}

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Sink.check_columns`: rows that are messages fit."""

    def open(self, context: SinkContext) -> OpenSink:
        """See `Sink.open`.

        Raises:
            ConfigurationError: see `transaction_timeout_ms`.
            AuthenticationError: a right is missing.
            BrokerUnavailableError: no broker answered.
        """
        # Imported here: whoever only names a sink in its options loads no Kafka client.
        from connectors.kafka.sink.kafka_committer import KafkaCommitter  # noqa: PLC0415
        from connectors.kafka.sink.kafka_writer import KafkaWriter  # noqa: PLC0415
        from connectors.kafka.sink.plain_writer import KafkaPlainWriter  # noqa: PLC0415

        timeout_s = context.checkpoint_timeout_s
        if not self.is_transactional:
            waits = self.guarantee == AT_LEAST_ONCE
            plain = KafkaPlainWriter(
                self.name, self.topic, self.settings, waits=waits, checkpoint_timeout_s=timeout_s
            )
            return OpenSink(plain, NothingToCommit(self.name))
        committer = KafkaCommitter(self.name, self.settings)
        deadline = Deadline(context.patience_s)
        try:
            committer.timeout_ms = transaction_timeout_ms(
                self, committer.wire, at_least_s=context.transaction_lives_s, deadline=deadline
            )
            committer.count_offsets_partitions(deadline)
        except BaseException:
            committer.close()
            raise
        writer = KafkaWriter(
            self.name,
            self.topic,
            self.settings,
            timeout_ms=committer.timeout_ms,
            offsets_partitions=committer.offsets_partitions,
            cluster_id=committer.wire.cluster_id,
            checkpoint_timeout_s=timeout_s,
        )
        return OpenSink(writer, committer)

    @property
    def is_transactional(self) -> bool:
        """Return whether records are written in transactions: the guarantee exactly-once."""
        return self.guarantee == EXACTLY_ONCE

    @property
    def settings(self) -> ClientOptions:
        """Client settings with the brokers in them, without those that mean nothing here."""
        kept = {k: text for k, text in self.kafka.items() if k not in self._without_effect}
        if kept.get(_IDEMPOTENCE, "").strip().lower() == "true":
            del kept[_IDEMPOTENCE]  # every producer of ours has it
        return ClientOptions({**kept, "bootstrap.servers": self.bootstrap_servers})

    @classmethod
    def from_options(cls, options: Mapping[str, str], *, also: Sequence[str] = ()) -> Self:
        """Read Spark's option names; they are case-insensitive, ``kafka.*`` passes through.

        Args:
            options: of the sink.
            also: names that the user could have meant with an unknown one.

        Raises:
            ConfigurationError: an option is unknown or wrong.
        """
        kafka: dict[str, str] = {}
        fields: dict[str, object] = {}
        for name, value in options.items():
            if KAFKA_SINK.passes(name):
                kafka[name[len(KAFKA_SINK.prefix) :].lower()] = value
            elif name.lower() in _NOT_NEEDED:
                continue
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
                    cause=KAFKA_SINK.hint(name, f"{KAFKA_SINK.prefix}{_BOOTSTRAP}", *also),
                    option=f"{name}={without_secret(name, value)}",
                )
        servers = kafka.pop(_BOOTSTRAP, "")
        return cls(bootstrap_servers=servers, kafka=kafka, **fields)  # type: ignore[arg-type]


def kafka_sinks(sinks: Iterable[Sink]) -> list[KafkaSink]:
    """Return the Kafka sinks: a broker can be asked about them."""
    return [each for each in sinks if isinstance(each, KafkaSink)]


def offsets_sink(sinks: Iterable[KafkaSink], bootstrap: str) -> KafkaSink | None:
    """Return the sink whose transactions carry the source offsets, as far as names tell it: the
    first exactly-once sink on these brokers. A run also compares the ids of clusters.
    """
    near = (one for one in sinks if servers_of(one.bootstrap_servers) == servers_of(bootstrap))
    return next((one for one in near if one.is_transactional), None)


def transaction_timeout_ms(
    sink: KafkaSink, wire: CoordinatorWire, *, at_least_s: float, deadline: Deadline
) -> int:
    """Return the transaction timeout to use: the given one, or as much as broker and client allow.

    Args:
        sink: the sink.
        wire: a connection to its cluster.
        at_least_s: barrier interval, checkpoint timeout and restart budget together. With less,
            transactions would be aborted before their barrier, or decided ones while a driver
            restarts.
        deadline: for the broker's answer.

    Raises:
        ConfigurationError: the timeout is above the broker's maximum, above librdkafka's, or too
            short; or a request may take longer than the timeout.
    """
    allowed = int(wire.broker_setting("transaction.max.timeout.ms", deadline))
    most = min(allowed, MOST_TIMEOUT_MS)
    timeout = sink.transaction_timeout_ms
    if timeout is None:
        timeout = most
    if timeout > most:
        raise ConfigurationError(
            f"The transaction timeout may be at most {most} ms on this cluster.",
            where=f"sink {sink.name!r}",
            cause="the broker's transaction.max.timeout.ms is lower"
            if allowed < MOST_TIMEOUT_MS
            else "librdkafka computes the timeout in 32 bits; a longer timeout overflows",
            option=f"transactionTimeoutMs={timeout}",
        )
    if timeout < at_least_s * 1000:
        raise ConfigurationError(
            f"The transaction timeout of {timeout} ms is shorter than the time for a checkpoint "
            f"and a restart ({at_least_s:g} s); the broker would abort decided transactions.",
            where=f"sink {sink.name!r}",
            cause="checkpoint_timeout + restart_budget (in continuous mode also the barrier "
            "interval) are longer than the transaction timeout",
            option=f"transactionTimeoutMs={timeout} (the broker allows {allowed})",
        )
    check_request_timeout(sink.kafka, timeout, where=f"sink {sink.name!r}")
    return timeout


def _wrong(what: str, option: str) -> ConfigurationError:
    return ConfigurationError(what, where="sink options", cause="a wrong option", option=option)
