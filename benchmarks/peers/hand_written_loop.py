"""A hand-written transactional loop on confluent-kafka: what one does without a framework.

One process: consume, change, produce, and a commit every `interval_ms`. It has no checkpoint and no
recovery of a prepared transaction; its offsets go into the transaction through the consumer group.

librdkafka stops fetching a partition for `fetch.queue.backoff.ms` (1 s) once 100,000 messages of it
are queued, which bounds a backlog at some 117,000 records/s whatever else is set; `tuned` lifts it.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

_TUNED = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 10}
_SECONDS = 60.0


def main() -> None:
    """Run until SIGTERM."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    consumer = Consumer(
        {
            "bootstrap.servers": task["bootstrap"],
            "group.id": task["id"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **(_TUNED if task["tuned"] else {}),
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": task["bootstrap"],
            "transactional.id": task["id"],
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
        }
    )
    producer.init_transactions(_SECONDS)
    consumer.subscribe([task["input"]])
    producer.begin_transaction()
    interval = task["interval_ms"] / 1000
    began, pending = time.monotonic(), 0
    report = {"commits": 0, "first_record_ns": 0, "progress": []}
    while not stopping.is_set() or pending:
        messages = consumer.consume(5000, timeout=0.01)
        if messages and not report["first_record_ns"]:
            report["first_record_ns"] = time.time_ns()
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
            produce(producer, task["output"], message.key(), message.value()[:-1] + b"T")
        pending += len(messages)
        producer.poll(0)
        if stopping.is_set() or time.monotonic() - began >= interval:
            if pending:
                read = [p for p in consumer.position(consumer.assignment()) if p.offset >= 0]
                group = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(read, group, _SECONDS)
                producer.commit_transaction(_SECONDS)
                report["commits"] += 1
                producer.begin_transaction()
            began, pending = time.monotonic(), 0
    consumer.close()
    (Path(task["folder"]) / "report.json").write_text(json.dumps(report), "utf-8")


def produce(producer: Producer, topic: str, key: bytes, value: bytes) -> None:
    """Hand over a record; wait while the queue is full."""
    while True:
        try:
            producer.produce(topic, value, key)
        except BufferError:
            producer.poll(0.01)
        else:
            return


if __name__ == "__main__":
    main()
