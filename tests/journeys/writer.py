"""Somebody else's application: it writes to a topic all the time, in a process of its own.

Each value is ``partition-number``, and the number is the record's offset: an idempotent producer
leaves no gaps. New partitions are written to as soon as they are there.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import Producer

LOOK_FOR_PARTITIONS_S = 1.0
ROUND_S = 0.02


def main(bootstrap: str, topic: str) -> None:
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
    look = 0.0
    while True:
        if time.monotonic() >= look:
            look = time.monotonic() + LOOK_FOR_PARTITIONS_S
            known = producer.list_topics(topic, timeout=60).topics[topic].partitions
            written = {partition: written.get(partition, 0) for partition in known}
        for partition, number in written.items():
            value = f"{partition}-{number}".encode()
            producer.produce(topic, value, value, partition=partition)
            written[partition] = number + 1
        producer.poll(0)
        time.sleep(ROUND_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
