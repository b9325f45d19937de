"""The benchmark's independent reader: a plain read_committed consumer of whole topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from connectors.clients.client_settings import librdkafka_settings, settings_checked


def committed_reader(
    kafka: Mapping[str, str], topic: str, partitions: int, *, tell_ends: bool = False
) -> Any:
    """Return a consumer of all partitions from their beginning; the caller closes it.

    Args:
        kafka: client settings in Java naming.
        topic: the topic to read.
        partitions: the number of its partitions.
        tell_ends: also yield an error "end of partition" at each end. Its offset is behind a
            commit marker; the consumer's position stays before the marker.

    Raises:
        ConfigurationError: a client setting is wrong.
    """
    settings = {
        **librdkafka_settings(kafka),
        "group.id": "sparkonce-bench",  # the client needs one; nothing is committed to it
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": tell_ends,
        "queued.min.messages": 1_000_000,
        "log_level": 2,
    }
    with settings_checked(kafka, "reader"):
        consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)])
    return consumer


def raise_if_error(message: Message) -> None:
    """Raise the error that a reader received instead of a record.

    Raises:
        KafkaException: the message is an error.
    """
    error = message.error()
    if error is not None:
        raise KafkaException(error)


def librdkafka_version() -> str:
    """Return librdkafka's version, which every result must name."""
    return str(confluent_kafka.libversion()[0])
