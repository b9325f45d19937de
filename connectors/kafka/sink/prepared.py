"""Checks that a transaction is still as its task has prepared it (rule 10). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.clients.offsets_topic import OFFSETS_TOPIC, offsets_partition
from transactions.committable import Committable

if TYPE_CHECKING:  # a worker imports the sink, but does not need the wire
    from connectors.wire.wire_requests import TransactionDescription


def not_prepared(one: Committable, now: TransactionDescription, offsets_partitions: int) -> str:
    """Return what is wrong with a prepared transaction, "" if nothing is.

    Args:
        one: the committable that its task returned.
        now: the coordinator's description.
        offsets_partitions: the number of `__consumer_offsets` partitions, 0 if unknown.
    """
    if now.error or now.state != "Ongoing":
        return now.error or f"its state is {now.state}, not Ongoing"
    if (now.producer_id, now.producer_epoch) != (one.producer_id, one.producer_epoch):
        return "another producer holds its id"
    records = output_partitions(now)
    if now.partitions == records:
        return "its offsets are missing: it was split, or DESCRIBE on their topic is not allowed"
    if offsets_partitions:
        marker = offsets_partition(one.marker_group, offsets_partitions)
        if marker not in now.partitions:
            return f"its marker is missing ({marker}): a late EndTxn has split it"
    return "its records are missing: it was split" if one.record_count and not records else ""


def output_partitions(now: TransactionDescription) -> frozenset[str]:
    """Return the partitions of an open transaction that hold records."""
    return frozenset(one for one in now.partitions if not one.startswith(f"{OFFSETS_TOPIC}-"))
