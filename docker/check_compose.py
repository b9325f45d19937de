"""Checks the compose set from outside, as a user meets it: brokers, a record, a Spark job.

`docker/check_compose.sh` brings the set up, runs this and takes the set down.
"""

from __future__ import annotations

import http.client
import json
import sys
import uuid
from collections.abc import Callable
from typing import TypeVar

import click
import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from transactions.clock import Deadline

BOOTSTRAP = "localhost:19092,localhost:29092,localhost:39092"
SPARK_MASTER = "localhost:18080"

_NOT_YET = (
    LookupError,
    OSError,
    ValueError,
    http.client.HTTPException,
    confluent_kafka.KafkaException,
)

T = TypeVar("T")


def main() -> int:
    """Run every check within one deadline; return the exit code."""
    deadline = Deadline(120)
    brokers = _until("three brokers answer", _three_brokers, deadline)
    record = _until("a committed record is read again", _produce_and_read, deadline)
    workers = _until("the Spark master has a worker", _workers, deadline)
    click.echo(f"compose: brokers {brokers}; read back {record!r}; Spark workers: {workers}")
    return 0


def _until(what: str, check: Callable[[], T], deadline: Deadline) -> T:
    """Repeat the check until it succeeds; the last failure is the cause when time is up."""
    while True:
        try:
            return check()
        except _NOT_YET as error:
            if deadline.expired():
                raise SystemExit(
                    f"error: the compose set does not do this: {what}\n"
                    f"  where:  {BOOTSTRAP}, {SPARK_MASTER}\n"
                    f"  cause:  {type(error).__name__}: {error}\n"
                    "  option: look at `docker/compose.sh logs`"
                ) from error
            deadline.pause(0.5)


def _three_brokers() -> list[int]:
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP, "log_level": 0})
    brokers = sorted(admin.list_topics(timeout=5).brokers)
    if brokers != [1, 2, 3]:
        raise LookupError(f"only brokers {brokers} are there")
    return brokers


def _produce_and_read() -> bytes:
    topic = f"check-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP, "log_level": 0})
    admin.create_topics([NewTopic(topic, num_partitions=3)])[topic].result(timeout=20)
    _produce(topic)
    try:
        return _read(topic)
    finally:
        admin.delete_topics([topic])[topic].result(timeout=20)


def _produce(topic: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": BOOTSTRAP, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"a record")
    producer.commit_transaction(20)


def _read(topic: str) -> bytes:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(3)])
        message = consumer.poll(20)
        if message is None or message.error() is not None:
            raise LookupError(f"no record was read: {message.error() if message else 'timeout'}")
        return bytes(message.value())
    finally:
        consumer.close()


def _workers() -> int:
    connection = http.client.HTTPConnection(SPARK_MASTER, timeout=5)
    try:
        connection.request("GET", "/json/")
        alive = int(json.load(connection.getresponse())["aliveworkers"])
    finally:
        connection.close()
    if alive == 0:
        raise LookupError("no worker has registered")
    return alive


if __name__ == "__main__":
    sys.exit(main())
