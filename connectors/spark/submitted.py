"""A program that `spark-submit` has started. Its JVM was there first, and is the process that a
service manager, a cluster and a user's `kill` know.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started

logger = logging.getLogger(__name__)

_DEPLOY_MODE: Final = "spark.submit.deployMode"
_IN_POD: Final = "spark.kubernetes.submitInDriver"


def is_submitted() -> bool:
    """Return whether this program runs in a JVM of `spark-submit`."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def given_settings() -> dict[str, str]:
    """Return the settings of the command line and of `spark-defaults.conf`."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - connects to the JVM, as `SparkContext()`
    return dict(SparkConf().getAll())


def is_in_cluster(settings: Mapping[str, str]) -> bool:
    """Return whether a cluster runs the driver.

    Args:
        settings: see `given_settings`.
    """
    return settings.get(_DEPLOY_MODE) == "cluster" or settings.get(_IN_POD) == "true"


def exit_code_of_stop() -> int:
    """Return the exit code of a program that a signal has stopped in order.

    Where a cluster runs it, it is that of a process which SIGTERM has ended: YARN and Kubernetes
    take 0 for the end of the pipeline, and would not start it again on another node.
    """
    in_cluster = is_submitted() and is_in_cluster(given_settings())
    return 128 + signal.SIGTERM if in_cluster else 0


class _Forwarder:
    """Gives a signal that the JVM got to this process. The JVM calls it."""

    def handle(self, received: Any) -> None:
        """Send the signal; Python's main thread runs the handler that is installed."""
        os.kill(os.getpid(), getattr(signal, f"SIG{received.getName()}"))

    class Java:
        """What py4j looks for."""

        implements: ClassVar[list[str]] = ["sun.misc.SignalHandler"]


@contextlib.contextmanager
def stop_requests_forwarded() -> Iterator[None]:
    """In this block the JVM passes ctrl-C, SIGTERM and SIGHUP on to this process.

    Otherwise it would end at once, in the middle of a checkpoint. Without `spark-submit` there is
    nothing to do: our own JVM ignores them.
    """
    if not is_submitted():
        yield
        return
    SparkContext._ensure_initialized()  # noqa: SLF001 - as above
    gateway = SparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    ensure_callback_server_started(gateway)
    of_java, before = gateway.jvm.sun.misc, {}
    for name in ("INT", "TERM", "HUP"):
        try:
            before[name] = of_java.Signal.handle(of_java.Signal(name), _Forwarder())
        except Py4JJavaError as error:  # the JVM has the option -Xrs
            logger.warning("SIG%s to the JVM is not passed on: %s", name, error.java_exception)
    try:
        yield
    finally:
        with contextlib.suppress(Py4JError, OSError):  # the JVM has ended
            for name, handler in before.items():
                of_java.Signal.handle(of_java.Signal(name), handler)
