"""The read_committed end of a topic, sampled while a job writes to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from connectors.clients.client_errors import is_final, translate
from connectors.clients.client_settings import admin_client
from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.errors import SparkOnceError

Ints = npt.NDArray[np.int64]

_ASK_S: Final = 10.0
_AGAIN_S: Final = 0.1
_SAMPLE_S: Final = 0.01
#: Duplicates come late: the end must be at rest for this time.
_REST_S: Final = 2.0


class EndWatcher:
    """Samples how many records a reader may see, and when.

    Args:
        kafka: client settings in Java naming.
        topic: the job's output.
        partitions: the number of its partitions.
    """

    def __init__(self, kafka: Mapping[str, str], topic: str, partitions: int) -> None:
        self._kafka = kafka
        self._topic = topic
        self._admin = admin_client(kafka)
        self._ask = {TopicPartition(topic, n): OffsetSpec.latest() for n in range(partitions)}
        #: When a new end was seen, ns of the wall clock.
        self.times: list[int] = []
        #: The end of each partition at that time.
        self.ends: list[tuple[int, ...]] = []

    def sample(self) -> int:
        """Take a sample; return the sum of the ends, markers included.

        Raises:
            BrokerUnavailableError: no answer.
        """
        deadline = Deadline(_ASK_S)
        while True:
            try:
                ends = self._ends()
                break
            except KafkaException as error:
                # A new leader may not know yet that it leads the topic (seen).
                if is_final(error.args[0]) or deadline.expired():
                    raise translate(error.args[0], self._topic, self._kafka) from error
                deadline.pause(_AGAIN_S)
                # The old client can keep the leaders that it knows.
                self._admin = admin_client(self._kafka)
        now = time.time_ns()  # after the answer: a broker under load answers late
        if not self.ends or ends != self.ends[-1]:
            self.times.append(now)
            self.ends.append(ends)
        return sum(ends)

    def _ends(self) -> tuple[int, ...]:
        answers = self._admin.list_offsets(
            self._ask, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ASK_S
        )
        return tuple(answers[key].result().offset for key in self._ask)

    def wait_for(
        self,
        records: int,
        *,
        timeout_s: float,
        check: Callable[[], None],
        watch: Callable[[int], None] = lambda _visible: None,
    ) -> None:
        """Sample until the end is at rest with at least so many offsets.

        Args:
            records: number of loaded records.
            timeout_s: when to stop waiting.
            check: called after each sample; raises when the job has ended.
            watch: called with the offsets that are visible, markers included.

        Raises:
            SparkOnceError: the timeout expired, or `check` raised.
        """
        deadline = Deadline(timeout_s)
        while True:
            total = self.sample()
            watch(total)
            rest_s = (time.time_ns() - self.times[-1]) / 1e9
            if total >= records and rest_s > _REST_S:
                return
            check()
            if deadline.expired():
                raise SparkOnceError(
                    f"The records did not become visible within {timeout_s:.0f} s.",
                    where=f"{self._topic}: {total:,} of {records:,} offsets are visible",
                    cause="the job makes no progress, or is slower than 5,000 records/s",
                    option="--records",
                )
            SYSTEM_CLOCK.sleep(_SAMPLE_S)

    def visible(self, offsets: list[Ints]) -> Ints:
        """Return how many of the records with these offsets each sample saw."""
        ends = np.array(self.ends, dtype=np.int64)
        return sum(
            (np.searchsorted(mine, ends[:, n]) for n, mine in enumerate(offsets)),
            start=np.zeros(len(ends), dtype=np.int64),
        )
