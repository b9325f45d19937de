"""Kafka's topic of committed offsets, and the partition that keeps a given group."""

from __future__ import annotations

from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"


def offsets_partition(group: str, partitions: int) -> str:
    """Return the ``topic-partition`` that keeps the offsets of a group.

    As in Kafka's `GroupCoordinatorService.partitionFor`: Java's `String.hashCode`, then its
    absolute value; the one number without an absolute value counts as 0.

    Args:
        group: its name, in ASCII.
        partitions: the topic's number of partitions, at least 1.
    """
    code = 0
    for byte in group.encode():
        code = (31 * code + byte) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    positive = 0 if signed == -(1 << 31) else abs(signed)
    return f"{OFFSETS_TOPIC}-{positive % partitions}"
