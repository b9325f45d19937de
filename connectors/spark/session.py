"""The Spark session that a pipeline runs in, and the settings the guarantee needs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from connectors.machine.java import ensure_java_home
from connectors.spark import spark_home, worker_daemon
from connectors.spark.archived_classes import OPTIONS_KEY, class_archive_conf
from connectors.spark.driver_jvm import ensure_jvm, quiet_log_options
from connectors.spark.local_file_system import local_file_system_conf
from transactions.errors import ConfigurationError

#: Settings that can be changed on a running session; the driver sets them before it starts.
RUNTIME_CONF: Mapping[str, str] = {
    # AQE changes the number of sink tasks with the data, and a replay must find the same ones.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # A replay rewrites state; format 2 names the version that counts in commits/N.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # An empty batch would be a checkpoint for nothing.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}

_LOCAL_CHECKPOINT_CONF: Mapping[str, str] = {
    # Hadoop's FileContext starts chmod and stat as processes for every log entry when its native
    # library is missing (200 ms a batch, measured). FileSystem does not. What FileContext adds,
    # a rename that refuses to overwrite, is what our Fence already guarantees.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}

_EXECUTORS_COME_S = 30
#: No clock jumps further ahead, not even one that begins in 1970.
_CENTURY_MS = 100 * 365 * 86_400_000

#: Java's second compiler works on what ran ten times as often as by its own defaults: while Spark
#: starts, it took a third of the CPU for code that hardly ran again (measured on two cores).
_LATE_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)


def build_session(
    name: str, *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session for a pipeline: Java found or installed, this Python for the workers.

    Args:
        name: shown by Spark.
        master: Spark's master URL.
        conf: further Spark settings; they win.

    Raises:
        ConfigurationError: no Java 17 or newer could be found or installed.
    """
    java_home = ensure_java_home()
    os.environ["JAVA_HOME"] = java_home
    os.environ["PYSPARK_PYTHON"] = worker_python(master, os.environ)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(name).master(master)
    settings = {**default_settings(master), **(conf or {})}
    given = settings.get(OPTIONS_KEY, "")
    quiet = quiet_log_options(f"{given} {settings.get('spark.driver.extraJavaOptions', '')}")
    settings[OPTIONS_KEY] = " ".join(filter(None, (quiet, _LATE_COMPILER, given)))
    if _is_local(master):
        # Executors of a cluster would not have the jar.
        settings |= local_file_system_conf(java_home, settings)
    settings |= class_archive_conf(java_home, settings)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with spark_home.local_home() if _is_local(master) else contextlib.nullcontext():
        ensure_jvm({"spark.master": master, "spark.app.name": name, **settings})
        return builder.getOrCreate()


def default_settings(master: str) -> dict[str, str]:
    """Return the settings of a session that its user's own replace."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # Small answers wait up to 40 ms on a TCP socket to a Python worker (Nagle, measured).
        "spark.python.unix.domain.socket.enabled": "true",
        # A continuous stage that has too few slots fails soon, not after ten minutes: at once
        # where their number is fixed, else when executors have had the time to come (Spark does
        # not wait for them at its start, and replaces one that died within seconds).
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": (
            "1" if _is_local(master) else str(_EXECUTORS_COME_S)
        ),
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        **RUNTIME_CONF,
    }
    if _is_local(master):
        # Nobody else talks to it. Executors of a cluster must reach the driver from their hosts.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # The only executor is this JVM. Spark measures its silence by the wall clock: when that
        # jumps ahead (a laptop wakes up) it gives the executor up, and the job waits for ever.
        settings["spark.storage.blockManagerHeartbeatTimeoutMs"] = str(_CENTURY_MS)
        # Executors of a cluster may have us by --py-files, which their daemon does not see.
        settings |= {"spark.python.daemon.module": worker_daemon.MODULE}
    return settings


def worker_python(master: str, environment: Mapping[str, str]) -> str:
    """Return the Python of the workers: this one, as Spark would take `python3` from PATH.

    On a cluster the variable PYSPARK_PYTHON wins: hosts may keep theirs at another path.
    """
    named = "" if _is_local(master) else environment.get("PYSPARK_PYTHON", "")
    return named or sys.executable


def _is_local(master: str) -> bool:
    return master.startswith("local")


def prepare_session(spark: SparkSession, *, local_checkpoint: bool) -> None:
    """Set what the guarantee needs on a session that the user brought.

    Raises:
        ConfigurationError: the session cannot carry the guarantee.
    """
    refuse_connect(spark)
    wanted = {**RUNTIME_CONF, **(_LOCAL_CHECKPOINT_CONF if local_checkpoint else {})}
    for key, value in wanted.items():
        spark.conf.set(key, value)


def refuse_connect(spark: SparkSession) -> None:
    """Check that the session has its driver in this process.

    Raises:
        ConfigurationError: it is a Spark Connect session.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigurationError(
            "A Spark Connect session cannot run this driver.",
            cause="foreachBatch runs in another process there, without the decision log, and "
            "barrier stages do not exist",
            option="master: use a classic session",
        )
