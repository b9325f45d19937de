"""Named points of the protocol at which a test can kill the process; free in production.

`reach("decision_durable", 7)` does nothing unless the process was started with

    SPARKONCE_CRASH_AT=<name>[@<checkpoint>]    which point, in which checkpoint (any by default)
    SPARKONCE_CRASH_ONCE=<path>                 a file; once it exists no process crashes any more
    SPARKONCE_CRASH_WHEN=<path>                 a file; before it exists no process crashes
    SPARKONCE_CRASH_SIGNAL=KILL|STOP|TERM       KILL by default

in its environment, which Python workers inherit from the driver. (The idea comes from TigerBeetle's
marks: production code names the moments that a test needs.)
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: Every point of the protocol, in the order a checkpoint meets them.
POINTS: Final = (
    "batch_started",  # driver: Spark has written offsets/N
    "records_queued",  # worker: the transaction is open, its records are on their way
    "records_flushed",  # worker: every record is at the broker, no offsets yet
    "offsets_sent",  # worker: prepared; the committable exists only in this process
    "committables_collected",  # driver: phase 1 is over, nothing is durable
    "prepared_checked",  # driver: the broker confirmed every transaction
    "decision_durable",  # driver: the point of no return has been passed
    "one_committed",  # driver: the transactions of one sink are committed
    "all_committed",  # driver: Spark does not know it yet
    "batch_finished",  # driver: foreachBatch is about to return
    "heal_started",  # driver, in the replay of N: something decided is proven lost
    "heal_produced",  # driver: its records are at the broker again, prepared, compared
    "heal_durable",  # driver: the log names the new transaction in place of the lost one
    "heal_committed",  # driver: it is visible
    "recovery_fenced",  # driver, at start: the Fence is written
    "recovery_settled",  # driver, at start: the last decision is settled; open transactions wait
)

#: Points that only healing reaches: the broker has aborted decided transactions.
HEALING_POINTS: Final = tuple(point for point in POINTS if point.startswith("heal_"))

#: Points that only the tasks of a continuous stage meet, between the worker's points above.
STAGE_POINTS: Final = (
    "acknowledged",  # task: prepared, and the driver knows
    "commit_received",  # task: decided; its EndTxn is still to be sent
    "transaction_ended",  # task: committed, and the driver does not know yet
    "partitions_left",  # task: prepared, and it reads these partitions no more
    "partitions_moving",  # driver: that is settled, and nobody reads them
    "partitions_came",  # task: it reads them from now on
)

#: Points that only a sink of files meets, between `decision_durable` and `one_committed`; its tasks
#: meet `records_queued` (before the end of the file) and `records_flushed` (it is durable).
FILE_POINTS: Final = (
    "rename_started",  # driver: decided; this file has its hidden name
    "renamed",  # driver: it has its final name, nothing is synced
)

#: Points that only a sink of files in an object store meets; they know no checkpoint.
OBJECT_POINTS: Final = (
    "upload_started",  # worker, before `records_flushed`: the transaction is there, no file yet
    "mark_stored",  # driver, before `renamed`: the file is committed, its transaction is there
    "file_discarded",  # driver, in a sweep: the file is gone, its transaction is there
)

#: Points of a savepoint that the driver makes, between two checkpoints.
SAVEPOINT_POINTS: Final = (
    "savepoint_copied",  # driver: all is durable, and has no name yet
    "savepoint_named",  # driver: it has its name, and no answer was sent
)

#: Points of a start with other sinks than before, around `recovery_fenced`; of micro-batches.
CHANGE_POINTS: Final = (
    "plan_marked",  # driver, before the Fence: a file says that Spark's offsets are of another plan
    "plan_fitted",  # driver, behind it: they are of this plan, and the file still says so
)

#: All of them.
KNOWN: Final = (
    *(*POINTS, *STAGE_POINTS, *FILE_POINTS, *OBJECT_POINTS),
    *(*SAVEPOINT_POINTS, *CHANGE_POINTS),
)

Hook = Callable[[str, int], None]


def reach(point: str, checkpoint_id: int = -1) -> None:
    """Mark that the protocol has reached a point; a no-op outside tests."""
    if _hook is not None:
        _hook(point, checkpoint_id)


def install(hook: Hook | None) -> None:
    """Call a test's hook at every point of this process; None removes the hook."""
    global _hook  # noqa: PLW0603 - one hook per process, set by tests only
    _hook = hook


def _from_environment() -> Hook | None:
    wanted = os.environ.get("SPARKONCE_CRASH_AT")
    if not wanted:
        return None
    name, _, checkpoint = wanted.partition("@")
    if name not in KNOWN:
        raise ValueError(f"SPARKONCE_CRASH_AT={wanted}: there is no crash point {name!r}")
    once = os.environ.get("SPARKONCE_CRASH_ONCE")
    when = os.environ.get("SPARKONCE_CRASH_WHEN")
    number = getattr(signal, "SIG" + os.environ.get("SPARKONCE_CRASH_SIGNAL", "KILL"))

    def crash(point: str, checkpoint_id: int) -> None:
        if point != name or (checkpoint and int(checkpoint) != checkpoint_id):
            return
        if when is not None and not Path(when).exists():
            return
        if once is not None:
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        # Signal this very thread: a SIGSTOP to the process may stop another thread first.
        signal.pthread_kill(threading.get_ident(), number)

    return crash


_hook: Hook | None = _from_environment()
