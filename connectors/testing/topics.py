"""Topics of one test: names that no other test has, and records in them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from connectors.testing.auditor.reader import Record, read_committed
from connectors.testing.brokers import Broker

_FLUSH_SECONDS = 60.0

Content = bytes | str | None
Entry = Content | tuple[Content, Content]
"""What is produced: a value, or key and value."""


class Topic(str):
    """The name of an existing topic, with two methods; usable like any name."""

    __slots__ = ("bootstrap_servers", "partitions")

    bootstrap_servers: str
    partitions: int

    def produce(self, entries: Iterable[Entry]) -> None:
        """Append records with a plain producer; without a key, partitions take turns.

        Args:
            entries: values, or pairs of key and value.
        """
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5})
        refused: list[str] = []

        def on_delivery(error: object, _message: object) -> None:
            if error is not None:
                refused.append(str(error))

        for number, entry in enumerate(entries):
            key, value = entry if isinstance(entry, tuple) else (None, entry)
            place = {"partition": number % self.partitions} if key is None else {}
            producer.produce(str(self), value, key, on_delivery=on_delivery, **place)
            producer.poll(0)
        left = producer.flush(_FLUSH_SECONDS)
        if left or refused:
            raise AssertionError(f"{self}: {left} records not sent, refused: {refused[:3]}")

    def records(self, *, timeout: float = 30.0) -> list[Record]:
        """Return what a read_committed reader sees; see `auditor.reader.read_committed`."""
        return read_committed(self.bootstrap_servers, str(self), timeout=timeout)


class TopicFactory:
    """Makes topics: ``topics("flights", partitions=2, retention_ms=1000)``.

    Args:
        broker: the broker for the topics.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._made: list[str] = []

    def __call__(
        self, name: str = "t", partitions: int = 1, *, unique: bool = True, **config: str
    ) -> Topic:
        """Create a topic and return its name.

        Args:
            name: its name, or the beginning of its name.
            partitions: number of partitions.
            unique: append a part that no other test has.
            config: settings of the topic, with _ for the dots. Nothing expires by default:
                otherwise records with old timestamps would be gone when the broker checks (seen).
        """
        full = f"{name}-{uuid.uuid4().hex[:10]}" if unique else name
        settings = {"retention.ms": "-1"} | {
            key.replace("_", "."): value for key, value in config.items()
        }
        self._broker.create_topic(full, partitions, config=settings)
        self._made.append(full)
        made = Topic(full)
        made.bootstrap_servers = self._broker.bootstrap_servers
        made.partitions = partitions
        return made

    def delete_all(self) -> None:
        """Delete the created topics; for brokers that outlive the tests."""
        if self._made:
            admin = AdminClient({"bootstrap.servers": self._broker.bootstrap_servers})
            for deleted in admin.delete_topics(self._made).values():
                deleted.result(timeout=_FLUSH_SECONDS)
            self._made.clear()
