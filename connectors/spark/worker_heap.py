"""Keep what a Python worker has imported out of the collection that Spark runs after every task.

`pyspark.daemon` calls `gc.collect()` between two tasks of a worker. With pyarrow, numpy and the
Kafka client imported that walks a hundred thousand objects which never die: 10 to 15 ms of CPU per
task, four tasks in a small batch, more than all of the transaction protocol (measured).
"""

from __future__ import annotations

import gc

# Modules are still imported, and caches filled, in the first tasks: the source's and the sink's.
_TASKS = 6


class _Heap:
    settled = 0


def settle_worker_heap() -> None:
    """Freeze what is alive; call it at the end of a task, in a worker.

    Only in a worker's first tasks: what is frozen is freed by its reference count, but a cycle
    among it would stay for good, so a task's own garbage is collected before.
    """
    if _Heap.settled < _TASKS:
        _Heap.settled += 1
        gc.collect()
        gc.freeze()
