"""Producing lost transactions of a continuous checkpoint again, in the driver's own process.

A barrier stage holds every slot of Spark, and the loss is one barrier interval of a few partitions.
So the driver itself reads that again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from connectors.kafka.sink.kafka_writer import KafkaWriter
from connectors.kafka.source.offsets import OffsetRange, parse_offsets, split_key
from connectors.kafka.source.range_reader import read_range
from connectors.options.kafka_source import KafkaSource
from connectors.records.arrow_transform import ArrowFunction, complete, load_function, normalised
from transactions.committable import Committable
from transactions.errors import DataLossError
from transactions.healing import refusal
from transactions.log_entries import Decision
from transactions.sink import AnyWriter, Attempt, Owner

_ATTEMPTS = itertools.count()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """What is needed to write a checkpoint's transactions once more. On the driver.

    Attributes:
        source: the source that was read.
        transform: the user's function.
        writers: of the sinks, by name.
        schemas: of the rows of those sinks that are not Kafka's.
        owner: of this run.
    """

    source: KafkaSource
    transform: str | ArrowFunction
    writers: Mapping[str, AnyWriter]
    schemas: Mapping[str, pa.Schema]
    owner: Owner

    def write_again(self, decision: Decision, lost: Sequence[Committable]) -> list[Committable]:
        """Return new, prepared transactions with the records of the lost ones.

        Args:
            decision: of the checkpoint; it says which offsets, and which partitions of each
                subtask.
            lost: what the broker aborted.

        Raises:
            TransactionLostError: the source no longer has the records.
            PhaseOneError: it failed; nothing of it will be visible.
        """
        made = []
        with contextlib.ExitStack() as until_written:
            for writer in self.writers.values():
                if isinstance(writer, KafkaWriter):
                    until_written.enter_context(writer.own_producers(self.owner))
            for one in lost:
                try:
                    committable = self._write(decision, one)
                except DataLossError as error:
                    raise refusal(lost, "the source has deleted them") from error
                made += [committable] if committable is not None else []
        return made

    def _write(self, decision: Decision, one: Committable) -> Committable | None:
        start = parse_offsets(decision.start_offsets[0])
        end = parse_offsets(decision.end_offsets[0])
        function = load_function(self.transform)
        writer, schema = self.writers[one.sink], self.schemas.get(one.sink)
        attempt = Attempt(
            owner=self.owner,
            checkpoint_id=one.checkpoint_id,
            subtask=one.subtask,
            attempt_id=f"{self.owner.run_epoch}.again-{next(_ATTEMPTS)}",
            source_offsets=one.source_offsets,
        )
        transaction = writer.begin_transaction(attempt)
        try:
            for name in filter(None, decision.partitioning[str(one.subtask)].split(",")):
                wanted = OffsetRange(*split_key(name), start.get(name, 0), end.get(name, 0))
                for batch in read_range(self.source, wanted):
                    made = normalised(function(batch))
                    _renew(writer, transaction)
                    writer.invoke(transaction, made if schema is None else complete(made, schema))
            _renew(writer, transaction)
            return writer.pre_commit(transaction)
        except BaseException:
            writer.abort(transaction)
            raise


def _renew(writer: AnyWriter, transaction: Any) -> None:
    """Give each step its own time, as a task does: a loss can take longer than a checkpoint."""
    if isinstance(writer, KafkaWriter):
        transaction.deadline = writer.new_deadline()
