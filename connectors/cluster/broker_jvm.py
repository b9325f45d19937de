"""Starts the JVM of an embedded broker: small, and quick to come up.

Half of a broker's start is the loading and checking of classes. The JVM can keep them in an archive
(class data sharing): the first broker that is stopped in order writes one beside the jars, and
later brokers map it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

_COMMON = ("-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:cds=off")


class BrokerJvm:
    """Builds the command lines for one Java and one set of jars.

    Args:
        java_home: the Java that runs it.
        jars: the class path.
        broker_options: further JVM options of a broker; they win over ours.
    """

    def __init__(
        self, java_home: str, jars: Sequence[Path], broker_options: Sequence[str] = ()
    ) -> None:
        self._java = Path(java_home) / "bin" / "java"
        self._class_path = ":".join(str(jar) for jar in jars)
        self._archive = _archive_path(Path(java_home), jars)
        self._broker_options = tuple(broker_options)
        self._learning: Path | None = None

    @property
    def learning(self) -> bool:
        """Return whether a started broker will write the archive when it stops."""
        return self._learning is not None

    def format_command(self, settings: Path, cluster_id: str) -> list[str]:
        """Return the command that formats the storage of one broker."""
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings)]
        return [*self._java_command("128m"), *tool]

    def broker_command(self, settings: Path, *, learn: bool) -> list[str]:
        """Return the command that runs one broker; with `learn`, it may write the archive."""
        options: list[str] = []
        if learn and not self._archive.exists() and self._learning is None:
            self._learning = self._archive.with_suffix(f".{os.getpid()}.tmp")
            options = [f"-XX:ArchiveClassesAtExit={self._learning}"]
        options += self._broker_options
        return [*self._java_command("512m", *options), "kafka.Kafka", str(settings)]

    def keep_what_was_learnt(self) -> None:
        """Publish the archive of a broker that has ended, in one step."""
        if self._learning is not None:
            with contextlib.suppress(OSError):
                self._learning.replace(self._archive)
            self._learning = None

    def _java_command(self, heap: str, *options: str) -> list[str]:
        shared = [f"-XX:SharedArchiveFile={self._archive}"] if self._archive.exists() else []
        return [
            str(self._java),
            f"-Xmx{heap}",
            *_COMMON,
            *shared,
            *options,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            # at every start its thousand lines would hide the important ones
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
            "-Djava.awt.headless=true",
            "-cp",
            self._class_path,
        ]


def log_tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a broker's log, indented for the text of an error."""
    try:
        with log.open(encoding="utf-8", errors="replace") as stream:
            return "".join("    " + line for line in deque(stream, lines)).rstrip()
    except OSError as error:
        return f"    (no log: {error})"


def _archive_path(java_home: Path, jars: Sequence[Path]) -> Path:
    release = java_home / "release"
    version = release.read_bytes() if release.is_file() else b""
    digest = hashlib.sha256(str(java_home.resolve()).encode() + version).hexdigest()[:12]
    return jars[0].parent.with_name(f"{jars[0].parent.name}-{digest}.jsa")
