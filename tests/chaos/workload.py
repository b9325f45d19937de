"""The workload: a plain producer, paced, whose records tell any reader where they belong.

The value of a record is ``<partition>-<number>``, numbers without gaps in each partition, so that
a reader of the output can tell a loss, a duplicate and a changed order from one record to the
next. Knows nothing of the system under test; talks to the brokers directly.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Producer

KEYS = 7


class Workload:
    """Produces `rate` records a second from a thread of its own, until `stop`."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, rate: float) -> None:
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._stopping = threading.Event()
        self._refused: list[str] = []
        self.produced = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,  # the input itself must be free of duplicates
                "message.timeout.ms": 0,  # and of losses: brokers may be away for long
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 5,
                "log_level": 0,
                "on_delivery": self._note,
            }
        )
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(10.0)

    def finish(self, timeout: float) -> int:
        """Stop, wait until every record is acknowledged, and return how many there are."""
        self._stopping.set()
        self._thread.join(timeout)
        left = self._producer.flush(timeout)
        if left or self._refused:
            raise RuntimeError(f"the workload could not write {left} records: {self._refused[:3]}")
        return self.produced

    def _note(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._refused.append(str(error))

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - began) * self._rate)
            while self.produced < due:
                self._write(self.produced)
                self.produced += 1
            self._producer.poll(0)
            self._stopping.wait(0.02)

    def _write(self, number: int) -> None:
        partition, place = number % self._partitions, number // self._partitions
        key = b"key-%d" % (number % KEYS)
        value = b"%d-%d" % (partition, place)
        while True:
            try:
                self._producer.produce(self._topic, value, key, partition=partition)
            except BufferError:
                self._producer.poll(0.1)
                if self._stopping.is_set():
                    raise
            else:
                return
