"""An embedded cluster with a second door: clients that come through it meet the proxy's rules.

Every broker gets a further listener, PROXIED, whose *advertised* address is the proxy's. A client
that bootstraps at the proxy is therefore sent back to the proxy by every Metadata and
FindCoordinator answer, in all versions, without the proxy reading one of them. Brokers talk to
each other on their plain listener: the proxy can never come between a broker and itself. Workload
and auditor use the plain listener as well, so that only the system under test meets faults.
"""

from __future__ import annotations

from typing import Any

from connectors.cluster.broker_settings import choose_addresses
from connectors.cluster.local_cluster import LocalCluster
from tests.chaos.kafka_proxy import KafkaProxy


class ProxiedCluster(LocalCluster):
    """A `LocalCluster`; `proxied_servers` is the way through `proxy`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.proxy = KafkaProxy({})
        self.proxied_servers = ""

    def stop(self) -> None:
        """Stop the brokers, then the proxy."""
        super().stop()
        self.proxy.stop()

    def _write_settings(self) -> None:
        """Add the listener to what the cluster writes: of two lines of one key the last counts."""
        super()._write_settings()
        ours = {port for one in self.addresses for port in (one.port, one.controller_port)}
        doors = choose_addresses(len(self.addresses), None)
        while ours & {port for door in doors for port in (door.port, door.controller_port)}:
            doors = choose_addresses(len(self.addresses), None)
        for address, door in zip(self.addresses, doors, strict=True):
            plain = f"PLAINTEXT://{address.bootstrap}"
            settings = {
                "listeners": f"{plain},CONTROLLER://127.0.0.1:{address.controller_port},"
                f"PROXIED://127.0.0.1:{door.controller_port}",
                "advertised.listeners": f"{plain},PROXIED://{door.bootstrap}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "PROXIED:PLAINTEXT",
            }
            path = self.directory / f"broker-{address.node}" / "server.properties"
            with path.open("a", encoding="utf-8") as stream:
                stream.writelines(f"{key}={value}\n" for key, value in settings.items())
        self.proxied_servers = ",".join(door.bootstrap for door in doors)
        self.proxy = KafkaProxy({door.port: door.controller_port for door in doors}).start()
