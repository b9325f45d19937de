"""One librdkafka producer with one transactional id, for as long as its process lives.

The raw EndTxn of the driver goes round librdkafka's own error check, so this file keeps that
check itself: a transaction is prepared only when nothing is in flight, no delivery failed and
every record was acknowledged. After the driver's EndTxn (version 4 at most: it leaves the epoch
alone) the producer is *resynced* with its own commit, which the broker answers again with
"committed", and can begin its next transaction.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from connectors.kafka.client_errors import is_refused, is_unwritable
from transactions.clock import Deadline
from transactions.errors import (
    AuthenticationError,
    DeliveryError,
    PhaseOneError,
    RecordRefusedError,
    SparkOnceError,
)

logger = logging.getLogger(__name__)

_STATISTICS_MS: Final = 100
#: Two milliseconds as a rule; a group coordinator moves to another broker within some seconds.
_OFFSETS_S: Final = 10.0
_GRACE_S: Final = 1.0
_NO_TOPIC = "a row has no topic, and the sink has no `topic` option"


class TransactionalProducer:
    """Begins, fills, prepares and resyncs transactions. In a task; not thread-safe.

    Attributes:
        transactional_id: its id, never used by another producer, before or after.
        producer_id: Kafka's pid, -1 before `init`.
        producer_epoch: Kafka's epoch, -1 before `init`.
        spent: a connection broke during a call. librdkafka repeats EndTxn and TxnOffsetCommit by
            itself then, without a word (rdkafka_txnmgr.c), and a copy may still be under way: the
            transaction that is open is whole, but no other may be begun.
    """

    def __init__(
        self, settings: Mapping[str, Any], transactional_id: str, *, timeout_ms: int
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.producer_epoch = -1
        self._failed = 0
        self._first_failure = ""
        self._unwritable = False
        self._broke = False
        self.spent = False
        self._producer = self._make_client(
            {
                "log_level": 2,  # errors are raised where they matter, with what they mean
                "socket.nagle.disable": True,  # 40 ms between two small requests otherwise
                "partitioner": "murmur2_random",  # as Kafka's Java client, and so Spark's sink
                "linger.ms": 5,
                "queue.buffering.max.messages": 200_000,
                "queue.buffering.max.kbytes": 262_144,
                # A second bootstrap takes every broker down that a cached coordinator points to,
                # and send_offsets waits for it for ever (librdkafka issues 5511 and 5456).
                "metadata.recovery.strategy": "none",
                "statistics.interval.ms": _STATISTICS_MS,
                **settings,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "socket.max.fails": 1,  # a request that timed out breaks the connection: told
                "error_cb": _weakly(self._note_error),
                "stats_cb": _weakly(self._read_statistics),
                "delivery.report.only.error": True,
                "on_delivery": _weakly(self._note_failure),
            }
        )

    def init(self, deadline: Deadline) -> None:
        """Register the id and learn pid and epoch, once, from librdkafka's statistics.

        Raises:
            PhaseOneError: the coordinator did not answer in time, or refused.
            AuthenticationError: a right is missing.
        """
        self._call("init_transactions", self._producer.init_transactions, deadline.remaining())
        while self.producer_id < 0:
            if deadline.expired():
                raise PhaseOneError(
                    "The producer's id and epoch did not become known.",
                    where=self.transactional_id,
                    cause="the machine is overloaded",
                )
            self._producer.poll(0.02)

    def begin(self) -> None:
        """Begin a transaction; local, nothing is sent.

        Raises:
            PhaseOneError: the producer was fenced.
        """
        self._failed = 0
        self._unwritable = False
        self._call("begin_transaction", self._producer.begin_transaction)

    def produce(self, batch: pa.RecordBatch, topic: str | None, deadline: Deadline) -> None:
        """Queue a batch of the sink's schema (connectors.records.SINK_SCHEMA or part of it).

        Raises:
            DeliveryError: a record was refused locally, or an earlier one by the broker;
                RecordRefusedError when it would be refused again.
        """
        if topic is None and _has_gap(batch.column("topic")):
            raise self._not_queued(RecordRefusedError, _NO_TOPIC, topic)
        try:
            self._queue(batch, topic, deadline)
        except (KafkaException, TypeError) as error:
            of_broker = isinstance(error, KafkaException) and not is_unwritable(error.args[0])
            kind = DeliveryError if of_broker else RecordRefusedError
            cause = f"the producer refused it: {error}"
            raise self._not_queued(kind, cause, topic) from error
        self._check_failures()

    def _not_queued(
        self, kind: type[DeliveryError], cause: str, topic: str | None
    ) -> DeliveryError:
        return kind(
            "A record could not be queued; its batch is aborted.",
            where=self.transactional_id,
            cause=cause,
            option=f"topic={topic}",
        )

    def serve(self) -> None:
        """Take what waits for its callbacks: statistics, ten a second, and errors."""
        try:
            self._producer.poll(0)
        except (KafkaException, SystemError):  # a fatal error: the next call of a task says which
            self._broke = True

    def flush(self, deadline: Deadline) -> None:
        """Wait until every record is acknowledged by the broker.

        Raises:
            DeliveryError: one was refused, or not acknowledged in time.
        """
        try:
            left = self._producer.flush(deadline.remaining())
        except (KafkaException, SystemError) as error:  # SystemError after a fatal error (seen)
            raise self._lost("flush", error) from error
        self._check_failures()
        # Not `len(producer)`: it counts waiting events too, and statistics come every 100 ms.
        if left:
            raise DeliveryError(
                f"{left} records were not acknowledged in time; the batch is aborted.",
                where=self.transactional_id,
                cause="the broker is slow, or a partition has no leader",
                option=f"checkpoint_timeout={deadline.seconds:g} s",
            )

    def send_offsets(
        self, group: str, offsets: Mapping[str, int], token: str, deadline: Deadline
    ) -> None:
        """Put offsets, with the token as metadata, into the transaction.

        An empty list, or a negative offset, would succeed and send nothing (seen): refused here.

        Raises:
            PhaseOneError: the group coordinator refused, or did not answer in time.
        """
        assert offsets
        assert min(offsets.values()) >= 0
        positions = []
        for name, offset in offsets.items():
            topic, _, partition = name.rpartition("-")
            positions.append(TopicPartition(topic, int(partition), offset, metadata=token))
        seconds = min(deadline.remaining(), _OFFSETS_S)
        self._connections_broke()
        self._call_on_a_thread(
            "send_offsets_to_transaction",
            self._producer.send_offsets_to_transaction,
            positions,
            _group_metadata(group),
            seconds,
            seconds=seconds,
        )
        self.spent |= self._connections_broke()

    def resync(self, deadline: Deadline) -> None:
        """End a transaction on this side that the driver has committed on the broker.

        Raises:
            PhaseOneError: without a clear answer: retire this producer and its id.
        """
        self._end("commit_transaction", self._producer.commit_transaction, deadline)

    def abort(self, deadline: Deadline) -> None:
        """Abort the transaction that is open.

        Raises:
            PhaseOneError: without a clear answer: retire this producer and its id.
        """
        self._producer.purge(in_flight=False)
        self._end("abort_transaction", self._producer.abort_transaction, deadline)
        self._failed = 0

    def _end(self, name: str, function: Callable[[float], Any], deadline: Deadline) -> None:
        """Send EndTxn; an answer that may not be the only one's is no clear one (rule 3)."""
        self._connections_broke()
        self._call(name, function, deadline.remaining())
        if self._connections_broke():
            self.spent = True
            raise PhaseOneError(
                f"A connection broke during {name}; a repeated request may still be under way.",
                where=self.transactional_id,
                cause="the broker or the network; this producer is replaced",
            )

    def _make_client(self, settings: dict[str, Any]) -> Any:
        """Make the client; the native path has another with the same verbs and errors."""
        return Producer(settings)

    def _queue(self, batch: pa.RecordBatch, topic: str | None, deadline: Deadline) -> None:
        """Hand every row to the client, in order. KafkaException, TypeError: a row was refused."""
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
        """Rows with headers, a partition or a timestamp; `produce_batch` would drop headers."""
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
        """Wait for the full queue to drain a little (W5: more than the buffer holds)."""
        self._producer.poll(0.05)
        self._check_failures()
        if deadline.expired():
            raise DeliveryError(
                "The producer's queue stayed full until the deadline; the batch is aborted.",
                where=self.transactional_id,
                cause="the broker is slower than the source",
                option=f"checkpoint_timeout={deadline.seconds:g} s",
            )

    def _check_failures(self) -> None:
        if self._failed:
            kind = RecordRefusedError if self._unwritable else DeliveryError
            raise kind(
                f"The broker refused {self._failed} record(s); the batch is aborted.",
                where=f"{self.transactional_id}: {self._first_failure}",
                cause="a record too large, an unknown topic, or a missing right",
                option="kafka.max.request.size and the topic's max.message.bytes",
            )

    def _note_failure(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            first_unwritable = is_unwritable(error) and not self._unwritable
            if not self._failed or first_unwritable:
                self._first_failure = f"{message.topic()}-{message.partition()}: {error.str()}"
            self._unwritable |= first_unwritable
            self._failed += 1

    def _connections_broke(self) -> bool:
        """Tell whether one did since it was asked last; what waits for callbacks is served."""
        self.serve()
        broke, self._broke = self._broke, False
        return broke

    def _note_error(self, error: KafkaError) -> None:
        logger.info("%s: %s", self.transactional_id, error)
        self._broke = True

    def _read_statistics(self, text: str) -> None:
        if self.producer_id < 0:
            facts = orjson.loads(text).get("eos", {})
            if facts.get("producer_id", -1) >= 0 and facts.get("txn_state") != "Init":
                self.producer_epoch = facts["producer_epoch"]
                self.producer_id = facts["producer_id"]

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            function(*arguments)
        except (KafkaException, SystemError) as error:
            raise self._lost(name, error) from error

    def _call_on_a_thread(
        self, name: str, function: Callable[..., Any], *arguments: Any, seconds: float
    ) -> None:
        """Call what can outlive its own timeout.

        librdkafka waits for ever for a group coordinator whose connection broke in the wrong
        moment (its issue 5456): the thread is left behind with its producer, the attempt fails.
        """
        failures: list[SparkOnceError] = []

        def call() -> None:
            try:
                self._call(name, function, *arguments)
            except SparkOnceError as error:
                failures.append(error)

        thread = threading.Thread(target=call, name=f"{name}-{self.transactional_id}", daemon=True)
        thread.start()
        thread.join(seconds + _GRACE_S)
        if thread.is_alive():
            raise self._lost(name, TimeoutError(f"it did not return within {seconds:g} s"))
        if failures:
            raise failures[0]

    def _lost(self, name: str, error: Exception) -> SparkOnceError:
        if isinstance(error, KafkaException) and is_refused(error.args[0]):
            return AuthenticationError(
                f"The broker refuses {name} of the transactional producer.",
                where=self.transactional_id,
                cause=str(error),
                option="ACLs: WRITE and DESCRIBE on the transactional ids, READ on the groups "
                "of the application",
            )
        return PhaseOneError(
            f"The transactional producer failed in {name}; its transaction is not decided.",
            where=self.transactional_id,
            cause=str(error),
            option=f"transaction.timeout.ms={self.timeout_ms}",
        )


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a callback that does not keep its producer alive.

    A producer that was dropped would wait for the cyclic collector otherwise, for ever where the
    worker's heap was frozen, and nobody takes the statistics that it queues meanwhile: 100 KB a
    second (measured).
    """
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*arguments)

    return call


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
    """Tell whether a row names none. librdkafka refuses "" now or later, as the broker answers."""
    return topics.null_count > 0 or bool(pc.any(pc.equal(topics, "")).as_py())


_GROUPS: dict[str, bytes] = {}


def _group_metadata(group: str) -> bytes:
    """Return a group's metadata; a consumer that never polls gives it without a broker."""
    if group not in _GROUPS:
        consumer = Consumer({"group.id": group})
        try:
            _GROUPS[group] = consumer.consumer_group_metadata()
        finally:
            consumer.close()
    return _GROUPS[group]
