"""Keeps a worker's imported objects out of the collection that Spark runs after every task.

`pyspark.daemon` calls `gc.collect()` between two tasks of a worker. With pyarrow, numpy and the
Kafka client imported, it walks a hundred thousand objects that never die. That takes 10 to 15 ms of
CPU per task, for four tasks in a small batch: more than the whole transaction protocol (measured).
"""

from __future__ import annotations

import gc

# The first tasks, of source and sink, still import modules and fill caches.
_TASKS = 6


class _Heap:
    settled = 0


def settle_worker_heap() -> None:
    """Freeze all living objects; call it at the end of a task, in a worker.

    It does so only in a worker's first tasks. A reference count still frees a frozen object, but
    a frozen cycle would stay for good, so the task's own garbage is collected first.
    """
    if _Heap.settled < _TASKS:
        _Heap.settled += 1
        gc.collect()
        gc.freeze()
