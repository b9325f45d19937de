"""A continuous task's writer: the sink's writer on producers of the task's own.

There are two producers, so that one fills while the other one commits. They are not a pool: they
never hold anything that another task left. A producer is free again when its own task has ended its
transaction with a clear answer. A producer that met a doubt ends the task.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import pyarrow as pa

from connectors.clients.client_settings import librdkafka_settings
from connectors.kafka.sink.kafka_writer import KafkaTransaction, KafkaWriter
from connectors.kafka.sink.producer_pool import Slot, initialised, new_slot
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import PhaseOneError
from transactions.sink import Attempt, Owner

_PRODUCERS = 2
_STATISTICS_MS = (100, 1000)


def statistics_ms(parallelism: int) -> int:
    """Return the time between two statistics of a producer. It grows with the stage, so that a
    stage makes as many statistics at any size: each costs a kilobyte of text per output partition.

    They are needed once, for the producer's id, and cannot be switched off afterwards. They delay
    the start of a stage of many tasks by some tenths of a second.
    """
    least, most = _STATISTICS_MS
    return max(least, min(10 * parallelism, most))


class KafkaStageWriter:
    """Lives as long as its task. The reading thread calls `invoke`. The control thread calls
    `flush`, `pre_commit` and `end`. Both call `begin_transaction`. No two threads make one of
    these calls for the same transaction at once; `invoke`, `flush` and `serve` never run at once.

    Args:
        writer: options and timeouts; the task's own copy.
        carries_offsets: the source is on the sink's cluster, so the transactions can contain its
            offsets.
        producer_kind: the class of its producers.
        parallelism: how many tasks the stage has.
    """

    ends_transactions = True
    shows_at_barriers = True

    def __init__(
        self,
        writer: KafkaWriter,
        *,
        carries_offsets: bool,
        producer_kind: type[TransactionalProducer] = TransactionalProducer,
        parallelism: int = 1,
    ) -> None:
        self._writer = writer
        self._carries_offsets = carries_offsets
        self._producer_kind = producer_kind
        self._statistics_ms = statistics_ms(parallelism)
        self._free: list[Slot] = []
        #: Of the transaction that is written into: from its first record to its flush.
        self._filling: Slot | None = None
        writer.producers = self

    def open(self, owner: Owner, deadline: Deadline) -> tuple[str, ...]:
        """Make the producers and return their ids.

        Raises:
            PhaseOneError: the coordinator did not answer, or refused.
        """
        settings = {
            **librdkafka_settings(self._writer.settings),
            "statistics.interval.ms": self._statistics_ms,
        }
        make = functools.partial(
            new_slot,
            owner,
            settings,
            timeout_ms=self._writer.timeout_ms,
            offsets_partitions=self._writer.offsets_partitions,
            kind=self._producer_kind,
        )
        connecting = [make() for _ in range(_PRODUCERS)]
        self._free = [initialised(slot, make, deadline) for slot in connecting]
        return tuple(slot.producer.transactional_id for slot in self._free)

    def begin_transaction(self, attempt: Attempt) -> KafkaTransaction:
        """See `connectors.continuous.stage_task.StageWriter`."""
        if not self._carries_offsets:
            attempt = dataclasses.replace(attempt, source_offsets={})
        return self._writer.begin_transaction(attempt)

    def invoke(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        """See `Writer`."""
        # A deadline per call: the transaction's barrier may come only after minutes.
        transaction.deadline = self._writer.new_deadline()
        self._writer.invoke(transaction, batch)

    def flush(self, transaction: KafkaTransaction, source_offsets: Mapping[str, int]) -> None:
        """See `connectors.continuous.stage_task.StageWriter`. Take a producer even for offsets
        alone: in `pre_commit` this would race with the next transaction's first record.
        """
        transaction.deadline = self._writer.new_deadline()
        carried = dict(source_offsets) if self._carries_offsets else {}
        transaction.attempt = dataclasses.replace(transaction.attempt, source_offsets=carried)
        self._writer.flush(transaction)
        self._filling = None  # the control thread goes on with it, alone

    def pre_commit(self, transaction: KafkaTransaction) -> Committable | None:
        """See `Writer`."""
        return self._writer.pre_commit(transaction)

    def end(self, transaction: KafkaTransaction) -> None:
        """Commit a decided transaction; its producer is then free again.

        Raises:
            PhaseOneError: no clear answer: this task must end, and its ids with it.
        """
        slot = transaction.slot
        assert slot is not None, "an empty transaction was decided"
        slot.producer.resync(transaction.deadline)
        if slot.producer.spent:
            raise PhaseOneError(
                "A connection broke while offsets were sent; a repeated request may be under way.",
                where=slot.producer.transactional_id,
                cause="the broker or the network; the task is replaced",
            )
        slot.ended = True
        self._free.append(slot)

    def serve(self) -> None:
        """See `connectors.continuous.stage_task.StageWriter`. It serves the producers that are free
        or fill. From its flush on, the thread that ends a transaction serves its producer.
        """
        filling = [] if self._filling is None else [self._filling]
        for slot in (*self._free, *filling):
            slot.producer.serve()

    def close(self) -> None:
        """Forget the producers; the next run's sweep ends their open transactions."""
        self._free.clear()
        self._filling = None

    # --- for the sink: the source of its producers, like `ProducerPool` -----------------------

    def take(self, attempt: Attempt, token: str, deadline: Deadline) -> Slot:  # noqa: ARG002
        """Return a producer without an open transaction."""
        if not self._free:
            raise PhaseOneError(
                "Every producer of a task has a transaction open.",
                where=f"checkpoint {attempt.checkpoint_id}, subtask {attempt.subtask}",
                cause="a bug in sparkonce: a barrier came before the previous barrier was settled",
            )
        slot = self._filling = self._free.pop(0)
        slot.checkpoint_id, slot.token, slot.ended = attempt.checkpoint_id, token, False
        return slot

    def drop(self, slot: Slot) -> None:
        """See `ProducerPool.drop`: the producer does not become free again."""
