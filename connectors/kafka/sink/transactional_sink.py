"""The Kafka sink of the two-phase contract.

One object, two lives. It travels to the workers in a task's closure as plain data; there
`begin_transaction`, `invoke`, `pre_commit` and `abort` find a live producer in the process's
pool. On the driver `check_prepared`, `commit`, `recover_and_commit`, `lingering` and
`recover_and_abort` talk to the transaction coordinator themselves, because the process that
wrote a transaction may be dead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from connectors.clients.client_settings import librdkafka_settings
from connectors.clients.transactional_id import TransactionalId, probe_id
from connectors.kafka.sink.prepared import not_prepared, output_partitions
from connectors.kafka.sink.producer_pool import ProducerPool, Producers, Slot, pool_for
from connectors.kafka.sink.retired_ids import RetiredIds
from connectors.kafka.sink.transaction_marker import Token, compare
from connectors.options.kafka_sink import KafkaSink
from connectors.records.fingerprint import Fingerprint, TopicFingerprint
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import PhaseOneError, SparkOnceError
from transactions.sink import Attempt, Owner
from transactions.two_phase import Event, Lifecycle

if TYPE_CHECKING:
    from connectors.kafka.sink.ownership import Ownership
    from connectors.kafka.sink.visibility import CommitVisibility
    from connectors.wire.coordinator_wire import CoordinatorWire

logger = logging.getLogger(__name__)

_COMMITTED_STATES = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED_STATES = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
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


class KafkaTransactionalSink:
    """Writes Arrow batches of SINK_SCHEMA (`connectors.records.message_schema`) in transactions.

    Attributes:
        options: what the user said.
        timeout_ms: the transaction timeout, checked against the broker by the driver.
        offsets_partitions: how many `__consumer_offsets` has; 0 where the driver has not asked.

    Args:
        options: see above.
        timeout_ms: see above.
        checkpoint_timeout_s: how long any one task may take.
    """

    def __init__(self, options: KafkaSink, *, timeout_ms: int, checkpoint_timeout_s: float) -> None:
        self.options = options
        self.timeout_ms = timeout_ms
        self.offsets_partitions = 0
        self._checkpoint_timeout_s = checkpoint_timeout_s
        self._wire: CoordinatorWire | None = None
        self._visibility: CommitVisibility | None = None
        self._retired = RetiredIds()
        #: On the driver: the run's claim to its application on this cluster; None where nobody
        #: else can run, as in a test.
        self.ownership: Ownership | None = None
        #: Where a task's producers come from; None: this process's pool.
        self.producers: Producers | None = None

    @property
    def name(self) -> str:
        """See `TwoPhaseCommitSink.name`."""
        return self.options.name

    def __getstate__(self) -> dict[str, Any]:
        """Leave the driver's connection at home when a closure takes the sink to a worker."""
        live: dict[str, Any] = {"_wire": None, "_visibility": None, "producers": None}
        return {**self.__dict__, **live, "ownership": None, "_retired": RetiredIds()}

    # --- in the task ------------------------------------------------------------------------

    def begin_transaction(self, attempt: Attempt) -> KafkaTransaction:
        """See `TwoPhaseCommitSink.begin_transaction`; the producer is taken with the first
        record, so that an idle branch costs nothing.
        """
        token = f"{attempt.checkpoint_id}.{attempt.subtask}.{secrets.token_hex(8)}"
        lifecycle = Lifecycle(token)
        lifecycle.advance(Event.BEGIN)
        return KafkaTransaction(attempt, token, self.new_deadline(), lifecycle)

    @contextlib.contextmanager
    def own_producers(self, owner: Owner) -> Iterator[None]:
        """Write inside with producers that end with it, for a process that has no tasks. In the
        pool nobody would serve them: each queues its statistics for ever then, 104 kB a second
        (measured). What they have prepared does not need them.
        """
        settings = librdkafka_settings(self.options.settings)
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
        """Return an empty one, for records that are compared with what was decided."""
        return TopicFingerprint(self.options.topic)

    def new_deadline(self) -> Deadline:
        """Return when a step that begins now must be done."""
        return Deadline(self._checkpoint_timeout_s)

    def invoke(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        """See `TwoPhaseCommitSink.invoke`.

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
            self._send_marker(transaction, self.options.topic or batch.column("topic")[0].as_py())
        transaction.fingerprint.add(batch, self.options.topic)
        slot.producer.produce(batch, self.options.topic, transaction.deadline)

    def flush(self, transaction: KafkaTransaction) -> None:
        """The first half of `pre_commit`, for a caller that goes on writing after it, with another
        producer; nothing is invoked on this transaction any more.

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
        """See `TwoPhaseCommitSink.pre_commit`: records and offsets, both at their brokers."""
        attempt = transaction.attempt
        self.flush(transaction)
        if transaction.slot is None:
            transaction.lifecycle.advance(Event.PRE_COMMIT_EMPTY)
            return None
        producer = transaction.slot.producer
        fingerprint = transaction.fingerprint.hex()  # what is left of it, while offsets are sent
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
        """See `TwoPhaseCommitSink.abort`. The producer is retired: reports of the failed
        transaction can still arrive on it and would be taken for the next one's (seen).
        """
        transaction.lifecycle.advance(Event.ABORT)
        if transaction.slot is None:
            return
        self._pool(transaction.attempt.owner).drop(transaction.slot)
        try:
            transaction.slot.producer.abort(Deadline(_ABORT_SECONDS))
        except SparkOnceError as error:
            logger.warning("abort of %s: %s; the sweep ends it", transaction.token, error)

    def _pool(self, owner: Owner) -> Producers:
        if self.producers is not None:
            return self.producers
        settings = librdkafka_settings(self.options.settings)
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
        """Make the marker the first operation of the transaction: see `transaction_marker`."""
        attempt, slot = transaction.attempt, transaction.slot
        assert slot is not None
        # Its partition has to exist, and to be one that we may read: those of the source are.
        where = min(attempt.source_offsets, default=first_topic and f"{first_topic}-0")
        if not where:
            return  # a row without a topic, which the producer refuses in better words
        producer, deadline = slot.producer, transaction.deadline
        if not attempt.source_offsets and first_topic and not self.options.topic:
            producer.find_topic(first_topic, deadline)
        marker = {where: attempt.checkpoint_id}
        producer.send_offsets(producer.transactional_id, marker, transaction.token, deadline)
        producer.await_offsets()
        transaction.marker_partition = where

    # --- on the driver ----------------------------------------------------------------------

    @property
    def wire(self) -> CoordinatorWire:
        """The driver's connection to the transaction coordinator, made when first needed."""
        if self._wire is None:
            # Imported here: a worker never talks to the coordinator, and starts faster without.
            from connectors.wire.coordinator_wire import CoordinatorWire  # noqa: PLC0415

            self._wire = CoordinatorWire(self.options.settings)
        return self._wire

    def close(self) -> None:
        """Close the driver's connections."""
        if self._visibility is not None:
            self._visibility.close()
            self._visibility = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def check_prepared(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> list[Committable]:
        """See `TwoPhaseCommitSink.check_prepared`: Ongoing, same pid and epoch, and with its
        marker's partition (the second half of a transaction that a late EndTxn has split has it
        not). The same request asks whether this run owns the application still.
        """
        owner = [] if self.ownership is None else [self.ownership.transactional_id]
        ids = [one.transactional_id for one in committables]
        found = self.wire.describe([*ids, *owner], deadline)
        if self.ownership is not None:
            self.ownership.check(found[self.ownership.transactional_id])
        checked = []
        for one in committables:
            now = found[one.transactional_id]
            if problem := not_prepared(one, now, self.offsets_partitions):
                raise PhaseOneError(
                    f"A prepared transaction is not as it was left: {problem}.",
                    where=f"checkpoint {one.checkpoint_id}, subtask {one.subtask}, "
                    f"{one.transactional_id}: {now}",
                    cause="it timed out, or another driver or an operator ended it",
                    option=f"transactionTimeoutMs={one.timeout_ms}",
                )
            described = one.described(start_time_ms=now.start_time_ms)
            written = tuple(sorted(output_partitions(now)))
            checked.append(dataclasses.replace(described, partitions=written))
        return checked

    def commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `TwoPhaseCommitSink.commit`: EndTxn(commit) for all, in parallel."""
        outcomes = self.wire.commit(committables, deadline)
        self._retired.reached(one.checkpoint_id for one in committables)
        self._retired.add(self.wire.doubtful & {one.transactional_id for one in committables})
        return {one.token: outcomes[one.transactional_id] for one in committables}

    def recover_and_commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `TwoPhaseCommitSink.recover_and_commit`: the recovery table of docs/design.md,
        whose proofs are the start time and producer id that the broker keeps after the end.
        """
        found = self.wire.describe([one.transactional_id for one in committables], deadline)
        self._retired.reached(one.checkpoint_id for one in committables)
        outcomes: dict[str, Outcome] = {}
        still_open: list[Committable] = []
        for one in committables:
            now = found[one.transactional_id]
            ours = now.producer_id == one.producer_id and now.start_time_ms == one.start_time_ms
            if ours and now.state == "Ongoing" and now.producer_epoch == one.producer_epoch:
                still_open.append(one)
            elif ours and now.state in _COMMITTED_STATES:
                outcomes[one.token] = Outcome.ALREADY_COMMITTED
            elif ours and now.state in _ABORTED_STATES:
                outcomes[one.token] = Outcome.ABORTED
            else:
                outcomes[one.token] = self._by_marker(one, now.state, deadline)
            if outcomes.get(one.token) is Outcome.ABORTED:
                self._retired.add([one.transactional_id])
        if still_open:
            outcomes.update(self.commit(still_open, deadline))
        return outcomes

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:
        """See `TwoPhaseCommitSink.lingering`.

        On a copy of the folder run epochs say nothing of who is newer: the owner does. What is
        open when it is asked about, *after* the list, was begun by runs that are not newer.
        """
        found = self.wire.list_open(owner.application_id, owner.log_id, deadline)
        ids = [
            row.transactional_id
            for row in found
            if row.state == "Ongoing"
            and (one := TransactionalId.of(owner.application_id, row.transactional_id)) is not None
            and (self.ownership is not None or one.run_epoch <= owner.run_epoch)
        ]
        if self.ownership is not None and (ids or self.ownership.is_due()):
            self.ownership.check_now(self.wire, self.timeout_ms, deadline)
        return ids

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:
        """See `TwoPhaseCommitSink.recover_and_abort`: InitProducerId aborts and fences."""
        for transactional_id in transaction_ids:
            self.wire.fence(transactional_id, self.timeout_ms, deadline)
            self._retired.add([transactional_id])

    def count_offsets_partitions(self, deadline: Deadline) -> None:
        """Ask how many partitions `__consumer_offsets` has, before tasks choose ids by it; on a new
        cluster, how many it will have.

        Raises:
            BrokerUnavailableError: no answer.
            AuthenticationError: DESCRIBE_CONFIGS on the cluster is missing.
        """
        self.offsets_partitions = len(self.visibility.offsets_partitions(deadline)) or int(
            self.wire.broker_setting("offsets.topic.num.partitions", deadline)
        )

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:
        """See `TwoPhaseCommitSink.hidden`: a partition that has got no marker."""
        return [str(one) for one in self.visibility.hidden(committed, deadline)]

    @property
    def visibility(self) -> CommitVisibility:
        """The driver's connection to the partitions' leaders, made when first needed."""
        if self._visibility is None:
            from connectors.kafka.sink.visibility import CommitVisibility  # noqa: PLC0415 - as wire

            self._visibility = CommitVisibility(self.options.settings, self.wire)
        return self._visibility

    def retired(self) -> frozenset[str]:
        """See `TwoPhaseCommitSink.retired`."""
        return self._retired.all()

    def _by_marker(self, one: Committable, state: str, deadline: Deadline) -> Outcome:
        """The id went on, was re-initialised or has expired: only its token can prove the commit.

        A driver that died in the next checkpoint's phase 1 left transactions open that hold the
        same offsets, and they are swept only after this: a stable read would wait for them. The
        token of a transaction is a committed value only if that transaction was committed.

        That the token is absent proves an abort only while the broker would still have it: nothing
        open may hide it, it may not have expired, and nobody else may have written in its place.
        """
        standing = Token.ABSENT
        for stable in (False, True):
            found = self.wire.read_markers(
                one.marker_group, [one.marker_partition], deadline, stable=stable
            )
            standing = compare(found.get(one.marker_partition), one)
            if standing is Token.COMMITTED:
                return Outcome.ALREADY_COMMITTED
        if state == "Ongoing" or standing is Token.FOREIGN:
            return Outcome.UNKNOWN
        return Outcome.ABORTED if self._is_young(one, deadline) else Outcome.UNKNOWN

    def _is_young(self, one: Committable, deadline: Deadline) -> bool:
        """Tell whether its marker cannot have expired. Start and now are by the brokers' clocks: a
        tenth is left for what two of them differ, and a start in the future proves nothing.
        """
        if one.start_time_ms < 0:
            return False
        application_id, _, _ = one.transactional_id.partition(".")
        now_ms = self.wire.broker_now_ms(
            probe_id(application_id), application_id, one.timeout_ms, deadline
        )
        minutes = int(self.wire.broker_setting("offsets.retention.minutes", deadline))
        return now_ms is not None and 0 <= now_ms - one.start_time_ms < minutes * 60_000 * 0.9
