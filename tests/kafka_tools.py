"""Kafka's own commands, as an operator runs them: the classes behind `kafka-*.sh`, on the jars of
the embedded broker.

    kafka_command("tools.TransactionsCommand", "--bootstrap-server", servers, "list")
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from connectors.cluster.broker_jars import ensure_broker_jars
from connectors.machine.java import ensure_java_home
from tests.pinned_test_jars import pinned_jars

_MOST_SECONDS = 120


def kafka_command(name: str, *arguments: str) -> list[str]:
    """Run a command; return the lines of its stdout.

    Args:
        name: of its class, below ``org.apache.kafka``.
        arguments: of the command.
    """
    java_home = ensure_java_home()
    jars = (*pinned_jars("kafka-tools"), *ensure_broker_jars(java_home))
    path = os.pathsep.join(map(str, jars))
    java = [str(Path(java_home, "bin/java")), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    done = subprocess.run(
        [*java, quiet, "-cp", path, f"org.apache.kafka.{name}", *arguments],
        capture_output=True,
        text=True,
        timeout=_MOST_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
