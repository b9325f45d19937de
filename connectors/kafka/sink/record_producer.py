"""One librdkafka producer: it queues and flushes records, and counts failures.

This part is the same with and without transactions. Both follow one rule: a checkpoint is good only
if nothing is in flight and no delivery failed. librdkafka itself continues after a refused record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.clients.client_errors import ErrorWatch, is_unwritable
from connectors.clients.client_log import log_settings
from connectors.clients.token_source import await_token
from connectors.clients.weak_callback import weakly
from transactions.clock import Deadline
from transactions.errors import DeliveryError, PhaseOneError, RecordRefusedError, SparkOnceError

logger = logging.getLogger(__name__)

_NO_TOPIC = "a row has no topic, and the sink has no `topic` option"
_DEFAULTS: Final[Mapping[str, Any]] = {
    "socket.nagle.disable": True,  # else 40 ms between two small requests
    # These two as in Kafka's Java client, and so in Spark's sink.
    "partitioner": "murmur2_random",
    "message.max.bytes": 1_048_576,
    # What is still here at the flush delays it. At full speed a batch is full before.
    "linger.ms": 3,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 262_144,
}
#: A transaction of a few records is at the broker in 3 ms. One that takes long is looked at less
#: often: each look takes the interpreter from the reading thread.
_FIRST_LOOK_S: Final = 0.001
_LOOK_GROWTH: Final = 1.25
_LAST_LOOK_S: Final = 0.01


class RecordProducer:
    """Queues batches and waits for their acknowledgements. In a task; not thread-safe.

    Args:
        settings: the user's settings, over our defaults.
        name: its name in errors.
        ours: settings that no user may change.

    Raises:
        SparkOnceError: the login needs a token, and there is none.
    """

    def __init__(self, settings: Mapping[str, Any], name: str, ours: Mapping[str, Any]) -> None:
        self._name = name
        self._failed = 0
        self._first_failure = ""
        self._unwritable = False
        self._broke = False
        self._trouble = ErrorWatch()
        await_token(settings)
        with_defaults = {**_DEFAULTS, **settings}
        self._largest = with_defaults["message.max.bytes"]
        self._producer = self._make_client(
            {
                **log_settings(),
                **with_defaults,
                **ours,
                "error_cb": weakly(self._note_error),
                "delivery.report.only.error": True,
                "on_delivery": weakly(self._note_failure),
            }
        )

    def produce(self, batch: pa.RecordBatch, topic: str | None, deadline: Deadline) -> None:
        """Queue a batch of SINK_SCHEMA (connectors.records.message_schema), or of a part of it.

        Raises:
            DeliveryError: a record was refused locally, or the broker refused an earlier one;
                RecordRefusedError if it would be refused again.
        """
        if topic is None and _has_gap(batch.column("topic")):
            raise self._not_queued(RecordRefusedError, _NO_TOPIC, topic)
        try:
            self._queue(batch, topic, deadline)
        except (KafkaException, TypeError) as error:
            code = error.args[0] if isinstance(error, KafkaException) else None
            if code == KafkaError.MSG_SIZE_TOO_LARGE:
                raise self._too_large(topic) from error
            of_broker = code is not None and not is_unwritable(code)
            kind = DeliveryError if of_broker else RecordRefusedError
            cause = f"the producer refused it: {error}"
            raise self._not_queued(kind, cause, topic) from error
        self.serve()  # a task can work for an hour before it flushes
        self._check_failures()

    def _not_queued(
        self, kind: type[DeliveryError], cause: str, topic: str | None
    ) -> DeliveryError:
        return kind(
            "A record could not be queued; its batch is aborted.",
            where=self._name,
            cause=cause,
            option=f"topic={topic}",
        )

    def _too_large(self, topic: str | None) -> RecordRefusedError:
        return RecordRefusedError(
            "A record is too large to be sent; its batch is aborted.",
            where=f"{self._name}: {topic or 'the topic that its row names'}",
            cause=f"its key, value and headers have more than {int(self._largest):,} bytes",
            option=f"kafka.max.request.size={self._largest}; the topic's max.message.bytes has to "
            "allow as much",
        )

    def forget_failures(self) -> None:
        """Count from zero again: the failures belong to a checkpoint that is over."""
        self._failed = 0
        self._unwritable = False

    def serve(self) -> None:
        """Serve the callbacks: statistics, ten a second, and errors."""
        try:
            self._producer.poll(0)
        except (KafkaException, SystemError):  # a fatal error: the task's next call raises it
            self._broke = True

    def flush(self, deadline: Deadline) -> None:
        """Wait until every record is acknowledged by the broker.

        Raises:
            DeliveryError: a record was refused, or not acknowledged in time.
        """
        # rd_kafka_flush checks every 10 ms whether it is done; only refused records wake it.
        look_s = _FIRST_LOOK_S
        try:
            while left := self._producer.flush(min(look_s, deadline.remaining())):
                if deadline.expired():
                    break
                look_s = min(look_s * _LOOK_GROWTH, _LAST_LOOK_S)
        except (KafkaException, SystemError) as error:  # SystemError after a fatal error (seen)
            raise self._lost("flush", error) from error
        self._check_failures()
        # Not `len(producer)`: it also counts events, and statistics come every 100 ms.
        if left:
            missing = self._trouble.explaining
            token = f"{missing.str()}; or " if missing else ""
            raise DeliveryError(
                f"{left} records were not acknowledged in time; the batch is aborted.",
                where=self._name,
                cause=f"{token}the broker is slow, or a partition has no leader",
                option=f"checkpoint_timeout={deadline.seconds:g} s",
            )

    def _make_client(self, settings: dict[str, Any]) -> Any:
        """Make the client; the native path has another one with the same methods and errors."""
        return Producer(settings)

    def _queue(self, batch: pa.RecordBatch, topic: str | None, deadline: Deadline) -> None:
        """Queue every row, in order. Raises KafkaException or TypeError for a refused row."""
        names = batch.schema.names
        values = batch.column("value").to_pylist()
        rows = len(values)
        keys = batch.column("key").to_pylist() if "key" in names else [None] * rows
        topics = [topic] * rows if topic is not None else batch.column("topic").to_pylist()
        extras = [name for name in ("headers", "partition", "timestamp") if name in names]
        extras = [name for name in extras if batch.column(name).null_count < rows]
        if extras:
            self._produce_with(batch, extras, zip(topics, keys, values, strict=True), deadline)
        else:
            self._produce_plain(topics, keys, values, deadline)

    def _produce_plain(
        self, topics: list[Any], keys: list[Any], values: list[Any], deadline: Deadline
    ) -> None:
        produce = self._producer.produce
        for topic, key, value in zip(topics, keys, values, strict=True):
            try:
                produce(topic, value, key)
            except BufferError:
                self._make_room(deadline)
                self._retry(deadline, topic, value=value, key=key)

    def _produce_with(
        self,
        batch: pa.RecordBatch,
        extras: list[str],
        records: Iterable[tuple[Any, Any, Any]],
        deadline: Deadline,
    ) -> None:
        """Queue rows with headers, partition or timestamp; `produce_batch` would drop headers."""
        columns = [_extra_column(batch, name) for name in extras]
        for row, (topic, key, value) in enumerate(records):
            more = {
                name: column[row]
                for name, column in zip(extras, columns, strict=True)
                if column[row] is not None
            }
            try:
                self._producer.produce(topic, value=value, key=key, **more)
            except BufferError:
                self._make_room(deadline)
                self._retry(deadline, topic, value=value, key=key, **more)

    def _retry(self, deadline: Deadline, topic: str, **record: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, **record)
            except BufferError:
                self._make_room(deadline)
            else:
                return

    def _make_room(self, deadline: Deadline) -> None:
        """Wait until the full queue has some room (W5: more records than the buffer holds)."""
        self._producer.poll(0.05)
        self._check_failures()
        if deadline.expired():
            raise DeliveryError(
                "The producer's queue stayed full until the deadline; the batch is aborted.",
                where=self._name,
                cause="the broker is slower than the source",
                option=f"checkpoint_timeout={deadline.seconds:g} s",
            )

    def _check_failures(self) -> None:
        if self._failed:
            kind = RecordRefusedError if self._unwritable else DeliveryError
            raise kind(
                f"The broker refused {self._failed} record(s); the batch is aborted.",
                where=f"{self._name}: {self._first_failure}",
                cause="a record too large, an unknown topic, a missing right, or a timestamp that "
                "the topic does not accept: this machine's clock may be wrong",
                option="kafka.max.request.size and the topic's max.message.bytes; the topic's "
                "message.timestamp.after.max.ms and message.timestamp.before.max.ms",
            )

    def _note_failure(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            first_unwritable = is_unwritable(error) and not self._unwritable
            if not self._failed or first_unwritable:
                self._first_failure = f"{message.topic()}-{message.partition()}: {error.str()}"
            self._unwritable |= first_unwritable
            self._failed += 1

    def _connections_broke(self) -> bool:
        """Return whether a connection broke since the last call; also serve the callbacks."""
        self.serve()
        broke, self._broke = self._broke, False
        return broke

    def _note_error(self, error: KafkaError) -> None:
        """Log an error. A refused connection attempt comes here too; it carried no request. A doubt
        has its line in librdkafka's log: see `TransactionalProducer`.
        """
        self._trouble(error)
        logger.info("%s: %s", self._name, error)

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (KafkaException, SystemError) as error:
            raise self._lost(name, error) from error

    def _lost(self, name: str, error: Exception) -> SparkOnceError:
        return PhaseOneError(
            f"The producer failed in {name}; its checkpoint is not decided.",
            where=self._name,
            cause=str(error),
        )


def _extra_column(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = batch.column(name)
    if name == "headers":
        return [
            None if row is None else [(header["key"], header["value"]) for header in row]
            for row in column.to_pylist()
        ]
    if name == "timestamp":
        return list(
            column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
        )
    return list(column.to_pylist())


def _has_gap(topics: pa.Array) -> bool:
    """Return whether a row has no topic. librdkafka refuses "" at once or after the answer."""
    return topics.null_count > 0 or bool(pc.any(pc.equal(topics, "")).as_py())
