"""Partitions that a pipeline has read and does not read now: the decisions keep their offsets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from connectors.kafka.source.offsets import merged_offsets, split_key
from connectors.options.kafka_source import KafkaSource
from transactions.log_entries import Decision


def read_now(source: KafkaSource, keys: Iterable[str]) -> set[str]:
    """Return the partitions that the options of a source name.

    Args:
        source: what is read.
        keys: the partitions to choose from, as ``topic-partition``.
    """
    some = source.assigned_names
    if some:
        return {*keys} & some
    return {key for key in keys if source.reads_topic(split_key(key)[0])}


def was_read(sources: str, topic: str) -> bool:
    """Return whether a pipeline read a topic.

    Args:
        sources: `KafkaSource.reads` of all of its sources, separated by commas.
        topic: the topic.
    """
    for one in sources.split(","):
        kind, _, pattern = one.partition("pattern ")
        if pattern and not kind:
            if re.fullmatch(pattern.replace("%2C", ","), topic):
                return True
        elif one.partition("[")[0] == topic:
            return True
    return False


def some_rest(sources: Sequence[KafkaSource], last: Decision | None) -> bool:
    """Return whether a decision has offsets of a partition that no source reads now."""
    offsets = {} if last is None else merged_offsets(last.end_offsets)
    return bool(offsets.keys() - set().union(*(read_now(source, offsets) for source in sources)))


def take_resting(
    offsets: dict[str, int], source: KafkaSource, found: Collection[str]
) -> dict[str, int]:
    """Take out of offsets, and return, those of partitions that are not read now: the source has
    left them out, or their topic does not exist.

    Args:
        offsets: by ``topic-partition``.
        source: what is read.
        found: its partitions; if there is none, a topic may only be missing for a moment.
    """
    topics = {split_key(key)[0] for key in found or offsets}
    there = {key for key in offsets if split_key(key)[0] in topics}
    stay = read_now(source, there) | {*found}
    return {key: offsets.pop(key) for key in offsets.keys() - stay}
