"""Spark's daemon of Python workers, with what a worker imports already in it.

Spark asks this process for a worker, and gets a fork of it. `pyspark.daemon` leaves every import to
the fork, because numpy and pyarrow start threads, which a fork does not have: 0.4 s of CPU for each
worker, and a first batch wants two for each task (measured). Both can be told not to start them,
and then imports are done once, before the first fork:

* OpenBLAS takes one thread for each worker; a worker has one core's task anyway;
* jemalloc, which Arrow has beside the allocator that it uses, keeps no thread in the background.

What still has a second thread, or cannot be imported, becomes `pyspark.daemon` itself.

SIGTERM is the driver's to answer (see `connectors.spark.driver_jvm`): the daemon and its workers
block it, and so does what a user's function starts in a worker. Spark ends them in other ways: it
closes the daemon's stdin, the daemon sends SIGHUP to its workers, and SIGKILL to one of them.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Final

MODULE: Final = "connectors.spark.worker_daemon"

_ONE_THREAD: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_TASKS: Final = Path("/proc/self/task")
#: What the tasks of both modes use, and PySpark for them.
_LOADED: Final = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "connectors.kafka.sink.transactional_sink",
    "connectors.kafka.source.range_reader",
    "connectors.spark.arrow_stage",
    "connectors.spark.data_source",
    "connectors.spark.sink_stage",
)


def main() -> None:
    """Serve as `pyspark.daemon` does, until Spark closes stdin. Started by Spark's JVM."""
    # Blocked, not ignored: `pyspark.daemon` takes the signal, and gives it back in each worker.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if not _load():
        plain = [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]]
        os.execv(sys.executable, plain)  # noqa: S606 - itself, without what went wrong
    from pyspark import daemon  # noqa: PLC0415

    # Forks share what is never written to: a collection would write to all of it.
    gc.collect()
    gc.freeze()
    daemon.manager()


def _load() -> bool:
    """Import; True when a fork has everything that this process has."""
    os.environ.update({name: os.environ.get(name, value) for name, value in _ONE_THREAD.items()})
    try:
        for module in _LOADED:
            importlib.import_module(module)
        return len(list(_TASKS.iterdir())) == 1
    except Exception:  # noqa: BLE001 - the workers say what is wrong, one by one, as they always do
        return False


if __name__ == "__main__":
    main()
