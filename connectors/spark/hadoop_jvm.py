"""A JVM with Hadoop's client: the one of the Spark session, or a small one of our own.

A driver has a session, and Hadoop's settings are those of the session. A command that only looks
at a checkpoint (``sparkonce verify``, ``doctor``, ``transactions``) has none, and Spark would take
seconds to start. Such a process starts a JVM with nothing but the jars of Hadoop's client that
PySpark ships. It reads the files of ``HADOOP_CONF_DIR``, as Spark does, and ends with the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import (
    GatewayClient,
    GatewayParameters,
    JavaGateway,
    is_fatal_error,
    launch_gateway,
)
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from connectors.machine.java import ensure_java_home
from connectors.spark.py4j_log import hide_arguments
from connectors.spark.spark_home import home_of_jvm
from transactions.errors import SparkOnceError

#: Hadoop's client, and what writes its log. The client's other dependencies are inside its jars.
_JARS: Final = ("hadoop-client-*", "slf4j-api-*", "jcl-over-slf4j-*")
#: Folders with core-site.xml and hdfs-site.xml, as in Spark's launcher (AbstractCommandBuilder).
_SETTINGS: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")

_starting: Final = threading.Lock()
_own: dict[int, JavaGateway] = {}  # by process: a fork must not talk over its parent's connections

hide_arguments()  # Hadoop's settings hold secrets


def hadoop_jvm(options: Mapping[str, str]) -> tuple[JavaGateway, Any]:
    """Return a JVM with Hadoop's client, and Hadoop's settings (a `Configuration` of its own).

    On the driver, or in a command. Without a session the first call takes a second.

    Args:
        options: Hadoop's properties, which win over those of the session or of files.

    Raises:
        SparkOnceError: there is no Java, or it does not start.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001 - no public way to the JVM
    # The JVM of a session that was stopped lives on. A second one would not do: PySpark has patched
    # py4j, and asks its own JVM about each exception.
    gateway = SparkContext._gateway or _own_gateway()  # noqa: SLF001 - as above
    java: Any = None if context is None else context._jsc  # noqa: SLF001 - as above
    of_session = () if java is None else (java.hadoopConfiguration(),)
    settings = gateway.jvm.org.apache.hadoop.conf.Configuration(*of_session)
    for name, value in options.items():
        settings.set(name, value)
    return gateway, settings


def with_authority(address: str, settings: Any, gateway: JavaGateway) -> str:
    """Return an address with the name node that it leaves to ``fs.defaultFS``: ``hdfs:///folder``.
    Hadoop's `FileContext`, which renames without overwriting, takes no other.
    """
    scheme, _, rest = address.partition("://")
    if not rest.startswith("/"):
        return address
    default = gateway.jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(settings)
    if default.getScheme() == scheme and default.getAuthority():
        return f"{scheme}://{default.getAuthority()}{rest}"
    return address


def file_manager(jvm: Any, folder: Any, settings: Any) -> Any:
    """Return what Spark writes the files of a checkpoint with: each appears as a whole.

    Args:
        jvm: of the session.
        folder: Hadoop's `Path`.
        settings: Hadoop's, of the session.
    """
    room = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    return getattr(getattr(room, "CheckpointFileManager$"), "MODULE$").create(folder, settings)


#: What Hadoop says of a file that is not there.
ABSENT: Final = "java.io.FileNotFoundException"
#: What a call raises: in a process that has had a session, PySpark makes errors of its own of some
#: Java exceptions (`IllegalArgumentException` is one), of every call of py4j.
JVM_ERRORS: Final = (Py4JError, PySparkException)


def java_class_of(error: BaseException) -> str:
    """Return the class of the Java exception behind an error; "" if there is none."""
    raised = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    try:
        return "" if raised is None else str(raised.getClass().getName())
    except Py4JError:  # the JVM has just ended
        return ""


def first_line_of(error: BaseException) -> str:
    """Return what an error of `JVM_ERRORS` says, without the stack of Java."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        raised = error.java_exception
        try:
            text = str(raised.getMessage() or raised.getClass().getName())
        except Py4JError as gone:
            text = str(gone)
    return text.partition("\n")[0]


def forget_own_jvm() -> bool:
    """Start another JVM of our own for the next call, since this one does not answer. Return
    whether there was one: else the JVM of the session has ended, for good.
    """
    return _own.pop(os.getpid(), None) is not None


def _own_gateway() -> JavaGateway:
    with _starting:
        gateway = _own.get(os.getpid())
        if gateway is None:
            gateway = _own[os.getpid()] = _launched()
        return gateway


def _launched() -> JavaGateway:
    jars = home_of_jvm() / "jars"
    path = [os.environ[name] for name in _SETTINGS if os.environ.get(name)]
    path += [str(jar) for pattern in _JARS for jar in sorted(jars.glob(f"{pattern}.jar"))]
    java = str(Path(ensure_java_home(), "bin/java"))
    try:
        port, token = launch_gateway(
            jarpath=str(next(jars.glob("py4j-*.jar"), jars / "py4j.jar")),
            classpath=os.pathsep.join(path),
            javaopts=list(_OPTIONS),
            java_path=java,
            die_on_exit=True,  # it reads our end of a pipe
            create_new_process_group=True,  # ctrl-C is for us; we may have to clean up with it
            enable_auth=True,
        )
    except (OSError, ValueError, Py4JError) as error:  # it has not said its port; it has no jars
        raise SparkOnceError(
            "The Java process with Hadoop's client did not start.",
            where=f"{java} {' '.join(_OPTIONS)}",
            cause=str(error),
            option="JAVA_HOME, JAVA_TOOL_OPTIONS, SPARK_HOME; a limit of memory",
        ) from error
    parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
    return JavaGateway(_Client(gateway_parameters=parameters), gateway_parameters=parameters)


class _Client(GatewayClient):  # type: ignore[misc]  # py4j has no types
    """py4j's client, but ctrl-C during a call is a KeyboardInterrupt and nothing else. py4j prints
    a stack then, and calls a method that this kind of connection does not have (0.10.9.9).
    """

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:  # noqa: ARG002
        """See `GatewayClient.send_command`."""
        connection = self._get_connection()
        try:
            answer = connection.send_command(command)
        except BaseException:
            connection.close(reset=True)
            raise
        if is_fatal_error(answer):
            connection.close(reset=False)
        else:
            self._give_back_connection(connection)
        return answer
