"""Kafka in containers, by testcontainers: one KRaft node or three, on free ports."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from connectors.cluster.broker_settings import BrokerAddress, choose_addresses
from transactions.errors import ConfigurationError

#: A tag ``:local`` means that the image was built here; then no registry is used.
IMAGE = os.environ.get("SPARKONCE_TEST_IMAGE", "apache/kafka:4.1.0")
_CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"


@contextmanager
def running_containers(brokers: int, image: str = IMAGE) -> Iterator[tuple[str, Sequence[Any]]]:
    """Run the nodes; yield their bootstrap addresses and the containers, for their logs.

    Client ports are bound one to one, so a broker's advertised address is also right outside.

    Raises:
        ConfigurationError: testcontainers is not installed.
    """
    try:
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.network import Network
    except ImportError as error:
        raise ConfigurationError(
            "testcontainers is not installed.",
            cause=str(error),
            option="sparkonce_broker=testcontainers: pip install '.[testing]' in a clone of "
            "sparkonce",
        ) from error
    if image.endswith(":local"):
        # The reaper's image could not be pulled either.
        testcontainers_config.ryuk_disabled = True
    addresses = choose_addresses(brokers, None)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network()) if brokers > 1 else None
        nodes = [
            stack.enter_context(_node(image, address, brokers, network)) for address in addresses
        ]
        yield ",".join(address.bootstrap for address in addresses), nodes


def _node(image: str, address: BrokerAddress, brokers: int, network: Any) -> Any:
    from testcontainers.core.container import DockerContainer

    node = DockerContainer(image).with_bind_ports(address.port, address.port)
    if network is not None:
        node = node.with_network(network).with_network_aliases(_name(address.node))
    for name, value in _settings(address, brokers).items():
        node = node.with_env(f"KAFKA_{name}", value)
    return node.with_env("CLUSTER_ID", _CLUSTER_ID)


def _settings(address: BrokerAddress, brokers: int) -> dict[str, str]:
    """Return the settings of one node, with the names of the image's environment."""
    inside = _name(address.node) if brokers > 1 else "localhost"
    voters = [f"{n}@{_name(n) if brokers > 1 else inside}:9093" for n in range(1, brokers + 1)]
    replicas, in_sync = str(brokers), str(min(2, brokers))
    return {
        "NODE_ID": str(address.node),
        "HEAP_OPTS": "-Xmx512m",
        "PROCESS_ROLES": "broker,controller",
        "LISTENERS": f"HOST://0.0.0.0:{address.port},INSIDE://:9092,CONTROLLER://:9093",
        "ADVERTISED_LISTENERS": f"HOST://127.0.0.1:{address.port},INSIDE://{inside}:9092",
        "LISTENER_SECURITY_PROTOCOL_MAP": ("HOST:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"),
        "CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "INTER_BROKER_LISTENER_NAME": "INSIDE",
        "CONTROLLER_QUORUM_VOTERS": ",".join(voters),
        "AUTO_CREATE_TOPICS_ENABLE": "false",
        "DEFAULT_REPLICATION_FACTOR": replicas,
        "MIN_INSYNC_REPLICAS": in_sync,
        "OFFSETS_TOPIC_REPLICATION_FACTOR": replicas,
        "OFFSETS_TOPIC_NUM_PARTITIONS": "10",
        "TRANSACTION_STATE_LOG_REPLICATION_FACTOR": replicas,
        "TRANSACTION_STATE_LOG_MIN_ISR": in_sync,
        "TRANSACTION_STATE_LOG_NUM_PARTITIONS": "10",
        "SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": replicas,
        "SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": in_sync,
        "GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }


def _name(node: int) -> str:
    return f"kafka-{node}"
