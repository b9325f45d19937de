"""Offsets as text, as in Spark's Kafka source: ``{"topic": {"0": 23, "1": -2}}``.

The order of keys is stable (topics by name, partitions by number): Spark compares the offsets of a
Python source as text, so two orders of the same offsets would look like new data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from transactions.errors import ConfigurationError

EARLIEST: Final = -2
LATEST: Final = -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}

#: A key beside the topics, for offsets that also contain topic ids. No topic name has a space.
TOPIC_IDS: Final = "topic ids"
#: Another one, in the end of a query's first batch: the offsets where that batch begins.
INITIAL_OFFSETS: Final = "initial offsets"
_BESIDE: Final = frozenset({TOPIC_IDS, INITIAL_OFFSETS})

_OPTION = "startingOffsets / endingOffsets"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of one partition from `start` up to, not including, `end`: one Spark task."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def key(self) -> str:
        """The flat name of the partition."""
        return partition_key(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets there are; records can be fewer."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"


def partition_key(topic: str, partition: int) -> str:
    """Return the flat name of a partition, ``topic-partition``."""
    return f"{topic}-{partition}"


def split_key(key: str) -> tuple[str, int]:
    """Return topic and partition of a flat name; topics may contain dashes and dots."""
    topic, _, partition = key.rpartition("-")
    return topic, int(partition)


def parse_offsets(text: str | bytes, *, special: bool = False) -> dict[str, int]:
    """Read Spark's JSON into ``{"topic-partition": offset}``.

    Args:
        text: the JSON.
        special: accept -2 (earliest) and -1 (latest), which only options may hold.

    Raises:
        ConfigurationError: the text is not such a JSON.
    """
    return flatten(_loaded(text), special=special)


def parse_wanted(text: str, there: Iterable[str]) -> dict[str, int]:
    """Read the JSON of `startingOffsets` or `endingOffsets`, with -1 and -2 still in it.

    Args:
        text: the JSON. Instead of an object of partitions, a topic can have ``"earliest"`` or
            ``"latest"``, which then counts for each of its partitions (SPARK-58774).
        there: the existing partitions, as "topic-partition".

    Raises:
        ConfigurationError: the text is not such a JSON.
    """
    nested = _loaded(text)
    if isinstance(nested, dict):
        numbers: dict[str, dict[str, int]] = {}
        for topic, partition in map(split_key, there):
            numbers.setdefault(topic, {})[str(partition)] = partition
        for topic, word in nested.items():
            if isinstance(word, str):
                if word.lower() not in _WORDS or topic not in numbers:
                    problem = (
                        f"{word!r} is not allowed there" if topic in numbers else "it is not read"
                    )
                    raise _malformed(text, f"topic {topic!r}: {problem}")
                nested[topic] = dict.fromkeys(numbers[topic], _WORDS[word.lower()])
    return flatten(nested, special=True)


def _loaded(text: str | bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        shown = text if isinstance(text, str) else text.decode(errors="replace")
        raise _malformed(shown, f"it is not JSON: {error}") from error


def flatten(nested: object, *, special: bool = False) -> dict[str, int]:
    """Check the nested form (parsed JSON, as Spark gives it) and return the flat one."""
    if not isinstance(nested, dict):
        raise _malformed(nested, "an object of topics was expected")
    flat: dict[str, int] = {}
    for topic, partitions in nested.items():
        if topic in _BESIDE:
            continue
        if not isinstance(partitions, dict):
            raise _malformed(nested, f"topic {topic!r} needs an object of partitions")
        for partition, offset in partitions.items():
            flat[_checked(nested, topic, partition, offset, special)] = offset
    return flat


def nest(flat: Mapping[str, int], ids: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the nested form of flat offsets, in the stable order.

    Args:
        flat: the offsets.
        ids: topic ids to put beside the offsets.
    """
    nested: dict[str, Any] = {}
    for topic, partition in sorted(map(split_key, flat)):
        nested.setdefault(topic, {})[str(partition)] = flat[partition_key(topic, partition)]
    if ids:
        nested[TOPIC_IDS] = dict(sorted(ids.items()))
    return nested


def topic_ids_in(nested: Mapping[str, Any]) -> dict[str, str]:
    """Return the topic ids that stand beside the offsets."""
    return dict(nested.get(TOPIC_IDS, {}))


def format_offsets(flat: Mapping[str, int], ids: Mapping[str, str] | None = None) -> str:
    """Write ``{"topic-partition": offset}`` as Spark's JSON, in the stable order; see `nest`."""
    return orjson.dumps(nest(flat, ids)).decode()


def _checked(nested: object, topic: object, partition: Any, offset: object, special: bool) -> str:
    name = str(partition)
    if not (name.isascii() and name.isdigit()):
        raise _malformed(nested, f"{topic}/{name} is not a partition number")
    if type(offset) is not int:
        raise _malformed(nested, f"the offset of {topic}/{name} is not a whole number")
    if offset < (EARLIEST if special else 0):
        allowed = "0 or more, -1 (latest) or -2 (earliest)" if special else "0 or more"
        raise _malformed(nested, f"the offset of {topic}/{name} is {offset}; it must be {allowed}")
    return partition_key(str(topic), int(name))


def _malformed(given: object, why: str) -> ConfigurationError:
    return ConfigurationError(
        "These offsets are not in the form of Spark's Kafka source.",
        where=str(given)[:500],
        cause=why,
        option=f'{_OPTION}={{"topic": {{"0": 23, "1": -2}}}}',
    )


def merged_offsets(texts: Iterable[str]) -> dict[str, int]:
    """Merge the offsets of several sources; if two read a partition, the smaller one counts."""
    merged: dict[str, int] = {}
    for text in texts:
        for name, offset in parse_offsets(text).items():
            merged[name] = min(offset, merged.get(name, offset))
    return merged


def without_topics(text: str, gone: frozenset[str]) -> str:
    """Return offsets, as text, without some topics."""
    kept = {name: at for name, at in parse_offsets(text).items() if split_key(name)[0] not in gone}
    ids = topic_ids_in(orjson.loads(text))
    return format_offsets(kept, {topic: ids[topic] for topic in ids.keys() - gone})
