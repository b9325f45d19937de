"""HDFS for tests: one name node and some data nodes, each a process of its own.

`make hdfs` runs them until ctrl-C, to try a pipeline by hand.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import click

from connectors.cluster.broker_settings import choose_addresses
from tests.hadoop_processes import START_S, HadoopProcesses, bean
from transactions.clock import Deadline

_SERVER: Final = "org.apache.hadoop.hdfs.server"
_NAME_NODE: Final = f"{_SERVER}.namenode.NameNode"
_DATA_NODE: Final = f"{_SERVER}.datanode.DataNode"
_STATE: Final = "Hadoop:service=NameNode,name=FSNamesystemState"
_INFO: Final = "Hadoop:service=NameNode,name=NameNodeInfo"


class HdfsCluster:
    """Runs while its block runs.

    Attributes:
        address: of the file system: ``hdfs://127.0.0.1:PORT``.

    Args:
        folder: for its data and the logs of its processes.
        data_nodes: how many.
        settings: Hadoop's properties, in addition to those of the test.
        port: of the name node; a free one by default.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data_nodes: int = 1,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        self._folder = folder
        self._data_nodes = data_nodes
        first, second = choose_addresses(2, port)
        self.address = f"hdfs://127.0.0.1:{first.port}"
        self._page = f"http://127.0.0.1:{second.port}"
        self._settings = {
            "fs.defaultFS": self.address,
            "dfs.replication": str(data_nodes),
            "dfs.namenode.name.dir": f"file://{folder}/name",
            "dfs.namenode.http-address": f"127.0.0.1:{second.port}",
            "dfs.namenode.safemode.extension": "0",
            "dfs.datanode.address": "127.0.0.1:0",
            "dfs.datanode.http.address": "127.0.0.1:0",
            "dfs.datanode.ipc.address": "127.0.0.1:0",
            "dfs.heartbeat.interval": "1",
            **(settings or {}),
        }

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            self._processes = HadoopProcesses(self._folder, self._settings)
            started.callback(self._processes.close)
            self._processes.start("format", _NAME_NODE, "-format", "-force", "-nonInteractive")
            assert self._processes.ended("format") == 0, self.said("format")
            self.start_name_node()
            for number in range(self._data_nodes):
                self.start_data_node(number)
            self.await_ready()
            started.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._processes.close()

    # --- its processes ------------------------------------------------------------------------

    def start_name_node(self) -> None:
        self._processes.start("name", _NAME_NODE)

    def start_data_node(self, number: int) -> None:
        name = f"data-{number}"
        self._processes.start(
            name, _DATA_NODE, place={"dfs.datanode.data.dir": f"file://{self._folder}/{name}"}
        )

    def kill(self, name: str) -> None:
        """SIGKILL ``name`` (the name node), or ``data-0``."""
        self._processes.kill(name)

    def await_ready(self, data_nodes: int | None = None) -> None:
        """Wait until the name node accepts changes and knows its data nodes."""
        wanted = self._data_nodes if data_nodes is None else data_nodes
        deadline = Deadline(START_S)
        while (state := bean(self._page, _STATE)) is None or (
            state["FSState"] != "Operational" or state["NumLiveDataNodes"] < wanted
        ):
            assert not deadline.expired(), f"{state}\n{self.said('name')}"
            deadline.pause(0.1)

    def shell(self, *arguments: object) -> str:
        """Run a command of Hadoop's file system shell; return what it prints."""
        command = [*self._processes.java(self.conf_folder()), "org.apache.hadoop.fs.FsShell"]
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def last_edit(self) -> int:
        """Return the number of the name node's last change."""
        state = bean(self._page, _INFO)
        assert state is not None
        return int(json.loads(state["JournalTransactionInfo"])["LastAppliedOrWrittenTxId"])

    def said(self, name: str) -> str:
        """Return the end of the log of ``name`` or ``data-0``."""
        return self._processes.said(name)

    def conf_folder(self) -> Path:
        """Return a folder for HADOOP_CONF_DIR, as an administrator gives it to clients."""
        return self._processes.conf_folder()


@click.command()
@click.option("--port", type=int, help="Of the name node.  [default: a free one]")
@click.option("--data-nodes", default=1, show_default=True)
def main(port: int | None, data_nodes: int) -> None:
    """Run HDFS until ctrl-C or SIGTERM, and print its address; its data ends with it."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="sparkonce-hdfs-") as folder:
        click.echo("starting HDFS", err=True)
        with HdfsCluster(Path(folder), data_nodes=data_nodes, port=port) as hdfs:
            click.echo(hdfs.address)
            stop.wait()


if __name__ == "__main__":
    main()
