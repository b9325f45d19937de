"""The Kafka sink's half in the tasks: it writes Arrow batches in Kafka transactions.

A task's closure takes it to the workers as plain data. There `begin_transaction`, `invoke`,
`pre_commit` and `abort` use a live producer from the process's pool.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from connectors.clients.client_settings import librdkafka_settings
from connectors.kafka.sink.producer_pool import ProducerPool, Producers, Slot, pool_for
from connectors.options.client_options import servers_of
from connectors.records.fingerprint import Fingerprint, TopicFingerprint
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import SparkOnceError
from transactions.sink import Attempt, Cluster, Owner
from transactions.two_phase import Event, Lifecycle

logger = logging.getLogger(__name__)

_ABORT_SECONDS = 10.0


@dataclasses.dataclass(slots=True)
class KafkaTransaction:
    """A transaction on the worker that writes it; live, never pickled."""

    attempt: Attempt
    token: str
    deadline: Deadline
    lifecycle: Lifecycle
    fingerprint: Fingerprint = dataclasses.field(default_factory=Fingerprint)
    slot: Slot | None = None
    marker_partition: str = ""
    flushed: bool = False


class KafkaWriter:
    """Writes Arrow batches of SINK_SCHEMA (`connectors.records.message_schema`) in transactions.

    Attributes:
        name: see `Writer.name`.
        topic: of all rows; None: each row names its own.
        settings: client settings with the brokers in them.
        timeout_ms: the transaction timeout, which the driver checked against the broker.
        offsets_partitions: the number of `__consumer_offsets` partitions; 0 if the driver has not
            asked.
        cluster_id: see `Cluster`.
        producers: the source of a task's producers; None: this process's pool.

    Args:
        name: see above.
        topic: see above.
        settings: see above.
        timeout_ms: see above.
        checkpoint_timeout_s: how long any one task may take.
        offsets_partitions: see above.
        cluster_id: see above.
    """

    producers: Producers | None = None

    def __init__(
        self,
        name: str,
        topic: str | None,
        settings: Mapping[str, str],
        *,
        timeout_ms: int,
        checkpoint_timeout_s: float,
        offsets_partitions: int = 0,
        cluster_id: str = "",
    ) -> None:
        self.name = name
        self.topic = topic
        self.settings = settings
        self.timeout_ms = timeout_ms
        self.offsets_partitions = offsets_partitions
        self.cluster_id = cluster_id
        self._checkpoint_timeout_s = checkpoint_timeout_s

    def carries_offsets_of(self, cluster: Cluster) -> bool:
        """See `CarriesOffsets`: a transaction can contain the offsets of its own cluster."""
        servers = servers_of(self.settings["bootstrap.servers"])
        return Cluster(servers, self.cluster_id).is_same(cluster)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the producers out when a closure takes the writer to a worker."""
        return {**self.__dict__, "producers": None}

    def begin_transaction(self, attempt: Attempt) -> KafkaTransaction:
        """See `Writer.begin_transaction`. The first record takes the producer, so an idle branch
        costs nothing.
        """
        token = f"{attempt.checkpoint_id}.{attempt.subtask}.{secrets.token_hex(8)}"
        lifecycle = Lifecycle(token)
        lifecycle.advance(Event.BEGIN)
        return KafkaTransaction(attempt, token, self.new_deadline(), lifecycle)

    @contextlib.contextmanager
    def own_producers(self, owner: Owner) -> Iterator[None]:
        """Use producers of its own inside the block, in a process without tasks. Nobody would serve
        them in the pool: each would queue statistics for ever, 104 kB a second (measured). The
        transactions that they prepared do not need them later.
        """
        settings = librdkafka_settings(self.settings)
        self.producers = ProducerPool(
            owner,
            settings,
            timeout_ms=self.timeout_ms,
            offsets_partitions=self.offsets_partitions,
        )
        try:
            yield
        finally:
            self.producers = None

    def new_fingerprint(self) -> TopicFingerprint:
        """Return an empty fingerprint, for records to compare with the decided ones."""
        return TopicFingerprint(self.topic)

    def new_deadline(self) -> Deadline:
        """Return the deadline of a step that begins now."""
        return Deadline(self._checkpoint_timeout_s)

    def invoke(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        """See `Writer.invoke`.

        Args:
            transaction: from `begin_transaction`.
            batch: columns of `SINK_SCHEMA`; `value` must be there, others may be missing.
        """
        if batch.num_rows == 0:
            return
        transaction.lifecycle.advance(Event.INVOKE)
        assert not transaction.flushed, "a record after the flush would be committed unacknowledged"
        slot = self._slot(transaction)
        if not transaction.marker_partition:
            self._send_marker(transaction, self.topic or batch.column("topic")[0].as_py())
        transaction.fingerprint.add(batch, self.topic)
        slot.producer.produce(batch, self.topic, transaction.deadline)

    def flush(self, transaction: KafkaTransaction) -> None:
        """Do the first half of `pre_commit`, for a caller that then writes with another producer.
        Nothing is invoked on this transaction afterwards.

        Raises:
            DeliveryError: a record was refused, or not acknowledged in time.
        """
        attempt = transaction.attempt
        if transaction.flushed or (transaction.slot is None and not attempt.source_offsets):
            return
        producer = self._slot(transaction).producer
        if not transaction.marker_partition:
            self._send_marker(transaction)
        crash_points.reach("records_queued", attempt.checkpoint_id)
        if attempt.source_offsets:
            group = attempt.owner.application_id
            producer.send_offsets(
                group, attempt.source_offsets, transaction.token, transaction.deadline
            )
        producer.flush(transaction.deadline)
        transaction.flushed = True
        crash_points.reach("records_flushed", attempt.checkpoint_id)

    def pre_commit(self, transaction: KafkaTransaction) -> Committable | None:
        """See `Writer.pre_commit`: it waits until records and offsets are at their brokers."""
        attempt = transaction.attempt
        self.flush(transaction)
        if transaction.slot is None:
            transaction.lifecycle.advance(Event.PRE_COMMIT_EMPTY)
            return None
        producer = transaction.slot.producer
        fingerprint = transaction.fingerprint.hex()  # the rest of it, while offsets are sent
        if attempt.source_offsets:
            producer.await_offsets()
        transaction.lifecycle.advance(Event.PRE_COMMIT)
        crash_points.reach("offsets_sent", attempt.checkpoint_id)
        return Committable(
            sink=self.name,
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            timeout_ms=self.timeout_ms,
            checkpoint_id=attempt.checkpoint_id,
            subtask=attempt.subtask,
            attempt=attempt.attempt_id,
            token=transaction.token,
            record_count=transaction.fingerprint.count,
            fingerprint=fingerprint,
            source_offsets=dict(attempt.source_offsets),
            marker_group=producer.transactional_id,
            marker_partition=transaction.marker_partition,
        )

    def abort(self, transaction: KafkaTransaction) -> None:
        """See `Writer.abort`. The producer is retired: it can still receive reports of the failed
        transaction and would count them for the next transaction (seen).
        """
        transaction.lifecycle.advance(Event.ABORT)
        if transaction.slot is None:
            return
        self._pool(transaction.attempt.owner).drop(transaction.slot)
        try:
            transaction.slot.producer.abort(Deadline(_ABORT_SECONDS))
        except SparkOnceError as error:
            logger.warning(
                "the abort of %s failed: %s; the sweep ends it", transaction.token, error
            )

    def _pool(self, owner: Owner) -> Producers:
        if self.producers is not None:
            return self.producers
        settings = librdkafka_settings(self.settings)
        return pool_for(
            owner,
            self.name,
            settings,
            timeout_ms=self.timeout_ms,
            offsets_partitions=self.offsets_partitions,
        )

    def _slot(self, transaction: KafkaTransaction) -> Slot:
        if transaction.slot is None:
            pool = self._pool(transaction.attempt.owner)
            slot = pool.take(transaction.attempt, transaction.token, transaction.deadline)
            transaction.slot = slot
            slot.producer.begin()
        return transaction.slot

    def _send_marker(self, transaction: KafkaTransaction, first_topic: str | None = None) -> None:
        """Make the marker the transaction's first operation: see `transaction_marker`."""
        attempt, slot = transaction.attempt, transaction.slot
        assert slot is not None
        # The marker's partition must exist and be readable for us: the source's partitions are.
        where = min(attempt.source_offsets, default=first_topic and f"{first_topic}-0")
        if not where:
            return  # a row without a topic; the producer refuses it with a better message
        producer, deadline = slot.producer, transaction.deadline
        if not attempt.source_offsets and first_topic and not self.topic:
            producer.find_topic(first_topic, deadline)
        marker = {where: attempt.checkpoint_id}
        producer.send_offsets(producer.transactional_id, marker, transaction.token, deadline)
        producer.await_offsets()
        transaction.marker_partition = where
