"""The auditor: reads both outputs *during* the faults, and judges everything once more at the end.

It imports nothing of the product and talks to the brokers directly. It knows the workload's rule:
output partition p holds ``p-0, p-1, p-2, ...``, each once and in this order, whatever dies. So the
first record that is not the next one is an anomaly, and it is named at once:

    duplicate          the number was seen before: also how a *visible aborted* record shows, since
                       every aborted attempt is written again
    gap                numbers were left out: a loss, or a *torn batch* (one partition's transaction
                       is invisible, the next batch stands behind it)
    count went back    the stateful output says a number twice, or a smaller one
    foreign value      nobody produced it

The input is judged by the same rule, not believed: an idempotent producer whose brokers were all
killed within one acknowledgement can write a record twice (seen once in an hour), and a copy of
what the input holds twice is no duplicate. So before a duplicate is named, the input is counted.

A loss at the tail has no record behind it: only the end can tell, `final_audit`, which first makes
sure that no open transaction hides anything (S11).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from tests.auditor import (
    Record,
    assert_no_open_transaction,
    history_of,
    judge,
    read_committed,
)

_SHOWN = 20
OPEN_S = 60.0  # markers of a commit may still be on their way


class Ledger:
    """What a reader has seen so far, and the anomalies in it. One thread writes it.

    Args:
        in_input: tells how often a value stands in the input; asked only about what is seen again.
    """

    def __init__(self, in_input: Callable[[bytes | None], int] = lambda _: 1) -> None:
        self._in_input = in_input
        self.doubled_input: Counter[bytes | None] = Counter()
        self.next: Counter[int] = Counter()
        self.counts: dict[bytes | None, int] = {}
        self.anomalies: list[str] = []
        self.seen = 0

    def copy(self, partition: int, offset: int, value: bytes | None) -> None:
        """Take a record of the stateless output."""
        self.seen += 1
        source, _, number = (value or b"").partition(b"-")
        if source != b"%d" % partition or not number.isdigit():
            self._odd(f"foreign value: {value!r} @{partition}:{offset}")
            return
        due = self.next[partition]
        if int(number) < due:
            self.doubled_input[value] += 1
            if self._in_input(value) > self.doubled_input[value]:
                return
            self.doubled_input[value] -= 1
            self._odd(f"duplicate: {value!r} @{partition}:{offset}, {due} was due")
            return
        if int(number) > due:
            self._odd(f"gap: {value!r} @{partition}:{offset}, {due} was due")
        self.next[partition] = int(number) + 1

    def count(self, key: bytes | None, offset: int, value: bytes | None) -> None:
        """Take a record of the stateful output: counts of one key only grow."""
        number = int(value or b"-1")
        if number <= self.counts.get(key, 0):
            before = self.counts[key]
            self._odd(f"count went back: {key!r} from {before} to {number} @{offset}")
        self.counts[key] = number

    def _odd(self, what: str) -> None:
        if len(self.anomalies) < _SHOWN:
            self.anomalies.append(what)


class LiveAuditor:
    """Follows the outputs as a read_committed consumer, from the beginning.

    Attributes:
        ledger: what it has seen.
        longest_silence: the longest time without a new visible record, in seconds.
        failure: what ended it, if something did: no finding, a fault of the test itself.
    """

    def __init__(
        self, bootstrap: str, source: str, copies: str, counts: str | None, *, partitions: int
    ) -> None:
        self.ledger = Ledger(lambda value: _times(bootstrap, source, value))
        self.longest_silence = 0.0
        self.failure: str = ""
        self._copies = copies
        self._last = 0.0
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "chaos-auditor",  # required by the client, nothing is committed
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [
                TopicPartition(topic, partition, OFFSET_BEGINNING)
                for topic in (copies, *([] if counts is None else [counts]))
                for partition in range(partitions)
            ]
        )
        self._thread = threading.Thread(target=self._follow, name="auditor", daemon=True)

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
        self._thread.join(30.0)
        self._consumer.close()

    def silence(self) -> float:
        """Return the seconds since the last new record, 0 before the first."""
        return time.monotonic() - self._last if self._last else 0.0

    def _follow(self) -> None:
        while not self._stopping.is_set() and not self.failure:
            for message in self._consumer.consume(2000, 0.2):
                self._take(message)

    def _take(self, message: Message) -> None:
        error: KafkaError | None = message.error()
        if error is not None:
            if error.code() != KafkaError._ALL_BROKERS_DOWN:
                self.failure = f"the auditor cannot read on: {error}"
            return
        self.longest_silence = max(self.longest_silence, self.silence())
        self._last = time.monotonic()
        if message.topic() == self._copies:
            self.ledger.copy(message.partition(), message.offset(), message.value())
        else:
            self.ledger.count(message.key(), message.offset(), message.value())


def final_audit(
    bootstrap: str, source: str, copies: str, counts: str | None, live: Ledger | None = None
) -> list[str]:
    """Compare the whole input with the whole output; return the anomalies, none if all is well.

    Args:
        bootstrap: brokers.
        source: the input topic.
        copies: the stateless output.
        counts: the stateful output; None: the pipeline has none.
        live: what a reader saw during the run; it must have seen the same.

    Raises:
        OpenTransaction: an undecided transaction is left (S11); nothing may be counted.
    """
    for topic in filter(None, (copies, counts)):
        assert_no_open_transaction(bootstrap, topic, timeout=OPEN_S)
    inputs = read_committed(bootstrap, source, timeout=120.0)
    outputs = read_committed(bootstrap, copies, timeout=120.0)
    places = {**_occurrences(inputs), **_occurrences(outputs)}
    history = history_of(
        inputs, outputs, identify=lambda one: places[one.topic, one.partition, one.offset]
    )
    anomalies = [str(case) for case in judge(history)[:_SHOWN]]
    in_input = Counter(record.value for record in inputs)
    ledger = Ledger(in_input.__getitem__)
    for record in outputs:
        ledger.copy(record.partition, record.offset, record.value)
    if counts is not None:
        for record in read_committed(bootstrap, counts, timeout=120.0):
            ledger.count(record.key, record.offset, record.value)
    anomalies += ledger.anomalies
    expected = Counter(record.key for record in inputs if counts is not None)
    if ledger.counts != dict(expected):
        anomalies.append(f"counts differ: {ledger.counts}, expected {dict(expected)}")
    if live is not None and (live.next, live.counts) != (ledger.next, ledger.counts):
        anomalies.append(
            f"readers disagree: during the run {dict(live.next)} {live.counts}, "
            f"afterwards {dict(ledger.next)} {ledger.counts}"
        )
    return anomalies


def _times(bootstrap: str, topic: str, value: bytes | None) -> int:
    return sum(one.value == value for one in read_committed(bootstrap, topic, timeout=120.0))


def _occurrences(records: Iterable[Record]) -> dict[tuple[str, int, int], object]:
    """Name each record by its value and by how often that stood in its partition before."""
    before: Counter[tuple[int, bytes | None]] = Counter()
    names: dict[tuple[str, int, int], object] = {}
    for one in sorted(records, key=lambda record: (record.partition, record.offset)):
        names[one.topic, one.partition, one.offset] = (one.value, before[one.partition, one.value])
        before[one.partition, one.value] += 1
    return names
