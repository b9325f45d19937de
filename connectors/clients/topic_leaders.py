"""Whether a topic can be used yet: the controller answers before the brokers know a new topic."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

_ASK_S: Final = 5.0


def has_leaders(admin: AdminClient, topic: str, partitions: int | None = None) -> bool:
    """Tell whether the broker that is asked knows a leader of each partition of a topic.

    All topics are asked for: naming one could create it on the broker
    (`auto.create.topics.enable`).

    Args:
        admin: connected to the broker that matters.
        topic: its name.
        partitions: how many there shall be; None: as many as there are.

    Returns:
        False, too, when no broker answers within five seconds.
    """
    try:
        known = admin.list_topics(timeout=_ASK_S).topics.get(topic)
    except KafkaException:
        return False
    if known is None or known.error is not None or not known.partitions:
        return False
    led = [one for one in known.partitions.values() if one.leader >= 0]
    return len(led) == (len(known.partitions) if partitions is None else partitions)
