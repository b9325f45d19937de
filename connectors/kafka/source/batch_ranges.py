"""Which offsets a batch takes, and how tasks share them. Nothing here asks a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from connectors.kafka.source.offsets import OffsetRange, partition_key, split_key


def limit_offsets(
    start: Mapping[str, int], latest: Mapping[str, int], limit: int
) -> dict[str, int]:
    """Cut `latest` down to about `limit` offsets, in proportion to each partition's records.

    Every partition with records gets one offset at least, so none starves. If more partitions than
    `limit` have records, the result exceeds `limit`, as in Spark.
    """
    waiting = {key: end - start.get(key, 0) for key, end in latest.items()}
    total = sum(size for size in waiting.values() if size > 0)
    if total <= limit:
        return dict(latest)
    return {
        key: end if waiting[key] <= 0 else start.get(key, 0) + max(1, limit * waiting[key] // total)
        for key, end in latest.items()
    }


def plan_ranges(start: Mapping[str, int], end: Mapping[str, int]) -> list[OffsetRange]:
    """Return one range per partition with records to read, in the stable order.

    A partition unknown to `start` begins at 0. A partition that ends before it begins has no
    records. Only its topic's id shows whether it was made anew (see `source_stream`), no offset.
    """
    ranges = []
    for topic, partition in sorted(map(split_key, end)):
        key = partition_key(topic, partition)
        ranges.append(OffsetRange(topic, partition, start.get(key, 0), end[key]))
    return [each for each in ranges if each.end > each.start]


def of_partitions(ranges: list[OffsetRange], there: Iterable[str]) -> tuple[list[OffsetRange], str]:
    """Return the ranges of partitions that are there; and the others, as text."""
    names = {*there}
    kept = [each for each in ranges if each.key in names]
    return kept, ", ".join(str(each) for each in ranges if each.key not in names)


def not_before(earliest: Mapping[str, int], ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Return what is left of ranges in partitions that have lost their first records."""
    cut = [(each, max(each.start, earliest[each.key])) for each in ranges]
    return [
        OffsetRange(each.topic, each.partition, first, each.end)
        for each, first in cut
        if first < each.end
    ]


def split_ranges(
    ranges: list[OffsetRange], wanted: int | None, most: int | None = None
) -> list[OffsetRange]:
    """Split ranges into about equal parts.

    Args:
        ranges: of a batch.
        wanted: split until there are about so many (`minPartitions`).
        most: split before that until none has more offsets (`maxRecordsPerPartition`).
    """
    if most is not None:
        ranges = [part for each in ranges for part in _cut(each, -(-each.size // most))]
    if wanted is None or len(ranges) >= wanted:
        return ranges
    total = sum(each.size for each in ranges)
    parts: list[OffsetRange] = []
    for each in ranges:
        parts += _cut(each, min(each.size, max(1, round(wanted * each.size / total))))
    return parts


def _cut(each: OffsetRange, pieces: int) -> list[OffsetRange]:
    cuts = [each.start + each.size * index // pieces for index in range(pieces + 1)]
    return [OffsetRange(each.topic, each.partition, low, high) for low, high in pairwise(cuts)]
