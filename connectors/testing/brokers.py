"""The kinds of broker for a test: embedded, in a container, or one that already runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.clients.topic_leaders import has_leaders
from connectors.cluster.local_cluster import LocalCluster
from connectors.testing.containers import IMAGE, running_containers
from transactions.clock import Deadline
from transactions.errors import ConfigurationError

EMBEDDED = "embedded"
TESTCONTAINERS = "testcontainers"
_READY_SECONDS = 90.0
_TOPIC_SECONDS = 30.0


class Broker(Protocol):
    """What tests may use of the shared broker, whatever its kind."""

    @property
    def bootstrap_servers(self) -> str:
        """Return host:port of every broker, separated by commas."""

    def create_topic(
        self, name: str, partitions: int = 1, *, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic; return when every partition has a leader."""


@contextmanager
def running_broker(kind: str = EMBEDDED, *, brokers: int = 1) -> Iterator[Broker]:
    """Run a broker of this kind. If it cannot run, raise: tests fail, they are not skipped.

    Args:
        kind: ``embedded``, ``testcontainers``, or ``host:port`` of a running one.
        brokers: number of nodes, 1 or 3; ignored for a running one.
    """
    if kind == EMBEDDED:
        with LocalCluster(brokers=brokers) as cluster:
            yield cluster
    elif kind == TESTCONTAINERS:
        with _in_containers(brokers) as broker:
            yield broker
    elif ":" in kind:
        running = RunningBroker(kind)
        running.wait_until_ready(Deadline(_TOPIC_SECONDS))
        yield running
    else:
        raise ConfigurationError(
            "There is no such kind of broker.",
            cause=f"known: {EMBEDDED}, {TESTCONTAINERS}, host:port of one that runs",
            option=f"sparkonce_broker={kind}",
        )


class RunningBroker:
    """A broker that somebody else starts and stops."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def wait_until_ready(self, deadline: Deadline, brokers: int = 1) -> None:
        """Wait until it answers, and knows this many brokers.

        Raises:
            TimeoutError: it does not in time.
        """
        while True:
            try:
                known = len(self._admin.list_topics(timeout=2.0).brokers)
                state = f"{known} of {brokers} brokers"
                if known >= brokers:
                    return
            except KafkaException as error:
                state = str(error)
            if deadline.expired():
                raise TimeoutError(f"{self.bootstrap_servers}: {state}")
            deadline.pause(0.1)

    def create_topic(
        self, name: str, partitions: int = 1, *, config: Mapping[str, str] | None = None
    ) -> None:
        """See `Broker.create_topic`."""
        topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        self._admin.create_topics([topic])[name].result(timeout=_TOPIC_SECONDS)
        deadline = Deadline(_TOPIC_SECONDS)
        while not has_leaders(self._admin, name, partitions):
            if deadline.expired():
                raise TimeoutError(f"topic {name} has no leaders")
            deadline.pause(0.05)


@contextmanager
def _in_containers(brokers: int) -> Iterator[RunningBroker]:
    with running_containers(brokers) as (bootstrap_servers, nodes):
        broker = RunningBroker(bootstrap_servers)
        try:
            broker.wait_until_ready(Deadline(_READY_SECONDS), brokers)
        except TimeoutError as error:
            logs = [b"".join(node.get_logs()).decode("utf-8", "replace")[-3000:] for node in nodes]
            raise TimeoutError(f"{IMAGE} did not come up: {error}\n" + "\n".join(logs)) from error
        yield broker
