"""Servers of Hadoop for tests, each a process of its own, as on a cluster.

Apache publishes the servers as one jar (`hadoop-client-minicluster`). Its mini clusters would run
all of them inside one JVM; processes can be killed one by one.
"""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from connectors.cluster.keeper_client import KeeperClient
from connectors.machine.java import ensure_java_home
from connectors.spark.spark_home import installed_home
from tests.pinned_test_jars import pinned_jars
from transactions.clock import Deadline

_CLIENT: Final = ("hadoop-client-*", "slf4j-api-*", "jcl-over-slf4j-*", "log4j-slf4j2-impl-*",
                  "log4j-1.2-api-*", "log4j-api-*", "log4j-core-*")  # fmt: skip
_FILES: Final = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
_LOG: Final = """<Configuration><Appenders><Console name="c" target="SYSTEM_ERR"><PatternLayout
pattern="%d %p %c: %m%n%throwable"/></Console></Appenders><Loggers><Root level="info">
<AppenderRef ref="c"/></Root></Loggers></Configuration>"""
#: How long a server may take to start, and a command to end.
START_S: Final = 120.0


class HadoopProcesses:
    """The processes of one cluster; they end with this one, however it ends.

    Args:
        folder: for their settings, logs and temporary files.
        settings: Hadoop's properties.
        jars: that their servers need beside Hadoop's.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, str], jars: Sequence[Path] = ()
    ) -> None:
        self._folder = folder
        self._jars = [*_hadoop(), *jars]
        self._settings = dict(settings)
        self._pids: dict[str, int] = {}
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.xml").write_text(_LOG)
        self._keeper = KeeperClient()

    def close(self) -> None:
        """End all of them."""
        self._keeper.close()

    def start(
        self, name: str, main: str, *arguments: str, place: Mapping[str, str] | None = None
    ) -> None:
        """Start a server under a name of the test, with properties of its own."""
        command = [*self.java(self.conf_folder(f"conf-{name}", place)), main, *arguments]
        self._pids[name] = self._keeper.start(command, self._folder / f"{name}.log")

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._keeper.signal(self._pids[name], signal.SIGKILL)
        self.ended(name)

    def ended(self, name: str) -> int:
        """Wait until a process has ended; return its exit code."""
        deadline = Deadline(START_S)
        while (code := self._keeper.exit_code(self._pids[name])) is None:
            assert not deadline.expired(), self.said(name)
            deadline.pause(0.05)
        return code

    def said(self, name: str) -> str:
        """Return the end of the log of a process."""
        return (self._folder / f"{name}.log").read_text("utf-8", "replace")[-4000:]

    def conf_folder(self, name: str = "conf", more: Mapping[str, str] | None = None) -> Path:
        """Return a folder for HADOOP_CONF_DIR, as an administrator gives it to clients."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        rows = "".join(
            f"<property><name>{key}</name><value>{escape(value)}</value></property>\n"
            for key, value in {**self._settings, **(more or {})}.items()
        )
        for file in _FILES:
            (folder / file).write_text(f"<configuration>\n{rows}</configuration>\n")
        return folder

    def java(self, conf: Path) -> Sequence[str]:
        """Return the command of a JVM with Hadoop's classes, without the main class."""
        return [
            str(Path(ensure_java_home(), "bin/java")),
            *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"),
            f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}",
            f"-Djava.io.tmpdir={self._folder / 'tmp'}",  # a web server leaves a folder if killed
            *("-cp", ":".join(map(str, [conf, *self._jars]))),
        ]


def bean(page: str, name: str) -> dict[str, Any] | None:
    """Return what a server publishes under this name; None if it does not answer.

    Args:
        page: ``http://host:port`` of its web server.
        name: of a bean of Java's JMX.
    """
    try:
        with urllib.request.urlopen(f"{page}/jmx?qry={name}", timeout=5) as answer:
            found = json.load(answer)["beans"]
    except OSError:
        return None
    return found[0] if found else None


def _hadoop() -> list[Path]:
    spark = installed_home() / "jars"
    client = (jar for name in _CLIENT for jar in sorted(spark.glob(f"{name}.jar")))
    return [*pinned_jars("hadoop-cluster"), *client]
