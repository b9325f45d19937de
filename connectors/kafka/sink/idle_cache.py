"""What a process keeps from task to task, and drops when no task has asked for it for a minute.

Spark ends a Python worker that is idle for a minute, and what the worker keeps ends with it. But
other work of the same session can keep the worker alive for days: a query was stopped, and a
notebook goes on with functions of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from transactions.clock import SYSTEM_CLOCK, Clock, Deadline

K = TypeVar("K")
V = TypeVar("V")

#: Spark's own time (PythonWorkerFactory, IDLE_WORKER_TIMEOUT_NS).
_IDLE_S: Final = 60.0
_LOOK_S: Final = 5.0


class IdleCache(Generic[K, V]):
    """One value per key, for the tasks of one process. A value is dropped, and never closed under a
    task: who still holds it keeps it alive.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._kept: dict[K, tuple[V, Deadline]] = {}
        self._lock = threading.Lock()
        self._watched = False

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made if there is none, and keep it for another minute."""
        with self._lock:
            value = self._kept[key][0] if key in self._kept else make()
            self._kept[key] = value, Deadline(_IDLE_S, self._clock)
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="sparkonce-idle", daemon=True).start()
            return value

    def values(self) -> list[V]:
        """Return what is kept; nobody has asked for it by this."""
        with self._lock:
            return [value for value, _ in self._kept.values()]

    def discard(self, unwanted: Callable[[K, V], bool]) -> None:
        """Drop all values of which `unwanted` is true."""
        self._drop(lambda key, value, _: unwanted(key, value))

    def _drop(self, unwanted: Callable[[K, V, Deadline], bool]) -> None:
        with self._lock:
            found = [key for key, kept in self._kept.items() if unwanted(key, *kept)]
            dropped = [self._kept.pop(key) for key in found]
        del dropped  # behind the lock: to end a client takes a moment

    def _watch(self) -> None:
        """Drop what is idle, until nothing is kept; on a thread of its own."""
        while True:
            threading.Event().wait(_LOOK_S)
            self._drop(lambda _key, _value, ends: ends.expired())
            with self._lock:
                if not self._kept:
                    self._watched = False
                    return
