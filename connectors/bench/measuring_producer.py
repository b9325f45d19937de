"""The benchmark's producer. It is idempotent, so only the job can cause a duplicate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connectors.bench.shape import Shape
from connectors.clients.client_errors import is_refused, is_unwritable
from connectors.clients.client_settings import librdkafka_settings, settings_checked
from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ConfigurationError,
    SparkOnceError,
)

_FLUSH_S: Final = 60.0
_FULL_S: Final = 0.05
_POLL_EVERY: Final = 1000


class MeasuringProducer:
    """A context manager, because an open producer would create a deleted topic again.

    Args:
        kafka: client settings in Java naming.
        topic: the target topic.
        shape: shape of the records.
        linger_ms: how long a batch waits for more records.
    """

    def __init__(
        self, kafka: Mapping[str, str], topic: str, shape: Shape, *, linger_ms: int
    ) -> None:
        self._topic = topic
        self._shape = shape
        self._brokers = kafka.get("bootstrap.servers", "")
        self._refused: KafkaError | None = None
        settings: dict[str, Any] = {
            **librdkafka_settings(kafka),
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": self._delivered,
            "queue.buffering.max.messages": 1_000_000,
            "linger.ms": linger_ms,
            "log_level": 2,
        }
        with settings_checked(kafka, "producer"):
            self._producer = Producer(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._producer.purge()  # after an error nobody waits for queued records
        self._producer.close()

    def send(self, number: int) -> None:
        """Queue a record with the present time in it; wait while the queue is full.

        Raises:
            SparkOnceError: as `flush`.
        """
        while True:
            value = self._shape.value(time.time_ns())
            key, partition = self._shape.key(number), self._shape.partition(number)
            try:
                self._producer.produce(self._topic, value, key, partition=partition)
                return
            except BufferError:
                self.poll(_FULL_S)
            except KafkaException as error:
                raise self._error(error.args[0]) from error

    def poll(self, timeout_s: float = 0.0) -> None:
        """Handle the delivery reports that have arrived.

        Raises:
            SparkOnceError: a record was refused.
        """
        self._producer.poll(timeout_s)
        if self._refused is not None:
            raise self._error(self._refused)

    def flush(self, timeout_s: float = _FLUSH_S) -> None:
        """Wait until the brokers have accepted all records.

        Raises:
            ConfigurationError: a record is too large for the brokers, or a right is missing.
            BrokerUnavailableError: the brokers refused a record for another reason, or did not
                answer in time.
        """
        deadline = Deadline(timeout_s)
        # Short steps, because Python handles ctrl-C only between two of them.
        while (left := self._producer.flush(min(0.2, deadline.remaining()))) > 0:
            if deadline.expired():
                raise BrokerUnavailableError(
                    f"The brokers did not accept all records within {timeout_s:g} s.",
                    where=f"{left:,} records for {self._topic} are left",
                    cause="a broker is down, or slower than the producer",
                    option=f"kafka.bootstrap.servers={self._brokers}",
                )
        self.poll()

    def load(self, records: int, watch: Callable[[int], None]) -> float:
        """Produce `records` ids from 0 as fast as possible; return records per second.

        Raises:
            SparkOnceError: as `flush`.
        """
        begin = SYSTEM_CLOCK.monotonic()
        for number in range(records):
            self.send(number)
            if number % _POLL_EVERY == 0:
                self.poll()
                watch(number)
        self.flush()
        watch(records)
        return records / (SYSTEM_CLOCK.monotonic() - begin)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and self._refused is None:
            self._refused = error

    def _error(self, error: KafkaError) -> SparkOnceError:
        if is_refused(error):
            return AuthenticationError(
                "The broker refused the benchmark's producer.",
                where=self._topic,
                cause=error.str(),
                option="kafka.security.protocol",
            )
        if is_unwritable(error):
            size = self._shape.value_bytes
            return ConfigurationError(
                "The brokers do not accept this record.",
                where=f"{self._topic}, a value of {size:,} bytes",
                cause=error.str(),
                option="--record-size, or the brokers' message.max.bytes",
            )
        return BrokerUnavailableError(
            "The brokers did not accept a record.",
            where=self._topic,
            cause=error.str(),
            option=f"kafka.bootstrap.servers={self._brokers}",
        )
