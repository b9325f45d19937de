"""HDFS for tests: one name node and some data nodes, each a process of its own.

Apache publishes the servers as one jar (`hadoop-client-minicluster`). Its mini cluster would run
all of them inside one JVM; here the same classes run as they do on a cluster, so that a test can
kill one of them. `make hdfs` runs them until ctrl-C, to try a pipeline by hand.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from xml.sax.saxutils import escape

import click

from connectors.cluster.broker_settings import choose_addresses
from connectors.cluster.keeper_client import KeeperClient
from connectors.machine.java import ensure_java_home
from connectors.spark.spark_home import installed_home
from tests.pinned_test_jars import pinned_jars
from transactions.clock import Deadline

_CLIENT: Final = ("hadoop-client-*", "slf4j-api-*", "jcl-over-slf4j-*", "log4j-slf4j2-impl-*",
                  "log4j-api-*", "log4j-core-*")  # fmt: skip
_SERVER: Final = "org.apache.hadoop.hdfs.server"
_NAME_NODE: Final = f"{_SERVER}.namenode.NameNode"
_DATA_NODE: Final = f"{_SERVER}.datanode.DataNode"
_BEANS: Final = "Hadoop:service=NameNode,name="
_LOG: Final = """<Configuration><Appenders><Console name="c" target="SYSTEM_ERR"><PatternLayout
pattern="%d %p %c: %m%n%throwable"/></Console></Appenders><Loggers><Root level="info">
<AppenderRef ref="c"/></Root></Loggers></Configuration>"""
_START_S: Final = 120.0


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
        self._page = f"http://127.0.0.1:{second.port}/jmx?qry={_BEANS}"
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
        self._processes: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "log4j2.xml").write_text(_LOG)
        with contextlib.ExitStack() as started:
            self._keeper = KeeperClient()
            started.callback(self._keeper.close)
            self._start("format", _NAME_NODE, "-format", "-force", "-nonInteractive")
            assert self._ended("format") == 0, self.said("format")
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
        self._keeper.close()

    # --- its processes ------------------------------------------------------------------------

    def start_name_node(self) -> None:
        self._start("name", _NAME_NODE)

    def start_data_node(self, number: int) -> None:
        name = f"data-{number}"
        self._start(
            name, _DATA_NODE, place={"dfs.datanode.data.dir": f"file://{self._folder}/{name}"}
        )

    def kill(self, name: str) -> None:
        """SIGKILL ``name`` (the name node), or ``data-0``."""
        self._keeper.signal(self._processes[name], signal.SIGKILL)
        self._ended(name)

    def await_ready(self, data_nodes: int | None = None) -> None:
        """Wait until the name node accepts changes and knows its data nodes."""
        wanted = self._data_nodes if data_nodes is None else data_nodes
        deadline = Deadline(_START_S)
        while (state := self._bean("FSNamesystemState")) is None or (
            state["FSState"] != "Operational" or state["NumLiveDataNodes"] < wanted
        ):
            assert not deadline.expired(), f"{state}\n{self.said('name')}"
            deadline.pause(0.1)

    def shell(self, *arguments: object) -> str:
        """Run a command of Hadoop's file system shell; return what it prints."""
        command = self._command([self.conf_folder(), *_jars()], "org.apache.hadoop.fs.FsShell")
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def last_edit(self) -> int:
        """Return the number of the name node's last change."""
        state = self._bean("NameNodeInfo")
        assert state is not None
        return int(json.loads(state["JournalTransactionInfo"])["LastAppliedOrWrittenTxId"])

    def said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text("utf-8", "replace")[-4000:]

    def conf_folder(self, name: str = "conf", more: Mapping[str, str] | None = None) -> Path:
        """Return a folder for HADOOP_CONF_DIR, as an administrator gives it to clients."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        rows = "".join(
            f"<property><name>{key}</name><value>{escape(value)}</value></property>\n"
            for key, value in {**self._settings, **(more or {})}.items()
        )
        for file in ("core-site.xml", "hdfs-site.xml"):
            (folder / file).write_text(f"<configuration>\n{rows}</configuration>\n")
        return folder

    def _start(
        self, name: str, main: str, *arguments: str, place: Mapping[str, str] | None = None
    ) -> None:
        path = [self.conf_folder(f"conf-{name}", place), *_jars()]
        command = [*self._command(path, main), *arguments]
        self._processes[name] = self._keeper.start(command, self._folder / f"{name}.log")

    def _command(self, path: Sequence[Path], main: str) -> list[str]:
        return [
            str(Path(ensure_java_home(), "bin/java")),
            *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"),
            f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}",
            *("-cp", ":".join(map(str, path)), main),
        ]

    def _ended(self, name: str) -> int:
        deadline = Deadline(_START_S)
        while (code := self._keeper.exit_code(self._processes[name])) is None:
            assert not deadline.expired(), self.said(name)
            deadline.pause(0.05)
        return code

    def _bean(self, name: str) -> dict[str, Any] | None:
        """Return what the name node publishes; None if it does not answer."""
        try:
            with urllib.request.urlopen(f"{self._page}{name}", timeout=5) as answer:
                found = json.load(answer)["beans"]
        except OSError:
            return None
        return found[0] if found else None


def _jars() -> list[Path]:
    spark = installed_home() / "jars"
    client = (jar for name in _CLIENT for jar in sorted(spark.glob(f"{name}.jar")))
    return [*pinned_jars("hadoop-cluster"), *client]


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
