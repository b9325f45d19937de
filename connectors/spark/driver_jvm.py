"""The driver's JVM. It writes to stderr only what a user can act on.

Spark starts Java with a module about which Java warns at each start, and no Java option prevents
the warning. So the JVM's stderr goes through this process. Java's own warnings go to `logging` (the
logger of this module, level INFO); every other line goes to stderr unchanged.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import re
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from connectors.spark.spark_home import home_of_jvm
from transactions.clock import Deadline

logger = logging.getLogger(__name__)

_LOG_CONFIG: Final = Path(__file__).with_name("log4j2-quiet.properties")
_CONFIGURED: Final = re.compile(r"-Dlog4j2?\.configurationFile=")
#: Java's own lines, like "WARNING: Using incubator modules" and "OpenJDK ... VM warning: ...".
#: Spark's lines begin with the time.
_OF_JAVA: Final = re.compile(rb"WARNING: |\w[\w -]* VM warning: ")
_STDERR: Final = 2
_LAST_WORDS_S: Final = 1.0
_LOOK_S: Final = 0.02
#: PySpark imports it in its first call of the JVM, and pandas with it where it is installed: that
#: takes 0.4 to 0.8 s (measured).
_OF_FIRST_CALL: Final = "pyspark.testing.utils"
#: The session ends and closes the workers' connections; workers print errors and are killed.
_ends = threading.Event()
_starting: Final = threading.RLock()


def quiet_log_options(options: str) -> str:
    """Return the Java option for a log of errors only; "" if the user has configured the log.

    Args:
        options: the Java options that are already set.
    """
    folder = os.environ.get("SPARK_CONF_DIR") or home_of_jvm() / "conf"
    if _CONFIGURED.search(options) or (Path(folder) / "log4j2.properties").exists():
        return ""
    return f'"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}"'


def end(session: SparkSession) -> None:
    """Stop the session of a pipeline that has ended.

    Later output of its processes goes to `logging`, level INFO: the real error was raised before.
    """
    _ends.set()
    # The JVM may close its connection to PySpark's accumulators before PySpark ends that server,
    # which then prints a stack trace (seen on a slow machine).
    server = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)  # noqa: SLF001
    if server is not None:
        server.handle_error = lambda *_: logger.info("accumulators", exc_info=True)
    session.stop()


def ensure_jvm(settings: Mapping[str, str], modules: Sequence[str] = ()) -> None:
    """Start the JVM of this process with Spark's settings, unless one is running.

    Args:
        settings: of Spark.
        modules: names of modules to import meanwhile: the start of a JVM takes more than a second,
            in which this process only waits. Who needs one imports it as usual, and gets the error.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001
        return
    _ends.clear()
    output, into = os.pipe()
    reader = threading.Thread(target=_pass_on, args=(output,), name="sparkonce-jvm", daemon=True)
    reader.start()
    try:
        options: dict[str, Any] = {"stderr": into}
        with _imported_meanwhile((_OF_FIRST_CALL, *modules)):
            gateway = launch_gateway(SparkConf().setAll(list(settings.items())), options)
    except BaseException:
        os.close(into)
        reader.join(_LAST_WORDS_S)  # to print why the JVM did not start
        raise
    os.close(into)
    atexit.register(_hear_out, output)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as `SparkContext()` does
    _leave_stop_requests_to_driver(gateway)


@contextlib.contextmanager
def _imported_meanwhile(modules: Sequence[str]) -> Iterator[None]:
    """Import modules on another thread while the block starts a process and waits for it."""
    before = _children()
    over = threading.Event()

    def run() -> None:
        # Not before the process is there: modules with C code may start threads or hold locks, and
        # a fork in the middle of that is not safe.
        while _children() <= before:
            if over.wait(_LOOK_S):
                return
        for module in modules:
            if not over.is_set():
                with contextlib.suppress(Exception):
                    importlib.import_module(module)

    thread = threading.Thread(target=run, name="sparkonce-imports", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # two threads that import the same modules can see half of one


def _children() -> int:
    """Return how many children this process has; 0 where that cannot be seen."""
    try:
        return len(psutil.Process().children())
    except (psutil.Error, OSError):
        return 0


@contextlib.contextmanager
def jvm_environment(*asked: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Start a JVM in this block with more variables in its environment; they end with the block.

    The environment is that of the process, so threads that start a JVM take turns.

    Args:
        asked: each returns variables; called when it is the turn of this thread.
    """
    with _starting:
        more = {name: value for each in asked for name, value in each().items()}
        before = {name: os.environ.get(name) for name in more}
        os.environ |= more
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _leave_stop_requests_to_driver(gateway: JavaGateway) -> None:
    """Make the JVM ignore SIGTERM and SIGHUP, as PySpark makes it ignore ctrl-C.

    A service manager sends SIGTERM to every process (systemd's KillMode=control-group), and a
    terminal that is closed sends SIGHUP. The JVM would end during the checkpoint that this process
    must still finish. Processes that the JVM starts from now on inherit this. The JVM still ends
    with this process, which closes its stdin.
    """
    of_java = gateway.jvm.sun.misc
    for name in ("TERM", "HUP"):
        of_java.Signal.handle(of_java.Signal(name), of_java.SignalHandler.SIG_IGN)


def _pass_on(output: int) -> None:
    """Read lines until the JVM has ended."""
    with os.fdopen(output, "rb", buffering=0, closefd=False) as stream:
        rest = b""
        while came := stream.read(1 << 16):
            lines = (rest + came).splitlines(keepends=True)
            rest = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
            _say(lines)
        _say([rest] if rest else [])


def _say(lines: list[bytes]) -> None:
    for line in lines:
        if _ends.is_set() or _OF_JAVA.match(line):
            logger.info("%s", line.decode("utf-8", "replace").rstrip())
            continue
        try:
            os.write(_STDERR, line)
        except OSError:  # a closed stderr must not stop a pipeline
            continue


def _hear_out(output: int) -> None:
    """At exit, let the reader finish the JVM's remaining output."""
    deadline = Deadline(_LAST_WORDS_S)
    while select.select([output], [], [], 0)[0] and not deadline.expired():
        deadline.pause(0.01)
