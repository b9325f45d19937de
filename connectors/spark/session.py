"""The Spark session that a pipeline runs in, and the settings the guarantee needs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from connectors.machine.java import ensure_java_home
from connectors.options.table import CONTINUOUS
from connectors.spark import spark_home, worker_daemon
from connectors.spark.archived_classes import OPTIONS_KEY, class_archive_conf
from connectors.spark.driver_jvm import ensure_jvm, jvm_environment, quiet_log_options
from connectors.spark.import_path import check_ours_are_found, ours_first
from connectors.spark.local_file_system import local_file_system_conf
from connectors.spark.py4j_log import hide_arguments
from connectors.spark.submitted import given_settings, is_in_cluster, is_submitted
from transactions.errors import ConfigurationError

logger = logging.getLogger("sparkonce.session")

#: Settings that can change on a running session; the driver sets them before it starts.
RUNTIME_CONF: Mapping[str, str] = {
    # AQE changes the number of sink tasks with the data, and a replay needs the same tasks.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # A replay rewrites state; format 2 names the valid version in commits/N.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # An empty batch would be a useless checkpoint.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}

_LOCAL_CHECKPOINT_CONF: Mapping[str, str] = {
    # If its native library is missing, Hadoop's FileContext starts chmod and stat processes for
    # every log entry (200 ms a batch, measured). FileSystem does not. FileContext adds a rename
    # that refuses to overwrite; our Fence already guarantees that.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}

#: Only a JVM that starts can take them.
_FOR_NEW_JVM: frozenset[str] = frozenset(
    {
        "spark.driver.memory",
        "spark.driver.memoryOverhead",
        "spark.driver.defaultJavaOptions",
        "spark.driver.extraJavaOptions",
        "spark.driver.extraClassPath",
        "spark.driver.extraLibraryPath",
        "spark.jars.packages",
        "spark.jars.repositories",
    }
)
#: All drivers of pipelines: they and what they import take 0.7 s.
_DRIVERS = "connectors.spark.pipeline"
_EXECUTORS_COME_S = 30
_MASTER = "spark.master"
_ALL_CORES = "local[*]"
#: No clock jumps further than this, not even one that begins in 1970.
_CENTURY_MS = 100 * 365 * 86_400_000

#: Java's second compiler waits ten times as long as by default: at Spark's start the default took
#: a third of the CPU, for code that hardly ran again (measured on two cores).
_LATE_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)


hide_arguments()


def build_session(
    name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session for a pipeline, with a found or installed Java and this Python for workers.

    In a program that `spark-submit` has started, the JVM is there, with the settings of the
    command line; they win over our defaults.

    Args:
        name: shown by Spark.
        master: Spark's master URL, which wins over that of `spark-submit`. None: that one, else
            ``local[*]``.
        conf: further Spark settings; they win over ours, and over those of `spark-submit`.

    Raises:
        ConfigurationError: no Java 17 or newer could be found or installed; SPARK_HOME names
            another Spark than PySpark's; or another cluster runs this driver.
    """
    return _session(name, master, conf or {})


def pipeline_session(
    name: str, mode: str, *, master: str | None, conf: Mapping[str, str]
) -> SparkSession:
    """Return a session as `build_session` does, for a command that then runs a pipeline of this
    mode. What the pipeline needs starts beside the JVM: its driver is imported, and in continuous
    mode the daemon of the Python workers starts.
    """
    on_context = worker_daemon.start if mode == CONTINUOUS else None
    return _session(name, master, conf, modules=[_DRIVERS], on_context=on_context)


def _session(
    name: str,
    master: str | None,
    conf: Mapping[str, str],
    *,
    modules: Sequence[str] = (),
    on_context: Callable[[SparkContext], object] | None = None,
) -> SparkSession:
    """Make a session.

    Args:
        name: see `build_session`.
        master: see `build_session`.
        conf: see `build_session`.
        modules: names of modules that are imported while the JVM starts.
        on_context: called with a new context, before the session is made.
    """
    if is_submitted():
        if late := late_settings(conf):
            logger.warning(
                "%s: the JVM of spark-submit was there before, so these settings do nothing; give "
                "them to spark-submit",
                ", ".join(late),
            )
        settings = submitted_settings(name, given_settings(), master, conf, os.environ)
        os.environ["PYSPARK_PYTHON"] = worker_python(settings[_MASTER], os.environ)
        return SparkSession.builder.appName(name).config(map=settings).getOrCreate()
    master = master or _ALL_CORES
    spark_home.check_home()
    java_home = ensure_java_home()
    os.environ["JAVA_HOME"] = java_home
    os.environ["PYSPARK_PYTHON"] = worker_python(master, os.environ)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {**default_settings(master), **conf}
    given = settings.get(OPTIONS_KEY, "")
    quiet = quiet_log_options(f"{given} {settings.get('spark.driver.extraJavaOptions', '')}")
    settings[OPTIONS_KEY] = " ".join(filter(None, (quiet, _LATE_COMPILER, given)))
    if _is_local(master):
        # The executors of a cluster would not have the jar.
        settings |= local_file_system_conf(java_home, settings)
    settings |= class_archive_conf(java_home, settings)
    homes = [spark_home.local_home] if _is_local(master) else []
    with jvm_environment(ours_first, *homes):
        ensure_jvm({_MASTER: master, "spark.app.name": name, **settings}, modules)
        builder = SparkSession.builder.appName(name).master(master).config(map=settings)
        if on_context is not None and SparkContext._active_spark_context is None:  # noqa: SLF001
            of_context = SparkConf().setAppName(name).setMaster(master)
            on_context(SparkContext(conf=of_context.setAll([*settings.items()])))
        return builder.getOrCreate()


def late_settings(conf: Mapping[str, str]) -> list[str]:
    """Return which settings of a pipeline do nothing in a JVM that `spark-submit` has started."""
    return sorted(_FOR_NEW_JVM & set(conf))


def submitted_settings(
    name: str,
    given: Mapping[str, str],
    master: str | None,
    conf: Mapping[str, str],
    environment: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings of a session in a JVM of `spark-submit`, with its master.

    Args:
        name: of the application.
        given: to `spark-submit`; they win over our defaults.
        master: see `build_session`.
        conf: of the pipeline; they win over what was given, as in Spark.
        environment: of this process.

    Raises:
        ConfigurationError: the cluster that runs this driver is not the one that is wanted.
    """
    its_master = given.get(_MASTER, _ALL_CORES)
    wanted = master or conf.get(_MASTER) or its_master
    if wanted != its_master and is_in_cluster(given):
        raise ConfigurationError(
            "The pipeline names another master than the cluster that runs its driver.",
            where=name,
            cause=f"spark-submit was given --master {its_master}",
            option=f"master={wanted}: leave it out",
        )
    settings = {key: value for key, value in default_settings(wanted).items() if key not in given}
    if _is_local(wanted) and environment.get("PYTHONPATH"):
        # The folder of a job file is in it, and the JVM was started before.
        settings |= {"spark.executorEnv.PYTHONPATH": environment["PYTHONPATH"]}
    return {**settings, **conf, _MASTER: wanted}


def default_settings(master: str) -> dict[str, str]:
    """Return our default settings; the user's own settings replace them."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # On a TCP socket to a Python worker small answers wait up to 40 ms (Nagle, measured).
        "spark.python.unix.domain.socket.enabled": "true",
        # A continuous stage with too few slots fails soon, not after ten minutes. It fails at once
        # where the number of slots is fixed, else when executors had time to come: Spark does not
        # wait for them at its start, and replaces a dead one within seconds.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": (
            "1" if _is_local(master) else str(_EXECUTORS_COME_S)
        ),
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        # By default the client asks a store that is too busy 6 times within a second. Then a read
        # of the checkpoint fails, and with it the query: of Hadoop 3.5's streams nothing asks
        # again (`analytics`, the default). Ten times take some 20 s.
        "spark.hadoop.fs.s3a.attempts.maximum": "10",
        **RUNTIME_CONF,
    }
    if _is_local(master):
        # No other host talks to it. A cluster's executors must reach the driver from their hosts.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # The only executor is this JVM. Spark measures its silence by the wall clock. When that
        # jumps ahead (a laptop wakes up), Spark drops the executor, and the job waits for ever.
        settings["spark.storage.blockManagerHeartbeatTimeoutMs"] = str(_CENTURY_MS)
        # A cluster's executors may get us by --py-files, which their daemon does not see.
        settings |= {"spark.python.daemon.module": worker_daemon.MODULE}
    else:
        # A socket's path has at most 107 bytes. Spark takes Java's temporary folder, and YARN gives
        # each container a folder of its own whose path alone is longer (seen).
        settings |= {"spark.python.unix.domain.socket.dir": "/tmp"}  # noqa: S108 - random names
    return settings


def worker_python(master: str, environment: Mapping[str, str]) -> str:
    """Return the workers' Python: this one, since Spark would take `python3` from PATH.

    On a cluster the variable PYSPARK_PYTHON wins: hosts may have Python at another path.
    """
    named = "" if _is_local(master) else environment.get("PYSPARK_PYTHON", "")
    return named or sys.executable


def _is_local(master: str) -> bool:
    return master.startswith("local")


def prepare_session(spark: SparkSession, *, local_checkpoint: bool) -> None:
    """Set on the user's session what the guarantee needs.

    Raises:
        ConfigurationError: the session cannot give the guarantee.
    """
    check_session(spark)
    wanted = {**RUNTIME_CONF, **(_LOCAL_CHECKPOINT_CONF if local_checkpoint else {})}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    for key, value in _LOCAL_CHECKPOINT_CONF.items():
        # A driver on a folder may have had this session before.
        if not local_checkpoint and spark.conf.get(key, None) == value:
            spark.conf.unset(key)


def check_session(spark: SparkSession) -> None:
    """Check that the session has its driver in this process, and Python processes that find ours.

    Raises:
        ConfigurationError: see `refuse_connect` and `check_ours_are_found`.
    """
    refuse_connect(spark)
    check_ours_are_found(spark.sparkContext._jvm)  # noqa: SLF001 - no public way to the JVM


def refuse_connect(spark: SparkSession) -> None:
    """Check that the session has its driver in this process.

    Raises:
        ConfigurationError: it is a Spark Connect session.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigurationError(
            "A Spark Connect session cannot run this driver.",
            cause="a Connect session runs foreachBatch in another process, without the decision "
            "log, and has no barrier stages",
            option="master: use a classic session",
        )
