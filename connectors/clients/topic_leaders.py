"""Checks whether a topic is usable: the controller answers before brokers know a new topic."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

_ASK_S: Final = 5.0


def has_leaders(admin: AdminClient, topic: str, partitions: int | None = None) -> bool:
    """Return whether this broker knows a leader of each partition of a topic.

    The request asks for all topics: naming one could create it on the broker
    (`auto.create.topics.enable`).

    Args:
        admin: connected to the broker that matters.
        topic: its name.
        partitions: the expected number; None: as many as exist.

    Returns:
        False also when no broker answers within five seconds.
    """
    try:
        known = admin.list_topics(timeout=_ASK_S).topics.get(topic)
    except KafkaException:
        return False
    if known is None or known.error is not None or not known.partitions:
        return False
    led = [one for one in known.partitions.values() if one.leader >= 0]
    return len(led) == (len(known.partitions) if partitions is None else partitions)
