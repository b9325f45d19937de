"""What goes in, and what an independent read_committed reader sees come out.

A record: key = its id, 8 bytes; value = the wall clock in ns at which it was produced, 8 bytes,
then filler. Ids below zero are probes. Only the standard clients are used, nothing of ours.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

PARTITIONS = 2
VALUE_BYTES = 100
FILLER = b"x" * (VALUE_BYTES - 8)
_TICK_S = 0.002
_DRAIN_S = 60.0
_LATE_DUPLICATES_S = 2.0

Ints = npt.NDArray[np.int64]


class WorkloadError(Exception):
    """The job did not bring the records through in time."""


def load(bootstrap: str, topic: str, records: int) -> float:
    """Produce ids 0 to `records`; return records per second."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    )
    start = time.monotonic()
    for number in range(records):
        value = struct.pack(">q", time.time_ns()) + FILLER
        while True:
            try:
                producer.produce(
                    topic, value, struct.pack(">q", number), partition=number % PARTITIONS
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(60.0):
        raise WorkloadError(f"the broker did not take all of {records} records in 60 s")
    return records / (time.monotonic() - start)


def read_committed(bootstrap: str, topic: str) -> Consumer:
    """Return a consumer of all partitions, from their beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    return consumer


@dataclass
class Audit:
    """What came out, against what went in."""

    lost: int = 0
    dup: int = 0
    foreign: int = 0
    untransformed: int = 0

    @property
    def clean(self) -> bool:
        """Tell whether every record came out exactly once, transformed."""
        return self == Audit()


# -- throughput -------------------------------------------------------------------------------


class EndWatcher:
    """Samples the read_committed end of a topic: what a reader may see by then."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._ask = {TopicPartition(topic, n): OffsetSpec.latest() for n in range(PARTITIONS)}
        self.times: list[int] = []
        self.ends: list[tuple[int, ...]] = []

    def sample(self) -> int:
        """Take a sample; return the sum of the ends, markers included."""
        answers = self._admin.list_offsets(
            self._ask, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=10.0
        )
        ends = tuple(answers[key].result().offset for key in self._ask)
        now = time.time_ns()  # with the answer: a broker under load takes its time
        if not self.ends or ends != self.ends[-1]:
            self.times.append(now)
            self.ends.append(ends)
        return sum(ends)

    def wait_for(self, records: int, *, timeout_s: float, check: Callable[[], None]) -> None:
        """Sample until the end is at rest with at least so many offsets.

        Raises:
            WorkloadError: it took longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            total = self.sample()
            rest_s = (time.time_ns() - self.times[-1]) / 1e9
            if total >= records and rest_s > _LATE_DUPLICATES_S:
                return
            check()
            if time.monotonic() > deadline:
                raise WorkloadError(f"{total} of {records} offsets visible after {timeout_s:.0f} s")
            time.sleep(0.01)

    def visible(self, offsets: list[Ints]) -> Ints:
        """Return how many of the records with these offsets each sample saw."""
        ends = np.array(self.ends, dtype=np.int64)
        return sum(
            (np.searchsorted(mine, ends[:, n]) for n, mine in enumerate(offsets)),
            start=np.zeros(len(ends), dtype=np.int64),
        )


def audit_topic(bootstrap: str, topic: str, ends: tuple[int, ...], records: int) -> tuple[
    Audit, list[Ints]
]:  # fmt: skip
    """Read everything below `ends`; return the verdict and each partition's first offsets."""
    audit, seen = Audit(), np.zeros(records, dtype=bool)
    offsets: list[list[int]] = [[] for _ in ends]
    consumer = read_committed(bootstrap, topic)
    quiet_until = time.monotonic() + 20.0
    try:
        while any(p.offset < end for p, end in _positions(consumer, topic, ends)):
            for message in consumer.consume(20_000, timeout=0.2):
                raise_if_error(message)
                quiet_until = time.monotonic() + 20.0
                number = int.from_bytes(message.key(), "big", signed=True)
                audit.untransformed += message.value()[-1:] != b"T"
                if not 0 <= number < records:
                    audit.foreign += 1
                elif seen[number]:
                    audit.dup += 1
                else:
                    seen[number] = True
                    offsets[message.partition()].append(message.offset())
            if time.monotonic() > quiet_until:
                break
    finally:
        consumer.close()
    audit.lost = records - int(seen.sum())
    return audit, [np.array(one, dtype=np.int64) for one in offsets]


def _positions(
    consumer: Consumer, topic: str, ends: tuple[int, ...]
) -> list[tuple[TopicPartition, int]]:
    asked = [TopicPartition(topic, n) for n in range(len(ends))]
    return list(zip(consumer.position(asked), ends, strict=True))


def raise_if_error(message: Message) -> None:
    """Raise what a reader was given in place of a record."""
    error: KafkaError | None = message.error()
    if error is not None:
        raise KafkaException(error)


# -- latency ----------------------------------------------------------------------------------


@dataclass
class Prober:
    """A paced producer, and a read_committed reader that subtracts, in one process: one clock.

    Attributes:
        rate: records per second.
        warmup_s: seconds whose records are checked but not measured.
        seconds: measured seconds.
    """

    bootstrap: str
    topics: tuple[str, str]
    rate: int
    warmup_s: float
    seconds: float
    audit: Audit = field(default_factory=Audit)
    measured_from_ns: int = 0
    late_max_ms: float = 0.0

    def run(self, check: Callable[[], None], *, probe_timeout_s: float = 120.0) -> Ints:
        """Return the latencies in ns of the measured records.

        Raises:
            WorkloadError: no probe came through, or records were missing at the end.
        """
        records = int(self.rate * (self.warmup_s + self.seconds))
        self._latency = np.full(records, -1, dtype=np.int64)
        self._probed: set[int] = set()
        self._got = 0
        self._stop = threading.Event()
        self._reader_error: BaseException | None = None
        reader = threading.Thread(target=self._read, name="reader", daemon=True)
        reader.start()
        try:
            producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1})
            self._probe(producer, check, time.monotonic() + probe_timeout_s)
            self._produce(producer, records, check)
            self._drain(records, check)
        finally:
            self._stop.set()
            reader.join()
        if self._reader_error is not None:
            raise WorkloadError("the reader failed") from self._reader_error
        self.audit.lost = records - self._got
        measured = self._latency[int(self.rate * self.warmup_s) :]
        return measured[measured >= 0]

    def _probe(self, producer: Producer, check: Callable[[], None], deadline: float) -> None:
        """Send probes until one of each partition has come through the job."""
        while len(self._probed) < PARTITIONS:
            if time.monotonic() > deadline:
                raise WorkloadError("no probe came through the job in time")
            for number in range(PARTITIONS):
                self._send(producer, -1 - number, number)
            producer.flush(5.0)
            check()
            time.sleep(0.25)

    def _produce(self, producer: Producer, records: int, check: Callable[[], None]) -> None:
        warmup = int(self.rate * self.warmup_s)
        start = time.monotonic()
        sent = 0
        while sent < records:
            due = min(records, int((time.monotonic() - start) * self.rate) + 1)
            late_ms = (time.monotonic() - start - sent / self.rate) * 1000.0
            for number in range(sent, due):
                if number == warmup:
                    self.measured_from_ns = time.time_ns()
                self._send(producer, number, number % PARTITIONS)
            if sent >= warmup:
                self.late_max_ms = max(self.late_max_ms, late_ms)
            sent = due
            producer.poll(0)
            time.sleep(_TICK_S)
        producer.flush(10.0)
        check()

    def _drain(self, records: int, check: Callable[[], None]) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while self._got < records and time.monotonic() < deadline:
            check()
            time.sleep(0.05)
        time.sleep(_LATE_DUPLICATES_S)

    def _send(self, producer: Producer, number: int, partition: int) -> None:
        value = struct.pack(">q", time.time_ns()) + FILLER
        producer.produce(self.topics[0], value, struct.pack(">q", number), partition=partition)

    def _read(self) -> None:
        consumer = read_committed(self.bootstrap, self.topics[1])
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
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._reader_error = error
        finally:
            consumer.close()

    def _note(self, key: bytes, value: bytes, now: int) -> None:
        number = int.from_bytes(key, "big", signed=True)
        if number < 0:
            self._probed.add(number)
            return
        self.audit.untransformed += value[-1:] != b"T"
        if number >= len(self._latency):
            self.audit.foreign += 1
        elif self._latency[number] >= 0:
            self.audit.dup += 1
        else:
            self._latency[number] = now - int.from_bytes(value[:8], "big")
            self._got += 1
