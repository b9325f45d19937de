"""YARN for tests: one resource manager and some node managers, each a process of its own.

It stores what applications bring along in HDFS (`tests.hdfs_cluster`), as clusters do.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from connectors.cluster.broker_settings import choose_addresses
from tests.hadoop_processes import START_S, HadoopProcesses
from tests.pinned_test_jars import pinned_jars
from transactions.clock import Deadline

_SERVER: Final = "org.apache.hadoop.yarn.server"
_RESOURCE_MANAGER: Final = f"{_SERVER}.resourcemanager.ResourceManager"
_NODE_MANAGER: Final = f"{_SERVER}.nodemanager.NodeManager"
_ADMIN: Final = "org.apache.hadoop.yarn.client.cli.RMAdminCLI"


class YarnCluster:
    """Runs while its block runs. Each node has an address of its own: 127.0.0.2, 127.0.0.3, ...

    Args:
        folder: for its data and the logs of its processes.
        file_system: the address of HDFS.
        nodes: how many node managers.
        node_memory_mb: what the containers of one node may have in all.
    """

    def __init__(
        self, folder: Path, file_system: str, *, nodes: int = 2, node_memory_mb: int = 6144
    ) -> None:
        self._folder = folder
        self._nodes = nodes
        self._excluded = folder / "excluded"
        ports = iter(f"127.0.0.1:{one.port}" for one in choose_addresses(5, None))
        of_manager = {
            f"yarn.resourcemanager.{name}": next(ports)
            for name in (
                *("address", "scheduler.address", "resource-tracker.address", "admin.address"),
                "webapp.address",
            )
        }
        self._page = f"http://{of_manager['yarn.resourcemanager.webapp.address']}"
        self._settings = {
            "fs.defaultFS": file_system,
            "yarn.resourcemanager.hostname": "127.0.0.1",
            **of_manager,
            # Not the small FifoScheduler: with it an application master of a node that is taken
            # out of service is never started again (a ClassCastException in the manager, 3.5.0).
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": "100",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
            "yarn.resourcemanager.am.max-attempts": "10",
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "10000",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.resourcemanager.nodes.exclude-path": str(self._excluded),
            "yarn.nodemanager.resource.memory-mb": str(node_memory_mb),
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            # How full the disk of this machine is does not matter here.
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.delete.debug-delay-sec": "3600",
        }

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            self._processes = HadoopProcesses(
                self._folder, self._settings, pinned_jars("bouncy-castle")
            )
            started.callback(self._processes.close)
            self._excluded.touch()
            self._processes.start("manager", _RESOURCE_MANAGER)
            for number in range(self._nodes):
                self.start_node(number)
            self.await_nodes(self._nodes)
            started.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._processes.close()
        finally:
            self._kill_containers(range(self._nodes))  # they are no children of ours

    def start_node(self, number: int) -> None:
        """Start a node manager, with a disk of its own."""
        name, host = f"node-{number}", _host(number)
        place = {
            "yarn.nodemanager.hostname": host,
            "yarn.nodemanager.address": f"{host}:{choose_addresses(1, None)[0].port}",
            "yarn.nodemanager.localizer.address": f"{host}:0",
            "yarn.nodemanager.webapp.address": f"{host}:0",
            "yarn.nodemanager.local-dirs": str(self.disk(number) / "local"),
            "yarn.nodemanager.log-dirs": str(self.disk(number) / "logs"),
        }
        self._processes.start(name, _NODE_MANAGER, place=place)

    def disk(self, number: int) -> Path:
        """Return where a node keeps files of its containers."""
        return self._folder / f"disk-{number}"

    def kill(self, name: str) -> None:
        """SIGKILL ``manager`` (the resource manager) or ``node-0``; its containers live on."""
        self._processes.kill(name)

    def lose_node(self, number: int) -> None:
        """SIGKILL a node with all of its containers, and take its disk away."""
        self.kill(f"node-{number}")
        self._kill_containers([number])
        shutil.rmtree(self.disk(number))

    def decommission(self, number: int, graceful_s: int | None = None) -> None:
        """Take a node out of service, as an administrator does; what runs on it may go on for the
        graceful time, and is killed at once without one.
        """
        with self._excluded.open("a") as file:
            file.write(f"{_host(number)}\n")
        grace = [] if graceful_s is None else ["-g", str(graceful_s), "-server"]
        name = f"decommission-{number}"
        self._processes.start(name, _ADMIN, "-refreshNodes", *grace)
        assert self._processes.ended(name) == 0, self.said(name)

    def nodes_of(self, program: str) -> list[int]:
        """Return the nodes that run this program in a container."""
        return [
            number
            for number in range(self._nodes)
            if any(program in one.info["cmdline"] for one in self.processes([number]))
        ]

    def node_of(self, program: str) -> int:
        """Return the only node that runs this program in a container."""
        (found,) = self.nodes_of(program)
        return found

    def the_process(self, program: str, number: int) -> psutil.Process:
        """Return the process of this program on a node."""
        (found,) = (one for one in self.processes([number]) if program in one.info["cmdline"])
        return found

    def ask_to_end(self, program: str) -> None:
        """SIGTERM, as a node does when it is drained."""
        self.the_process(program, self.node_of(program)).terminate()

    def processes(self, numbers: Iterable[int]) -> list[psutil.Process]:
        """Return the processes of the containers on these nodes, with command lines and states."""
        disks = [self.disk(one) for one in numbers]
        return [
            one
            for one in psutil.process_iter(["cwd", "cmdline", "status"], ad_value="")
            if any(Path(one.info["cwd"]).is_relative_to(disk) for disk in disks)
        ]

    def attempts(self, application: str) -> int:
        """Return how often the resource manager has started an application."""
        found = self.state(f"apps/{application}/appattempts")
        assert found is not None, self.said("manager")
        return len(found["appAttempts"]["appAttempt"])

    def end(self, application: str) -> None:
        """Do what `yarn application -kill` does."""
        request = urllib.request.Request(
            f"{self._page}/ws/v1/cluster/apps/{application}/state",
            method="PUT",
            data=b'{"state": "KILLED"}',
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=START_S):
            pass

    def _kill_containers(self, numbers: Sequence[int]) -> None:
        deadline = Deadline(START_S)
        while found := self.processes(numbers):
            assert not deadline.expired(), found
            for one in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            deadline.pause(0.05)

    def await_nodes(self, count: int) -> None:
        """Wait until the resource manager knows so many nodes that work."""
        deadline = Deadline(START_S)
        while (found := self.state("metrics")) is None or (
            found["clusterMetrics"]["activeNodes"] != count
        ):
            assert not deadline.expired(), f"{found}\n{self.said('manager')}"
            deadline.pause(0.1)

    def state(self, what: str) -> dict[str, Any] | None:
        """Return what the resource manager says: ``metrics``, ``apps``, ``apps/ID/appattempts``.

        None if it does not answer.
        """
        try:
            with urllib.request.urlopen(f"{self._page}/ws/v1/cluster/{what}", timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):  # its pages come after its port
            return None

    def said(self, name: str) -> str:
        """Return the end of the log of ``manager`` or ``node-0``."""
        return self._processes.said(name)

    def is_in_service(self, number: int) -> bool:
        """Return whether the resource manager starts containers on a node, or lets them go on."""
        found = self.state("nodes?states=RUNNING,DECOMMISSIONING")
        return found is None or any(
            one["nodeHostName"] == _host(number) for one in found["nodes"]["node"]
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of a machine from which applications are submitted."""
        return {**os.environ, "HADOOP_CONF_DIR": str(self._processes.conf_folder())}


def _host(number: int) -> str:
    return f"127.0.0.{number + 2}"
