"""The two kinds of broker behind the fixture `kafka_cluster`: embedded, and in a container."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.kafka.cluster.broker_settings import choose_addresses
from connectors.kafka.cluster.local_cluster import LocalCluster
from transactions.clock import Deadline

IMAGE = os.environ.get("SPARKONCE_TEST_IMAGE", "apache/kafka:4.1.0")
KINDS = {
    "embedded": ("embedded",),
    "testcontainers": ("testcontainers",),
    "both": ("embedded", "testcontainers"),
}


class Broker(Protocol):
    """What tests may ask of the shared broker, of whichever kind."""

    @property
    def bootstrap_servers(self) -> str: ...

    def create_topic(
        self, name: str, partitions: int = 1, *, config: Mapping[str, str] | None = None
    ) -> None: ...


def selected_kinds() -> tuple[str, ...]:
    selected = os.environ.get("SPARKONCE_TEST_BROKER", "embedded")
    if selected not in KINDS:
        raise ValueError(f"SPARKONCE_TEST_BROKER={selected}: one of {', '.join(KINDS)}")
    return KINDS[selected]


@contextmanager
def running_broker(kind: str) -> Iterator[Broker]:
    """Run a broker of this kind. One that cannot run raises: tests fail, they are not skipped."""
    if kind == "embedded":
        with LocalCluster() as cluster:
            yield cluster
    else:
        with container_broker() as broker:
            yield broker


class ContainerBroker:
    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def wait_until_ready(self, deadline: Deadline) -> None:
        while True:
            try:
                self._admin.list_topics(timeout=2.0)
            except KafkaException as error:
                if deadline.expired():
                    raise TimeoutError(f"{self.bootstrap_servers}: {error}") from error
                deadline.pause(0.1)
            else:
                return

    def create_topic(
        self, name: str, partitions: int = 1, *, config: Mapping[str, str] | None = None
    ) -> None:
        topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        self._admin.create_topics([topic])[name].result(timeout=30)
        deadline = Deadline(30.0)
        while True:
            known = self._admin.list_topics(name, timeout=5.0).topics[name]
            if known.error is None and all(p.leader >= 0 for p in known.partitions.values()):
                return
            if deadline.expired():
                raise TimeoutError(f"topic {name} has no leaders")
            deadline.pause(0.05)


@contextmanager
def container_broker(image: str = IMAGE) -> Iterator[ContainerBroker]:
    """One KRaft broker in a container, on a free port of the host that is bound one to one."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    if image.endswith(":local"):
        # Built here since no registry is reached: the reaper's image could not be pulled either.
        testcontainers_config.ryuk_disabled = True
    (address,) = choose_addresses(1, None)
    container = (
        DockerContainer(image)
        .with_bind_ports(address.port, address.port)
        .with_env("KAFKA_NODE_ID", "1")
        .with_env("KAFKA_PROCESS_ROLES", "broker,controller")
        .with_env(
            "KAFKA_LISTENERS", f"PLAINTEXT://0.0.0.0:{address.port},CONTROLLER://0.0.0.0:9093"
        )
        .with_env("KAFKA_ADVERTISED_LISTENERS", f"PLAINTEXT://127.0.0.1:{address.port}")
        .with_env(
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
        )
        .with_env("KAFKA_CONTROLLER_LISTENER_NAMES", "CONTROLLER")
        .with_env("KAFKA_INTER_BROKER_LISTENER_NAME", "PLAINTEXT")
        .with_env("KAFKA_CONTROLLER_QUORUM_VOTERS", "1@localhost:9093")
        .with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false")
        .with_env("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", "1")
        .with_env("KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS", "10")
        .with_env("KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR", "1")
        .with_env("KAFKA_TRANSACTION_STATE_LOG_MIN_ISR", "1")
        .with_env("KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS", "10")
        .with_env("KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR", "1")
        .with_env("KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR", "1")
        .with_env("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0")
    )
    with container:
        broker = ContainerBroker(address.bootstrap)
        try:
            broker.wait_until_ready(Deadline(90.0))
        except TimeoutError as error:
            out, err = container.get_logs()
            log = (out + err).decode("utf-8", "replace")[-3000:]
            raise TimeoutError(f"{image} did not come up: {error}\n{log}") from error
        yield broker
