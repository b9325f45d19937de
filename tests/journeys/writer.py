"""Somebody else's application: it writes to a topic all the time, in a process of its own.

Each value is ``partition-number``, and the number is the record's offset: an idempotent producer
leaves no gaps, and a writer goes on where the topic ends. New partitions are written to as soon as
they are there. SIGTERM ends it when all that it has sent is written.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

LOOK_FOR_PARTITIONS_S = 1.0
ROUND_S = 0.02


def main(bootstrap: str, topic: str, mark: str, begin_with: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 600_000,
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
    )
    written: dict[int, int] = {}
    look, many = 0.0, int(begin_with)
    while not ended.is_set():
        if time.monotonic() >= look:
            look = time.monotonic() + LOOK_FOR_PARTITIONS_S
            for partition in partitions_of(producer, topic):
                if partition not in written:
                    written[partition] = end_of(bootstrap, topic, partition)
        for partition, number in written.items():
            written[partition] = number + max(1, many)
            for each in range(number, written[partition]):
                value = f"{mark}{partition}-{each}".encode()
                producer.produce(topic, value, value, partition=partition)
        many = 0
        producer.poll(0)
        ended.wait(ROUND_S)
    producer.flush(60)


def partitions_of(producer: Producer, topic: str) -> list[int]:
    """Return the partitions; none if a broker went away while it was asked: the next look asks."""
    try:
        return list(producer.list_topics(topic, timeout=60).topics[topic].partitions)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._TRANSPORT:
            raise
        return []


def end_of(bootstrap: str, topic: str, partition: int) -> int:
    """Ask a client that has never heard of the topic: it knows no older list of partitions."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "writer", "log_level": 0})
    try:
        end: int = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)[1]
    finally:
        client.close()
    return end


if __name__ == "__main__":
    main(*sys.argv[1:])
