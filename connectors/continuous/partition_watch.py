"""The question for new partitions of the source, asked beside the checkpoints.

The question costs a round trip to a broker, and takes seconds when a broker is slow or away. On the
thread of the checkpoints it would delay the next barrier. Here nothing waits for the answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from transactions.clock import Deadline
from transactions.errors import DataLossError, PhaseOneError, SparkOnceError
from transactions.events import publish

_NOW = (DataLossError, PhaseOneError)


class PartitionWatch:
    """Asks again and again, on a thread of its own, while a stage runs. Lives on the driver.

    A run that reads and writes does not end because this question has no answer for a while. The
    event `retried` reports that, once until an answer comes. When none has come for `patience_s`,
    `take` raises the last error: records in a new partition would wait, and nobody would know.

    Args:
        ask: returns all partitions of the source that there are now.
        application_id: for events.
        every_s: how many seconds after an answer the next question comes.
        patience_s: for how long there may be only errors.
    """

    def __init__(
        self,
        ask: Callable[[], Sequence[str]],
        *,
        application_id: str,
        every_s: float,
        patience_s: float,
    ) -> None:
        self._ask = ask
        self._application_id = application_id
        self._every_s = every_s
        self._patience_s = patience_s
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._found: Sequence[str] = ()
        self._error: Exception | None = None
        self._until = Deadline(patience_s)

    def start(self) -> None:
        """Begin to ask; the first question is due after `every_s`."""
        threading.Thread(target=self._run, name="sparkonce-partitions", daemon=True).start()

    def take(self) -> Sequence[str]:
        """Return the last answer, once; empty until there is a new one. Never waits.

        Raises:
            SparkOnceError: there has been no answer for too long.
        """
        with self._lock:
            if self._error is not None and self._until.expired():
                raise self._error
            found, self._found = self._found, ()
            return found

    def close(self) -> None:
        """Ask no more. It does not wait for a question under way, and drops its answer."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                found = self._ask()
            except Exception as error:  # noqa: BLE001 - raised by `take`
                self._note(error)
            else:
                with self._lock:
                    self._found, self._error = found, None

    def _note(self, error: Exception) -> None:
        # A bug, or a topic that was made anew: there is nothing to wait for.
        waits = isinstance(error, SparkOnceError) and not isinstance(error, _NOW)
        with self._lock:
            first = self._error is None
            if first or not waits:
                self._until = Deadline(self._patience_s if waits else 0.0)
            self._error = error
        if first and not self._closed.is_set():
            app, step = self._application_id, "partition discovery"
            publish("retried", app=app, step=step, cause=str(error))
