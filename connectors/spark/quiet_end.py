"""Ends a batch that was stopped before its decision, without a stack trace.

foreachBatch must not return for a batch that is not committed: Spark would write commits/N. Its
exception ends the query as a failure, with two stack traces in the log, py4j's and Spark's. For
Spark one exception is not a failure: the InterruptedException that its own `StreamingQuery.stop()`
causes on the query's thread. So the batch waits for that exception, and raises it in the words that
Spark looks for: `StreamExecution.PROXY_ERROR`.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from transactions.errors import StoppedError

_CALLBACKS: Final = logging.getLogger("py4j.clientserver")

#: These words, and almost nothing after them: Spark's pattern recurses once for each character
#: that follows, and a stack trace of 4 KB can overflow the stack of its thread (seen).
_INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling sleep: "
    "java.lang.InterruptedException"
)


def as_spark_ends(stopped: StoppedError, spark: SparkSession, timeout_s: float) -> StoppedError:
    """Wait until Spark interrupts the query's thread; return the error that Spark takes for a stop.

    Called on the query's thread, which is one thread in Python and in the JVM.

    Returns:
        The given error, if nobody stopped the query in time.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - no public way
    try:
        jvm.java.lang.Thread.sleep(int(timeout_s * 1000))
    except Py4JJavaError:
        return StoppedError(stopped.what, where=stopped.where, cause=_INTERRUPTED)
    return stopped


def _is_no_stop(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], StoppedError))


_CALLBACKS.addFilter(_is_no_stop)  # py4j logs what a callback raises; a stop is no error
