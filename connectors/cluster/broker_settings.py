"""The server.properties of an embedded broker: small, quick to start, strict like production."""

from __future__ import annotations

import contextlib
import fcntl
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Below the range from which Linux (32768 up) and macOS (49152 up) take ports for outgoing
# connections: so a port of ours stays free while its broker is down.
_FIRST_PORT = 20_000
_LAST_PORT = 32_000


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerAddress:
    """Where one broker, which is also a controller, listens on this machine."""

    node: int
    port: int
    controller_port: int

    @property
    def bootstrap(self) -> str:
        """Return host:port for clients."""
        return f"127.0.0.1:{self.port}"


def port_is_free(port: int) -> bool:
    """Return whether nothing listens on the port of 127.0.0.1 now."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        # as in Kafka: a connection in TIME_WAIT does not block the port
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_addresses(brokers: int, port: int | None) -> tuple[BrokerAddress, ...]:
    """Choose free ports; `port` fixes the client port of the first broker."""
    chosen: set[int] = set() if port is None else {port}
    addresses = []
    for node in range(1, brokers + 1):
        client = port if port is not None and node == 1 else _free_port(chosen)
        addresses.append(BrokerAddress(node=node, port=client, controller_port=_free_port(chosen)))
    return tuple(addresses)


def read_addresses(folder: Path) -> tuple[BrokerAddress, ...]:
    """Return the earlier addresses of the brokers in a data folder; none if the folder is new."""
    addresses = []
    for path in sorted(folder.glob("broker-*/server.properties")):
        listeners = re.search(
            r"^listeners=PLAINTEXT://[^:]+:(\d+),CONTROLLER://[^:]+:(\d+)$",
            path.read_text("utf-8"),
            re.MULTILINE,
        )
        node = path.parent.name.removeprefix("broker-")
        if listeners and node.isdigit():
            addresses.append(
                BrokerAddress(
                    node=int(node),
                    port=int(listeners.group(1)),
                    controller_port=int(listeners.group(2)),
                )
            )
    return tuple(addresses)


def is_locked(folder: Path) -> bool:
    """Return whether a broker runs on this folder: Kafka holds a lock in its data."""
    lock = folder / "data" / ".lock"
    if not lock.exists():
        return False
    with lock.open("r+") as stream:
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def broker_settings(
    address: BrokerAddress,
    everyone: Sequence[BrokerAddress],
    data: Path,
    overrides: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings of one broker of the cluster; `overrides` win."""
    replicas = len(everyone)
    in_sync = 2 if replicas > 2 else 1
    settings = {
        "node.id": str(address.node),
        # a client that names its rack (client.rack) reads from the broker there, leader or not
        "broker.rack": f"rack-{address.node}",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "process.roles": "broker,controller",
        "listeners": (
            f"PLAINTEXT://127.0.0.1:{address.port},CONTROLLER://127.0.0.1:{address.controller_port}"
        ),
        "advertised.listeners": f"PLAINTEXT://{address.bootstrap}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(
            f"{a.node}@127.0.0.1:{a.controller_port}" for a in everyone
        ),
        "log.dirs": str(data),
        # a mistyped topic must fail, as it does in most production clusters
        "auto.create.topics.enable": "false",
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "offsets.topic.num.partitions": "10",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "transaction.state.log.num.partitions": "10",
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        # threads and buffers for a laptop: the defaults take 128 MB for the log cleaner alone
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": "8388608",
        "log.index.size.max.bytes": "2097152",
        # a broker at rest takes 2.5 % of a core and not 4: it writes no record each half second
        "metadata.max.idle.interval.ms": "10000",
        # a killed broker is noticed in 3 s and not in 9
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",
    }
    return settings | dict(overrides)


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Write a Java properties file."""
    lines = [f"{key}={value}" for key, value in settings.items()]
    path.write_text("\n".join([*lines, ""]), "utf-8")


def _free_port(chosen: set[int]) -> int:
    span = _LAST_PORT - _FIRST_PORT
    # a random start, so that clusters that start together do not compete for one port
    start = secrets.randbelow(span)
    for step in range(span):
        port = _FIRST_PORT + (start + step) % span
        if port not in chosen and port_is_free(port):
            chosen.add(port)
            return port
    raise OSError(f"no free port between {_FIRST_PORT} and {_LAST_PORT}")
