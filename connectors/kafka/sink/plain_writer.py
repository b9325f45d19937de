"""What a continuous task writes with when its sink has no transactions.

At-least-once has two producers in turn, like the transactional `StageWriter`: one fills while the
other is flushed, since librdkafka's flush waits for everything that is queued, also for what comes
after the barrier. Without a guarantee nothing is waited for, and one is enough.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NoReturn

import pyarrow as pa

from connectors.kafka.sink.plain_producer import PlainProducer
from connectors.kafka.sink.plain_sink import KafkaPlainSink, PlainWrite
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import SparkOnceError
from transactions.sink import Attempt, Owner

logger = logging.getLogger(__name__)

_LAST_FLUSH_S: Final = 3.0


class PlainWriter:
    """See `connectors.continuous.stage_task.Writer`, and `StageWriter` for its threads.

    Args:
        sink: options and timeouts; the task's own copy.
        producer_kind: the class of its producers.
    """

    def __init__(
        self, sink: KafkaPlainSink, *, producer_kind: type[PlainProducer] = PlainProducer
    ) -> None:
        self._sink = sink
        self._producer_kind = producer_kind
        self._producers: list[PlainProducer] = []

    def open(self, owner: Owner, deadline: Deadline) -> tuple[str, ...]:  # noqa: ARG002
        """Make the producers; they have no transactional ids, and connect when they first send."""
        self._producers = [
            self._sink.new_producer(owner.application_id, self._producer_kind)
            for _ in range(2 if self._sink.waits else 1)
        ]
        return ()

    def begin_transaction(self, attempt: Attempt) -> PlainWrite:
        """See `TwoPhaseCommitSink`."""
        return self._sink.begin_transaction(attempt)

    def invoke(self, transaction: PlainWrite, batch: pa.RecordBatch) -> None:
        """See `TwoPhaseCommitSink`."""
        if transaction.producer is None and batch.num_rows:
            # The barrier before this checkpoint came when the one before that was flushed, and so
            # is the producer of this turn. An idle source can have been silent since.
            turn = transaction.attempt.checkpoint_id % len(self._producers)
            transaction.producer = self._producers[turn]
            transaction.deadline = self._sink.new_deadline()
        self._sink.invoke(transaction, batch)

    def pre_commit(
        self,
        transaction: PlainWrite,
        source_offsets: Mapping[str, int],  # noqa: ARG002
    ) -> Committable | None:
        """See `TwoPhaseCommitSink`; offsets travel with the decision alone."""
        transaction.deadline = self._sink.new_deadline()
        return self._sink.pre_commit(transaction)

    def end(self, transaction: PlainWrite) -> NoReturn:
        """Never called: nothing needs a commit."""
        raise AssertionError(f"nothing of {transaction.attempt} needs a commit")

    def close(self) -> None:
        """Forget the producers. What at-least-once has not flushed is behind the last position and
        is read again, so it is dropped; without a guarantee it would be lost, so it gets a moment.
        """
        for producer in self._producers:
            if self._sink.waits:
                producer.discard()
                continue
            try:
                producer.flush(Deadline(_LAST_FLUSH_S))
            except SparkOnceError as error:
                logger.warning("sink %s: %s", self._sink.name, error)
        self._producers = []
