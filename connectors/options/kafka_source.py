"""What a user says about the source: one frozen object, parsed once from Spark's own option names.

Raw client settings pass through as `kafka.*`. One `validate` checks everything that a wrong value
could break, before any data moves.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from connectors.options.client_options import ClientOptions, without_secret
from connectors.options.java_settings import WITHOUT_EFFECT as JAVA
from connectors.options.java_settings import tell_without_effect
from connectors.options.option import Option
from connectors.options.read_place import (
    EARLIEST,
    ERROR,
    LATEST,
    STRATEGIES,
    Place,
    first_place,
)
from connectors.options.table import SOURCE
from transactions.errors import ConfigurationError

ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")

_NO_GROUP: Final = "the source joins no group; offsets are committed to the application's own"
_NO_WRITER: Final = "the source writes nothing"
_BY_TIME: Final = "questions are repeated for a time; see kafkaConsumer.pollTimeoutMs"
#: Options of Spark's own source and sink that mean nothing here, and why.
WITHOUT_EFFECT: Final = {
    "groupIdPrefix": _NO_GROUP,
    "kafka.group.id": _NO_GROUP,
    "kafka.enable.idempotence": _NO_WRITER,
    "kafka.transaction.timeout.ms": _NO_WRITER,
    "fetchOffset.numRetries": _BY_TIME,
    "fetchOffset.retryIntervalMs": _BY_TIME,
    "useDeprecatedOffsetFetching": "offsets are always asked for without a consumer",
}

_BOOTSTRAP = "bootstrap.servers"
_SINCE: Final = "milliseconds since 1970 (UTC)"
_TIMES: Final = ("startingTimestamp", "endingTimestamp")
_RACK: Final = "client.rack"
_WITHOUT_EFFECT_BY_LOWER_NAME = {name.lower(): name for name in WITHOUT_EFFECT}
PLACE: Final = "options of the source"  # for the log


@dataclass(frozen=True, kw_only=True)
class KafkaSource:
    """Topics to read, and how.

    Args:
        bootstrap_servers: ``host:port`` list of the cluster.
        subscribe: topics, as a comma-separated string or a sequence.
        assign: partitions instead of whole topics: ``{"topic": [0, 2]}``, as a mapping or as JSON.
        subscribe_pattern: all topics whose whole name matches; a topic that appears later is read
            from its beginning. Python's regular expressions; Kafka's own topics never match.
        starting_offsets: where a *new* pipeline begins: earliest, latest or Spark's JSON; when not
            given, latest for a stream and earliest for a batch, as in Spark. A restarted pipeline
            goes on from its checkpoint.
        starting_offsets_by_timestamp: the first record of that time or later, in each partition:
            JSON ``{"topic": {"0": milliseconds}}``. It wins over `starting_offsets`.
        starting_timestamp: the same time for all partitions, in milliseconds since 1970 (UTC). It
            wins over both.
        unmatched_timestamp: what to do with a partition that has no record of that time or later:
            error, or latest.
        starting_group: what this consumer group has committed; it wins over all others.
        ending_offsets: where a batch read ends: latest (default) or Spark's JSON.
        ending_offsets_by_timestamp: before the first record of that time or later; at the end of a
            partition that has none. It wins over `ending_offsets`.
        ending_timestamp: the same time for all partitions. It wins over both.
        max_offsets_per_trigger: most offsets in one micro-batch, split over the partitions.
        min_offsets_per_trigger: a micro-batch waits for so many offsets.
        max_trigger_delay_ms: but no longer than this time after the start of the batch before.
        fail_on_data_loss: stop when offsets that are still needed are gone.
        include_headers: add the column `headers`.
        isolation_level: read_committed hides open and aborted transactions.
        min_partitions: split ranges until there are about this many Spark tasks.
        max_records_per_partition: split ranges until no Spark task has more offsets.
        poll_timeout_ms: longest silence of the brokers before a read fails.
        client_rack_env: the environment variable that holds the rack of a machine. Each task reads
            it where it runs, as `client.rack`: a broker of the same rack then answers (KIP-392).
        kafka: further client settings, named as Kafka names them, without the `kafka.` prefix.
    """

    bootstrap_servers: str
    subscribe: str | Sequence[str] = ()
    assign: str | Mapping[str, Sequence[int]] | None = None
    subscribe_pattern: str | None = None
    starting_offsets: str | None = None
    starting_offsets_by_timestamp: str | None = None
    starting_timestamp: int | None = None
    unmatched_timestamp: str = ERROR
    starting_group: str | None = None
    ending_offsets: str | None = None
    ending_offsets_by_timestamp: str | None = None
    ending_timestamp: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    fail_on_data_loss: bool = True
    include_headers: bool = False
    isolation_level: str = "read_committed"
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    poll_timeout_ms: int = 120_000
    client_rack_env: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = self.subscribe.split(",") if isinstance(self.subscribe, str) else self.subscribe
        topics = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
        object.__setattr__(self, "subscribe", topics)
        if self.assign is not None:
            object.__setattr__(self, "assign", _assigned_json(self.assign))
        self._take_over_client_settings()
        self.validate()

    def _take_over_client_settings(self) -> None:
        """Give `isolation.level` its meaning, and name what has none."""
        kafka = ClientOptions(self.kafka)
        level = kafka.pop("isolation.level", self.isolation_level).strip().lower()
        if level != self.isolation_level != ISOLATION_LEVELS[0]:
            raise _two_levels(level, self.isolation_level)
        object.__setattr__(self, "isolation_level", level)
        found = [(f"kafka.{name}", JAVA[name]) for name in kafka if name in JAVA]
        useless = {name.removeprefix(SOURCE.prefix): name for name in WITHOUT_EFFECT}
        given = [full for short, full in useless.items() if kafka.pop(short, None) is not None]
        found += [(name, WITHOUT_EFFECT[name]) for name in given]
        tell_without_effect(PLACE, found)
        object.__setattr__(self, "kafka", kafka)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the user names, without duplicates; none when a pattern names them."""
        assert isinstance(self.subscribe, tuple)
        return self.subscribe or tuple(self.assigned)

    @property
    def assigned(self) -> Mapping[str, Sequence[int]]:
        """The partitions of `assign` by topic, empty when whole topics are read."""
        return _partitions_of(str(self.assign)) if self.assign else {}

    @property
    def assigned_names(self) -> frozenset[str]:
        """The same as ``topic-partition``."""
        some = self.assigned.items()
        return frozenset(f"{topic}-{number}" for topic, numbers in some for number in numbers)

    @property
    def reads(self) -> tuple[str, ...]:
        """What is read, as a checkpoint's identity has it: topics, ``topic[0 2]`` with partitions,
        or ``pattern ...``; none of them has a comma.
        """
        if self.subscribe_pattern is not None:
            return ("pattern " + self.subscribe_pattern.replace(",", "%2C"),)
        some = self.assigned
        return tuple(
            f"{topic}[{' '.join(map(str, some[topic]))}]" if topic in some else topic
            for topic in self.topics
        )

    def reads_topic(self, topic: str) -> bool:
        """Return whether a topic is read, all of it or some of its partitions."""
        if self.subscribe_pattern is not None:
            return re.fullmatch(self.subscribe_pattern, topic) is not None
        return topic in self.topics

    @property
    def client_settings(self) -> ClientOptions:
        """Settings for every client of this source, bootstrap servers among them."""
        return ClientOptions({**self.kafka, _BOOTSTRAP: self.bootstrap_servers})

    @property
    def start(self) -> Place | None:
        """Where a new pipeline begins, None when the user does not say."""
        return first_place("", startingGroupId=self.starting_group) or self.start_without_group

    @property
    def start_without_group(self) -> Place | None:
        """Where it begins in partitions of which `starting_group` has no offset."""
        return first_place(
            self.unmatched_timestamp,
            startingTimestamp=self.starting_timestamp,
            startingOffsetsByTimestamp=self.starting_offsets_by_timestamp,
            startingOffsets=self.starting_offsets,
        )

    @property
    def end(self) -> Place | None:
        """Where a batch read ends, None when the user does not say."""
        return first_place(
            LATEST,
            endingTimestamp=self.ending_timestamp,
            endingOffsetsByTimestamp=self.ending_offsets_by_timestamp,
            endingOffsets=self.ending_offsets,
        )

    def validate(self) -> None:
        """Check every field and the rules between them.

        Raises:
            ConfigurationError: the first rule that is broken.
        """
        if not self.bootstrap_servers.strip():
            raise _refused("kafka.bootstrap.servers", "", "no broker is named")
        self._check_topics()
        if self.kafka.get(_BOOTSTRAP, self.bootstrap_servers) != self.bootstrap_servers:
            raise _refused("kafka.bootstrap.servers", self.kafka[_BOOTSTRAP], "it is given twice")
        if self.client_rack_env is not None and _RACK in self.kafka:
            raise _refused("clientRackEnv", self.client_rack_env, f"kafka.{_RACK} is given too")
        if self.isolation_level not in ISOLATION_LEVELS:
            raise _refused(
                "isolationLevel", self.isolation_level, "it is unknown", ISOLATION_LEVELS
            )
        for option in SOURCE.options:
            value, smallest = getattr(self, option.python_name), int(option.name not in _TIMES)
            if type(value) is int and value < smallest:
                hint = "" if smallest else _SINCE
                raise _refused(option.name, value, f"it must be {smallest} or more", hint=hint)
        most, least = self.max_offsets_per_trigger, self.min_offsets_per_trigger
        if most is not None and least is not None and least > most:
            raise _refused("minOffsetsPerTrigger", least, f"maxOffsetsPerTrigger={most} is less")
        self._check_times()
        _check_offsets("startingOffsets", self.starting_offsets, (EARLIEST, LATEST))
        _check_offsets("endingOffsets", self.ending_offsets, (LATEST,))
        _refuse_offset(
            "endingOffsets", self.ending_offsets, EARLIEST, "a read must end after the first offset"
        )

    def _check_topics(self) -> None:
        ways = {"subscribe": self.subscribe, "assign": self.assign}
        given = [name for name, value in ways.items() if value]
        if self.subscribe_pattern is not None:
            given.append("subscribePattern")
        if not given:
            hint = "subscribe, assign or subscribePattern"
            raise _refused("subscribe", "", "no topic is named", hint=hint)
        if len(given) > 1:
            value = self.assign if given[1] == "assign" else self.subscribe_pattern
            raise _refused(given[1], value, f"{given[0]} is given too", hint="give one of them")
        if self.subscribe_pattern is not None:
            try:
                re.compile(self.subscribe_pattern)
            except re.error as error:
                why = f"it is no regular expression ({error})"
                raise _refused("subscribePattern", self.subscribe_pattern, why) from error
            if not self.subscribe_pattern:
                raise _refused("subscribePattern", "", "it is empty")

    def _check_times(self) -> None:
        if self.unmatched_timestamp not in STRATEGIES:
            option = "startingOffsetsByTimestampStrategy"
            raise _refused(option, self.unmatched_timestamp, "it is unknown", STRATEGIES)
        for name, times in (
            ("startingOffsetsByTimestamp", self.starting_offsets_by_timestamp),
            ("endingOffsetsByTimestamp", self.ending_offsets_by_timestamp),
        ):
            if times is not None and not times.lstrip().startswith("{"):
                raise _refused(
                    name, times, "it is not JSON", hint=f'{{"topic": {{"0": 0}}}}, {_SINCE}'
                )

    def check_stream(self) -> None:
        """Check the options of a stream.

        Raises:
            ConfigurationError: an option is only for a batch read.
        """
        if self.end is not None:
            hint = "remove it; the trigger available-now stops at the newest records"
            raise _refused(self.end.option, self.end.said, "a stream has no end", hint=hint)

    def check_batch(self) -> None:
        """Check the options of a batch read.

        Raises:
            ConfigurationError: an option is only for a stream.
        """
        if self.start is not None and self.start.is_offsets:
            _refuse_offset("startingOffsets", self.start.said, LATEST, "a batch read ends there")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> KafkaSource:
        """Parse Spark's options; names are compared without regard to case.

        Raises:
            ConfigurationError: an option is unknown, not supported, missing or malformed.
        """
        fields: dict[str, object] = {}
        kafka: dict[str, str] = {}
        for name, value in options.items():
            if SOURCE.passes(name):
                kafka[name[len(SOURCE.prefix) :].lower()] = value
            elif useless := _WITHOUT_EFFECT_BY_LOWER_NAME.get(name.lower()):
                tell_without_effect(PLACE, [(useless, WITHOUT_EFFECT[useless])])
            elif option := SOURCE.find(name):
                fields[option.python_name] = _parsed(option, value)
            else:
                raise _unknown(name, value)
        levels = kafka.get("isolation.level"), fields.get("isolation_level")
        if None not in levels and len({str(one).strip().lower() for one in levels}) > 1:
            raise _two_levels(*levels)
        return cls(
            bootstrap_servers=kafka.pop(_BOOTSTRAP, ""),
            kafka=kafka,
            **fields,  # type: ignore[arg-type]  # typed by _parsed, checked by validate
        )

    def to_options(self) -> dict[str, str]:
        """Return the options that `from_options` reads back into an equal object."""
        options = {SOURCE.prefix + name: value for name, value in self.client_settings.items()}
        for option in SOURCE.options:
            value = getattr(self, option.python_name)
            if value not in (None, ()):
                options[option.name] = _text(value)
        return options


@functools.lru_cache
def _partitions_of(assign: str) -> Mapping[str, Sequence[int]]:
    """Parse once: in continuous mode each checkpoint asks for the partitions."""
    return MappingProxyType(json.loads(assign))


def _assigned_json(given: str | Mapping[str, Sequence[int]]) -> str:
    """Return partitions by topic as JSON in a stable order; it is compared at every restart.

    Raises:
        ConfigurationError: it is not an object of lists of partition numbers.
    """
    found: object = given
    if isinstance(given, str):
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(given)
    lists = dict(found) if isinstance(found, Mapping) else {}
    if not lists or not all(map(_are_numbers, lists.values())):
        hint = 'partition numbers by topic are expected: {"topic": [0, 2]}'
        raise _refused("assign", given, "it names no partitions", hint=hint)
    return json.dumps({topic: sorted(set(lists[topic])) for topic in sorted(lists)})


def _are_numbers(found: object) -> bool:
    if not isinstance(found, Sequence) or isinstance(found, str):
        return False
    return len(found) > 0 and all(type(one) is int and one >= 0 for one in found)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(option: Option, value: str) -> object:
    try:
        parsed = option.kind.parse(value)
    except ValueError:
        raise _refused(option.name, value, option.kind.problem) from None
    if option.name in ("startingOffsets", "endingOffsets") and not value.lstrip().startswith("{"):
        return value.strip().lower()
    return parsed


def _check_offsets(name: str, value: str | None, words: Sequence[str]) -> None:
    """Check a place by its form; the content of JSON is checked later, with the cluster's
    partitions.
    """
    if value is None or value in words or value.lstrip().startswith("{"):
        return
    raise _refused(name, value, "it is neither JSON nor a known word", words)


def _refuse_offset(name: str, value: str | None, word: str, why: str) -> None:
    """Refuse a word as the place of all partitions, or the word's number as the place of one."""
    number = {LATEST: -1, EARLIEST: -2}[word]
    if value == word:
        raise _refused(name, value, f"{word} is not allowed: {why}")
    for topic, partitions in _json(value).items():
        if partitions == word:
            raise _refused(name, value, f"{topic} is {word}, which is not allowed: {why}")
        for partition, offset in partitions.items() if isinstance(partitions, dict) else ():
            if offset == number:
                where = f"{topic}/{partition} is {number} ({word})"
                raise _refused(name, value, f"{where}, which is not allowed: {why}")


def _json(value: str | None) -> dict[str, object]:
    """Return a JSON object; whether it holds offsets is checked later, with the cluster's
    partitions.
    """
    with contextlib.suppress(json.JSONDecodeError):
        found = json.loads(value or "{}")
        return found if isinstance(found, dict) else {}
    return {}


def _refused(
    name: str, value: object, why: str, allowed: Sequence[str] = (), *, hint: str = ""
) -> ConfigurationError:
    hints = [hint] if hint else []
    hints += [f"allowed: {', '.join(allowed)}"] if allowed else []
    return ConfigurationError(
        f"The source option {name} cannot be used: {why}.",
        where="options of the source kafka-exactly-once",
        cause="; ".join(hints) or why,
        option=f"{name}={without_secret(name, value)}",
    )


def _two_levels(client: object, option: object) -> ConfigurationError:
    return _refused("kafka.isolation.level", client, f"isolationLevel={option} is given too")


def _unknown(name: str, value: str) -> ConfigurationError:
    return ConfigurationError(
        f"The source has no option {name}.",
        where="options of the source kafka-exactly-once",
        cause=SOURCE.hint(name, f"{SOURCE.prefix}{_BOOTSTRAP}"),
        option=f"{name}={without_secret(name, value)}",
    )
