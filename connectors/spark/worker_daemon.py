"""Spark's daemon of Python workers, which has already imported what a worker imports.

Spark asks this process for a worker, and gets a fork of it. `pyspark.daemon` leaves every import to
the fork, because numpy and pyarrow start threads, and a fork does not have them. That costs 0.4 s
of CPU for each worker, and a first batch needs two for each task (measured). Settings can keep both
from starting threads. Then the imports are done once, before the first fork:

* OpenBLAS gets one thread for each worker; a worker has one core's task anyway;
* jemalloc, which Arrow has beside the allocator that it uses, gets no background thread.

If a second thread exists all the same, or an import fails, this becomes `pyspark.daemon` itself.

The driver alone answers SIGTERM (see `connectors.spark.driver_jvm`): the daemon and its workers
block it, and so do processes that a user's function starts in a worker. Spark ends them in other
ways: it closes the daemon's stdin; the daemon sends SIGHUP to its workers, and SIGKILL to one.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

MODULE: Final = "connectors.spark.worker_daemon"

_ONE_THREAD: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_TASKS: Final = Path("/proc/self/task")
#: What the tasks of both modes import, and PySpark imports for them.
_LOADED: Final = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "connectors.continuous.kafka_task",
    "connectors.spark.barrier_stage",
    "connectors.kafka.sink.kafka_writer",
    "connectors.kafka.source.range_reader",
    "connectors.spark.arrow_stage",
    "connectors.spark.source_readers",
    "connectors.spark.sink_stage",
)


def start(context: SparkContext) -> None:
    """Let Spark start the daemon for a continuous stage, on a thread of its own. On the driver: the
    daemon's imports take a second, in which the driver has other things to do. Nothing depends on
    the result. On a cluster nothing happens: its executors have another daemon.

    Spark has one daemon for each environment of its workers, and those of SQL have another one (a
    variable for short tracebacks, seen): a pipeline of micro-batches gains nothing.
    """
    if not context.master.startswith("local"):
        return

    def run() -> None:
        try:
            context.parallelize([0], 1).mapPartitions(list).collect()
        except Exception as error:  # noqa: BLE001 - the context may have been stopped meanwhile
            logger.debug("the daemon of the workers was not started: %s", error)

    threading.Thread(target=run, name="sparkonce-daemon", daemon=True).start()


def main() -> None:
    """Serve as `pyspark.daemon` does, until Spark closes stdin. Spark's JVM starts it."""
    # Blocked, not ignored: `pyspark.daemon` handles the signal, and resets it in each worker.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if not _load():
        plain = [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]]
        os.execv(sys.executable, plain)  # noqa: S606 - itself, without the failed imports
    from pyspark import daemon  # noqa: PLC0415

    # Forks share memory that nobody writes; a collection would write to all of it.
    gc.collect()
    gc.freeze()
    daemon.worker = quiet(daemon.worker)
    daemon.manager()


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """Return PySpark's worker without a stack trace when Spark has closed its connection.

    Spark closes a worker that nobody has asked for a minute. The worker answers the end of its
    input with an error, which nobody reads, and `pyspark.daemon` prints the traceback of the broken
    pipe: four tasks' workers printed 28 lines in the second minute of a quiet run (seen).
    """

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            return 1  # the daemon ends this worker

    return run


def keep_quiet() -> None:
    """Do the same in a worker of `pyspark.daemon`. No setting gives Spark another daemon for the
    workers that look up a source, make it, and plan with it, and a plain session has no other one.

    Called where such a worker loads our code, in its first request. A worker that Spark closes is
    waiting for the next one, which began with the name that is replaced here. Elsewhere nothing
    happens.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", "") == "pyspark.daemon":
        main.worker = quiet(main.worker)  # type: ignore[attr-defined]


def _load() -> bool:
    """Import everything; return True if a fork gets everything that this process has."""
    os.environ.update({name: os.environ.get(name, value) for name, value in _ONE_THREAD.items()})
    try:
        for module in _LOADED:
            importlib.import_module(module)
        return len(list(_TASKS.iterdir())) == 1
    except Exception:  # noqa: BLE001 - each worker reports what is wrong, as it always does
        return False


if __name__ == "__main__":
    main()
