"""A continuous task's writer for a sink without transactions.

It has one producer: a checkpoint is flushed before the next one's first record is queued.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import pyarrow as pa

from connectors.kafka.sink.plain_producer import PlainProducer
from connectors.kafka.sink.plain_writer import KafkaPlainWriter, PlainWrite
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.sink import Attempt, Owner


class PlainStageWriter:
    """See `connectors.continuous.stage_task.StageWriter`, and `KafkaStageWriter` for its threads.

    Args:
        writer: options and timeouts; the task's own copy.
        producer_kind: the class of its producer.
    """

    ends_transactions = False
    shows_at_barriers = False

    def __init__(
        self, writer: KafkaPlainWriter, *, producer_kind: type[PlainProducer] = PlainProducer
    ) -> None:
        self._writer = writer
        self._producer_kind = producer_kind
        self._producer: PlainProducer | None = None

    def open(self, owner: Owner, deadline: Deadline) -> tuple[str, ...]:  # noqa: ARG002
        """Make the producer; it has no transactional id, and connects when it first sends."""
        self._producer = self._writer.new_producer(owner.application_id, self._producer_kind)
        return ()

    def begin_transaction(self, attempt: Attempt) -> PlainWrite:
        """See `Writer`."""
        return self._writer.begin_transaction(attempt)

    def invoke(self, transaction: PlainWrite, batch: pa.RecordBatch) -> None:
        """See `Writer`."""
        if transaction.producer is None and batch.num_rows:
            transaction.producer = self._producer
        # A deadline per call: the transaction's barrier may come only after minutes.
        transaction.deadline = self._writer.new_deadline()
        self._writer.invoke(transaction, batch)

    def flush(self, transaction: PlainWrite, source_offsets: Mapping[str, int]) -> None:  # noqa: ARG002
        """See `connectors.continuous.stage_task.StageWriter`; only the decision carries offsets."""
        transaction.deadline = self._writer.new_deadline()
        self._writer.flush(transaction)

    def pre_commit(self, transaction: PlainWrite) -> Committable | None:
        """See `Writer`."""
        return self._writer.pre_commit(transaction)

    def end(self, transaction: PlainWrite) -> NoReturn:
        """Never called: nothing needs a commit."""
        raise AssertionError(f"nothing of {transaction.attempt} needs a commit")

    def close(self) -> None:
        """Forget the producer: see `KafkaPlainWriter.end_producer`."""
        if self._producer is not None:
            self._writer.end_producer(self._producer)
        self._producer = None

    def serve(self) -> None:
        """See `connectors.continuous.stage_task.StageWriter`."""
        if self._producer is not None:
            self._producer.serve()
