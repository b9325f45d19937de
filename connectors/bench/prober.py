"""End-to-end latency: a paced producer, and a read_committed reader that subtracts the times.

Both are in one process, so they use one clock. The time stamp is the moment at which a record goes
to the producer. A delay of the pacing is therefore not in the latency; it has its own figure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from confluent_kafka import KafkaException

from connectors.bench.audit import Audit
from connectors.bench.committed_reader import committed_reader, raise_if_error
from connectors.bench.end_watcher import Ints
from connectors.bench.measuring_producer import MeasuringProducer
from connectors.bench.shape import DONE, Shape, number_of, stamp_of
from connectors.clients.client_errors import translate
from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.errors import SparkOnceError

_TICK_S: Final = 0.002
_PROBE_EVERY_S: Final = 0.25
_DRAIN_S: Final = 60.0
_LATE_DUPLICATES_S: Final = 2.0
_WATCH_EVERY_S: Final = 0.25

#: What the progress says.
WARMING: Final = "warming up"
MEASURING: Final = "measuring"
DRAINING: Final = "waiting for the last records"

#: Called with the present step, the finished amount and the total amount.
Watch = Callable[[str, int, int], None]


@dataclass
class Prober:
    """Runs once.

    Attributes:
        kafka: client settings in Java naming.
        topics: the job's input and its output.
        shape: shape of the records.
        rate: records per second.
        warmup_s: seconds whose records are checked but not measured.
        seconds: measured seconds.
        watch: receives the progress, for people.
        audit: after the run, the verdict on the ids.
        measured_from_ns: when the first measured record was produced, wall clock.
        measured_s: the time that producing the measured records took.
        late_max_ms: the worst delay of the pacing.
    """

    kafka: Mapping[str, str]
    topics: tuple[str, str]
    shape: Shape
    rate: int
    warmup_s: float
    seconds: float
    watch: Watch = field(default=lambda _step, _done, _total: None)
    audit: Audit = field(default_factory=Audit)
    measured_from_ns: int = 0
    measured_s: float = 0.0
    late_max_ms: float = 0.0

    def run(self, check: Callable[[], None], *, probe_timeout_s: float = 120.0) -> Ints:
        """Return the latencies in ns of the measured records, in the order of production.

        Args:
            check: called again and again; raises when the job has ended.
            probe_timeout_s: how long the job may take until it runs.

        Raises:
            SparkOnceError: no probe came through the job, a client failed, or `check` raised.
                Records that are missing at the end are in `audit`.
        """
        records = int(self.rate * (self.warmup_s + self.seconds))
        self._latency = np.full(records, -1, dtype=np.int64)
        self._probed: set[int] = set()
        self._got = 0
        self._stop = threading.Event()
        self._reader_error: BaseException | None = None
        reader = threading.Thread(target=self._read, name="reader", daemon=True)
        reader.start()

        def everything() -> None:
            if self._reader_error is not None:
                raise self._failed()
            check()

        try:
            with MeasuringProducer(self.kafka, self.topics[0], self.shape, linger_ms=1) as producer:
                self._probe(producer, everything, Deadline(probe_timeout_s))
                self._produce(producer, records, everything)
                self._drain(records, everything)
        finally:
            self._stop.set()
            reader.join()
        if self._reader_error is not None:
            raise self._failed()
        self.audit.lost = records - self._got
        measured = self._latency[int(self.rate * self.warmup_s) :]
        return measured[measured >= 0]

    def _probe(
        self, producer: MeasuringProducer, check: Callable[[], None], deadline: Deadline
    ) -> None:
        """Send probes until one of each partition has come through the job."""
        while len(self._probed) < self.shape.partitions:
            self.watch("the job starts", len(self._probed), self.shape.partitions)
            if deadline.expired():
                raise SparkOnceError(
                    "No record came through the job in time.",
                    where=f"{self.topics[0]} -> {self.topics[1]}, {deadline.seconds:g} s",
                    cause="the job has not started, or readers do not see its commits",
                    option="--master, --subtasks: are there enough slots?",
                )
            for number in range(self.shape.partitions):
                producer.send(-1 - number)
            producer.flush()
            check()
            SYSTEM_CLOCK.sleep(_PROBE_EVERY_S)

    def _produce(
        self, producer: MeasuringProducer, records: int, check: Callable[[], None]
    ) -> None:
        warmup = int(self.rate * self.warmup_s)
        start = SYSTEM_CLOCK.monotonic()
        measuring_since, told = start, Deadline(0.0)
        sent = 0
        while sent < records:
            elapsed = SYSTEM_CLOCK.monotonic() - start
            # If the rate is too high, the records of a whole second may be due: the limit lets us
            # check for ctrl-C and the job's end in between.
            due = min(records, int(elapsed * self.rate) + 1, sent + max(1000, self.rate // 10))
            late_ms = (elapsed - sent / self.rate) * 1000.0
            for number in range(sent, due):
                if number == warmup:
                    self.measured_from_ns = time.time_ns()
                    measuring_since = SYSTEM_CLOCK.monotonic()
                producer.send(number)
            if sent >= warmup:
                self.late_max_ms = max(self.late_max_ms, late_ms)
            sent = due
            producer.poll()
            if told.expired():
                check()
                step = WARMING if sent <= warmup else MEASURING
                self.watch(step, sent, records)
                told = Deadline(_WATCH_EVERY_S)
            SYSTEM_CLOCK.sleep(_TICK_S)
        self.measured_s = SYSTEM_CLOCK.monotonic() - measuring_since
        producer.flush()
        check()

    def _drain(self, records: int, check: Callable[[], None]) -> None:
        deadline = Deadline(_DRAIN_S)
        self.watch(DRAINING, self._got, records)
        while self._got < records and not deadline.expired():
            check()
            deadline.pause(0.05)
            self.watch(DRAINING, self._got, records)
        SYSTEM_CLOCK.sleep(_LATE_DUPLICATES_S)

    def _failed(self) -> SparkOnceError:
        error = self._reader_error
        if isinstance(error, KafkaException):
            return translate(error.args[0], self.topics[1], self.kafka)
        if isinstance(error, SparkOnceError):
            return error
        return SparkOnceError(
            "The reader failed.", where=self.topics[1], cause=f"{type(error).__name__}: {error}"
        )

    def _read(self) -> None:
        try:
            consumer = committed_reader(self.kafka, self.topics[1], self.shape.partitions)
            try:
                while not self._stop.is_set():
                    first: Any = consumer.poll(0.1)
                    if first is None:
                        continue
                    more = consumer.consume(10_000, timeout=0)
                    now = time.time_ns()
                    for message in (first, *more):
                        raise_if_error(message)
                        self._note(message.key(), message.value(), now)
            finally:
                consumer.close()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._reader_error = error

    def _note(self, key: bytes, value: bytes, now: int) -> None:
        number = number_of(key)
        if number < 0:
            self._probed.add(number)
            return
        self.audit.untransformed += value[-1:] != DONE
        if number >= len(self._latency):
            self.audit.foreign += 1
        elif self._latency[number] >= 0:
            self.audit.dup += 1
        else:
            self._latency[number] = now - stamp_of(value)
            self._got += 1
