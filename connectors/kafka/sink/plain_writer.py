"""The Kafka sink's writer without transactions: guarantees at-least-once and none.

It fulfils the two-phase contract like the transactional one, but only phase 1 does anything:

* at-least-once: `pre_commit` returns when the broker has acknowledged every record, and raises
  when it refused one. The source's positions are decided after that. So a crash in between writes
  one checkpoint's records again, and loses none. (Flink: AT_LEAST_ONCE, `KafkaWriter.flush`.)
* none: `pre_commit` does not wait. Records that the broker refuses are lost, and so are queued
  records of a process that dies. Refusals are counted and logged. (Flink: NONE.)

Its records are visible as soon as they are written. So there is nothing to commit, to prove or to
sweep: its committable says what was written, and `needs_commit` is False. The coordinator counts it
and keeps it out of the decision log, so a recovery has no transaction to ask a broker about.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from connectors.clients.client_settings import librdkafka_settings
from connectors.kafka.sink.idle_cache import IdleCache
from connectors.kafka.sink.plain_producer import PlainProducer
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import SparkOnceError
from transactions.sink import Attempt

logger = logging.getLogger(__name__)

_LAST_FLUSH_S: Final = 3.0


@dataclasses.dataclass(slots=True)
class PlainWrite:
    """One attempt's write, on its worker; live, never pickled."""

    attempt: Attempt
    deadline: Deadline
    producer: PlainProducer | None = None
    count: int = 0
    refused: int = 0
    flushed: bool = False


class KafkaPlainWriter:
    """Writes Arrow batches of `connectors.records.message_schema.SINK_SCHEMA`, visible at once.

    Attributes:
        name: see `Writer.name`.
        topic: of all rows; None: each row names its own.
        settings: client settings with the brokers in them.
        waits: `pre_commit` waits for the broker's acknowledgements: at-least-once.

    Args:
        name: see above.
        topic: see above.
        settings: see above.
        waits: see above.
        checkpoint_timeout_s: how long any one task may take.
    """

    def __init__(
        self,
        name: str,
        topic: str | None,
        settings: Mapping[str, str],
        *,
        waits: bool,
        checkpoint_timeout_s: float,
    ) -> None:
        self.name = name
        self.topic = topic
        self.settings = settings
        self.waits = waits
        self._checkpoint_timeout_s = checkpoint_timeout_s

    def begin_transaction(self, attempt: Attempt) -> PlainWrite:
        """See `Writer.begin_transaction`; it sends nothing and takes no producer yet."""
        return PlainWrite(attempt, self.new_deadline())

    def new_deadline(self) -> Deadline:
        """Return the deadline of a step that begins now."""
        return Deadline(self._checkpoint_timeout_s)

    def new_producer(
        self, application_id: str, kind: type[PlainProducer] = PlainProducer
    ) -> PlainProducer:
        """Return a producer for this sink; it has not connected yet.

        Args:
            application_id: the pipeline's id, for error texts.
            kind: the producer's class.
        """
        settings = librdkafka_settings(self.settings)
        name = f"application {application_id!r}, sink {self.name!r}"
        return kind(settings, name, strict=self.waits)

    def invoke(self, write: PlainWrite, batch: pa.RecordBatch) -> None:
        """See `Writer.invoke`. Invoked records become visible soon, whatever follows.

        Args:
            write: from `begin_transaction`.
            batch: columns of `SINK_SCHEMA`; `value` must be there, others may be missing.

        Raises:
            DeliveryError: a record cannot be queued at all (any guarantee), or the broker refused
                an earlier one (at-least-once).
        """
        if batch.num_rows == 0:
            return
        assert not write.flushed, "a record after the flush would not be waited for"
        if write.producer is None:
            write.producer = _producer_of_this_process(self, write.attempt.owner.application_id)
        write.producer.produce(batch, self.topic, write.deadline)
        write.count += batch.num_rows

    def flush(self, write: PlainWrite) -> None:
        """Do the first half of `pre_commit`: wait for every record, or for nothing.

        Raises:
            DeliveryError: at-least-once: a record was refused or not acknowledged in time.
        """
        if write.producer is None or write.flushed:
            return
        number = write.attempt.checkpoint_id
        crash_points.reach("records_queued", number)
        if self.waits:
            write.producer.flush(write.deadline)
        else:
            write.refused, why = write.producer.refused()
            if write.refused:
                logger.warning("sink %s lost %d records: %s", self.name, write.refused, why)
        write.flushed = True
        crash_points.reach("records_flushed", number)

    def pre_commit(self, write: PlainWrite) -> Committable | None:
        """See `Writer.pre_commit`, and `flush`.

        Returns:
            What was written, with nothing left to commit; None when nothing was written.

        Raises:
            DeliveryError: see `flush`.
        """
        self.flush(write)
        if write.producer is None:
            return None
        number = write.attempt.checkpoint_id
        return Committable(
            sink=self.name,
            transactional_id="",
            producer_id=-1,
            producer_epoch=-1,
            timeout_ms=0,
            checkpoint_id=number,
            subtask=write.attempt.subtask,
            attempt=write.attempt.attempt_id,
            token=f"{number}.{write.attempt.subtask}.{secrets.token_hex(8)}",
            record_count=write.count,
            fingerprint="",
            refused=write.refused,
        )

    def abort(self, write: PlainWrite) -> None:
        """See `Writer.abort`: records that were sent stay visible.

        The producer is dropped too: it can still receive reports of the failed attempt, and would
        count them for the next attempt.
        """
        if write.producer is not None:
            _forget(write.producer)
            self.end_producer(write.producer)

    def end_producer(self, producer: PlainProducer) -> None:
        """End a producer. At-least-once drops unflushed records: they lie after the last position
        and are written again. Without a guarantee they would be lost, even those of checkpoints
        before, so the producer gets a moment to flush.
        """
        if self.waits:
            producer.discard()
            return
        try:
            producer.flush(Deadline(_LAST_FLUSH_S))
        except SparkOnceError as error:
            logger.warning("sink %s: %s", self.name, error)


#: Application, sink, whether it waits, and settings -> the producer of this process. A worker runs
#: one task at a time, so no two tasks share a producer. No producer belongs to a checkpoint, so it
#: outlives checkpoints.
_producers: IdleCache[tuple[Any, ...], PlainProducer] = IdleCache()


def _producer_of_this_process(writer: KafkaPlainWriter, application_id: str) -> PlainProducer:
    settings = tuple(sorted(writer.settings.items()))
    key = (application_id, writer.name, writer.waits, settings)
    # An earlier driver in the same session left these; its brokers may be others.
    _producers.discard(lambda other, _: other[:2] == key[:2] and other != key)
    return _producers.get(key, lambda: writer.new_producer(application_id))


def _forget(producer: PlainProducer) -> None:
    _producers.discard(lambda _, one: one is producer)
