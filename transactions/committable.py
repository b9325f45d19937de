"""Committable: the smallest token with which another process can finish a transaction.

Phase 1 makes one in a task; the decision log stores it; phase 2, or the next driver after a
crash, commits it. Nothing in it is live. (Flink: `KafkaCommittable`, which holds only the id,
producer id and epoch, and so cannot tell a lost transaction from a committed one.)
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import orjson

from transactions.errors import LogVersionError, PhaseOneError

FORMAT_VERSION: Final = 1


class Outcome(enum.Enum):
    """How a decided transaction ended, as far as we can prove it.

    A lost answer is UNKNOWN, never "failed": the request may have been carried out.
    """

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already_committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"

    @property
    def is_committed(self) -> bool:
        """Return whether the records are visible or are about to be."""
        return self in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Committable:
    """A prepared, non-empty transaction of one sink task.

    Attributes:
        format: version of its JSON; another one is refused.
        sink: name of the sink in its driver.
        transactional_id: the coordinator's key; ``<application>.<log>.<run>.<process>.<slot>``.
            "" for what a sink without transactions wrote: see `needs_commit`.
        producer_id: Kafka's pid of the producer that wrote it; -1 for other systems.
        producer_epoch: Kafka's producer epoch; -1 for other systems.
        protocol_version: transaction protocol of the writer (1: EndTxn up to v4; librdkafka).
        start_time_ms: the broker's start time of the transaction, -1 until described.
        timeout_ms: the transaction timeout it was begun with.
        checkpoint_id: the checkpoint it belongs to (Spark's batch id in micro-batch mode).
        subtask: number of the sink task.
        attempt: ``<run epoch>.<task attempt id>``; names one attempt for ever.
        token: unique text, also stored inside the transaction as offset metadata.
        record_count: records written by `invoke`, without offsets.
        fingerprint: 32 hex digits over the records (see connectors.records.fingerprint).
        source_offsets: next offset to read per ``topic-partition`` carried by this transaction.
        marker_group: consumer group under which the token is stored with the transaction.
        marker_partition: ``topic-partition`` whose offset metadata holds the token.
        partitions: ``topic-partition`` written to, where known; else empty.
        refused: number of records that the target refused, for a sink that promises nothing.
    """

    format: Literal[1] = FORMAT_VERSION
    sink: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    protocol_version: int = 1
    start_time_ms: int = -1
    timeout_ms: int
    checkpoint_id: int
    subtask: int
    attempt: str
    token: str
    record_count: int
    fingerprint: str
    source_offsets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    marker_group: str = ""
    marker_partition: str = ""
    partitions: tuple[str, ...] = ()
    refused: int = 0

    @property
    def needs_commit(self) -> bool:
        """Return whether there is a transaction to end. Without one (at-least-once, or no guarantee
        at all) the records are visible already: no decision covers them, and they never enter the
        decision log.
        """
        return bool(self.transactional_id)

    def described(self, *, start_time_ms: int) -> Committable:
        """Return a copy that knows when the broker saw the transaction begin."""
        return dataclasses.replace(self, start_time_ms=start_time_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the format version inside."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        if not self.refused:  # never in a log, so that no older reader meets it
            del fields["refused"]
        return fields

    def to_json(self) -> bytes:
        """Return the bytes that travel from a task to the driver."""
        return orjson.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Committable:
        """Read `to_dict` back.

        Raises:
            LogVersionError: the format is newer than this code.
        """
        if data.get("format") != FORMAT_VERSION:
            raise LogVersionError(
                f"A committable has format {data.get('format')!r}; this version reads "
                f"{FORMAT_VERSION}.",
                where=f"transactional id {data.get('transactional_id')!r}",
                cause="it was written by another version of sparkonce",
            )
        return msgspec.convert(data, cls)

    @classmethod
    def from_json(cls, data: bytes) -> Committable:
        """Read `to_json` back."""
        return cls.from_dict(orjson.loads(data))


def oldest_start_ms(committables: Iterable[Committable]) -> int:
    """Return when the oldest of them began, by the broker's clock; -1 when none was described.

    The transaction timeout counts from there, so this age is the part of it that is used up.
    """
    return min((o.start_time_ms for o in committables if o.start_time_ms >= 0), default=-1)


def check_distinct(
    committables: Sequence[Committable], sinks: frozenset[str], checkpoint_id: int
) -> None:
    """Check that the tasks of a checkpoint returned one committable per transaction.

    Raises:
        PhaseOneError: two have one token, or one is of a sink that the driver does not know.
    """
    names = {one.sink for one in committables}
    tokens = {one.token for one in committables}
    if len(tokens) != len(committables) or not names <= sinks:
        raise PhaseOneError(
            "A batch did not return one committable per transaction, or has an unknown sink.",
            where=f"checkpoint {checkpoint_id}: sinks {sorted(names)}, {len(tokens)} tokens of "
            f"{len(committables)} committables",
            cause="a bug in sparkonce, or the DataFrame was run by more than one action",
        )
