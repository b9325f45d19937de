"""Makes, watches and removes the demo's topics, and damages them on request."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from connectors.clients.client_log import log_settings
from connectors.clients.client_settings import admin_client, librdkafka_settings
from connectors.clients.topic_leaders import has_leaders
from connectors.demo.demo_reader import read_committed
from connectors.operations.bounded_scan import TopicEnds
from connectors.wire.coordinator_wire import CoordinatorWire
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import BrokerUnavailableError, SparkOnceError

PARTITIONS: Final = 2
SABOTAGES: Final = ("duplicate", "loss")

_ASK_S: Final = 30.0


class DemoTopics:
    """The topics of one run on one cluster.

    Args:
        bootstrap: brokers.
        names: topics to make; nobody else may use them.
    """

    def __init__(self, bootstrap: str, names: Sequence[str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._bootstrap = bootstrap
        self._names = tuple(names)
        self._clock = clock
        self._kafka = {"bootstrap.servers": bootstrap}
        self._admin = admin_client(self._kafka)
        self._ends = TopicEnds(self._kafka)

    def create(self) -> None:
        """Make the topics, and wait until every partition has a leader.

        Raises:
            BrokerUnavailableError: the brokers refused, or did not answer.
        """
        new = [NewTopic(name, num_partitions=PARTITIONS) for name in self._names]
        try:
            for made in self._admin.create_topics(new, request_timeout=_ASK_S).values():
                made.result()
        except KafkaException as error:
            raise BrokerUnavailableError(
                "The demo's topics could not be created.",
                where=", ".join(self._names),
                cause=str(error.args[0]),
                option=f"--bootstrap={self._bootstrap}",
            ) from error
        deadline = Deadline(_ASK_S, self._clock)
        while not self._have_leaders() and not deadline.expired():
            deadline.pause(0.1)

    def remove(self, group: str) -> None:
        """Delete the topics and the application's group; best effort, because the run is over."""
        with contextlib.suppress(KafkaException):
            for done in self._admin.delete_topics(list(self._names)).values():
                done.result()
        with contextlib.suppress(KafkaException):
            for done in self._admin.delete_consumer_groups([group]).values():
                done.result()

    def is_consumed(self, group: str, topic: str) -> bool:
        """Return whether the group's committed offsets have reached the ends of the topic."""
        ends = self._ends.committed([topic], Deadline(_ASK_S, self._clock))
        names = [item.name for item in ends]
        try:
            with CoordinatorWire(self._kafka) as wire:
                found = wire.read_markers(group, names, Deadline(_ASK_S), stable=False)
        except SparkOnceError:
            return False  # the coordinator moves; the caller asks again
        return all(item.name in found and found[item.name][0] >= item.end for item in ends)

    def sabotage(self, how: str, topic: str) -> None:
        """Damage the output, to show that the proof can fail.

        Args:
            how: ``duplicate`` writes one record again, ``loss`` deletes the first of a partition.
            topic: the output.
        """
        if how == "duplicate":
            key, value = next(iter(read_committed(self._bootstrap, topic)))
            producer = Producer(log_settings() | librdkafka_settings(self._kafka))
            producer.produce(topic, value, key)
            producer.flush(_ASK_S)
            return
        first = self._ends.committed([topic], Deadline(_ASK_S, self._clock))[0]
        cut = TopicPartition(topic, first.partition, first.begin + 1)
        for done in self._admin.delete_records([cut]).values():
            done.result()

    def _have_leaders(self) -> bool:
        return all(has_leaders(self._admin, name) for name in self._names)
