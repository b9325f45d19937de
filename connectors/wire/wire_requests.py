"""The driver's raw requests, with their pinned versions, and the rows that they return."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from transactions.committable import Committable
from transactions.errors import ConfigurationError

#: Version 5 is KIP-890's: it would fence the producer that librdkafka still holds.
END_TXN_MAX_VERSION: Final = 4
#: Version 6 (KIP-939) is unstable on the broker, which drops the connection.
INIT_PRODUCER_ID_VERSIONS: Final = (2, 5)
#: The first version with the id's expected holder (KIP-360, Kafka 2.5).
INIT_PRODUCER_ID_HELD: Final = 3
#: One group per request, with require_stable (KIP-447); every broker since 2.5 has it.
OFFSET_FETCH_VERSION: Final = 7
#: Version 2 (Kafka 4.1) filters by pattern on the broker; for older ones we filter here.
LIST_TRANSACTIONS_MAX_VERSION: Final = 2

#: States in which a transaction holds readers back.
OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")

#: Producer id and epoch.
ProducerIdentity: TypeAlias = tuple[int, int]

_RESOURCE_BROKER: Final = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A coordinator's knowledge of one transactional id.

    Attributes:
        transactional_id: the requested id.
        state: Kafka's name (Empty, Ongoing, PrepareCommit, ...); "" with an error.
        producer_id: its present producer id, -1 with an error.
        producer_epoch: its present epoch, -1 with an error.
        timeout_ms: the transaction timeout.
        start_time_ms: when the last transaction began, even after its end; -1 when unknown.
        partitions: ``topic-partition`` names in the open transaction.
        error: "" or ``TRANSACTIONAL_ID_NOT_FOUND``.
    """

    transactional_id: str
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = -1
    start_time_ms: int = -1
    partitions: frozenset[str] = frozenset()
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class OpenTransaction:
    """One row of `CoordinatorWire.list_open`; a listing carries no epoch."""

    transactional_id: str
    producer_id: int
    state: str


def describe_transactions(transactional_ids: Sequence[str]) -> Any:
    """Return a request for the state of several ids of one coordinator."""
    return DescribeTransactionsRequest(transactional_ids=list(transactional_ids))


def description(row: Any) -> TransactionDescription:
    """Read one row of a DescribeTransactions answer without error."""
    return TransactionDescription(
        transactional_id=row.transactional_id,
        state=row.transaction_state,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        timeout_ms=row.transaction_timeout_ms,
        start_time_ms=row.transaction_start_time_ms,
        partitions=frozenset(
            f"{topic.topic}-{number}" for topic in row.topics for number in topic.partitions
        ),
    )


def init_producer_id(
    transactional_id: str, timeout_ms: int, held: ProducerIdentity | None = None
) -> Any:
    """Return the unconditional form; with `held`, the form that works only for the holder.

    If the latter is repeated after a lost answer, it returns the first result again (KIP-360).
    """
    low, high = INIT_PRODUCER_ID_VERSIONS
    producer_id, epoch = held or (-1, -1)
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        min_version=low if held is None else INIT_PRODUCER_ID_HELD,
        max_version=high,
    )


def end_txn(one: Committable) -> Any:
    """Return the request that commits one transaction."""
    return EndTxnRequest(
        transactional_id=one.transactional_id,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        committed=True,
        max_version=END_TXN_MAX_VERSION,
    )


def list_transactions(
    prefix: str,
    *,
    states: Sequence[str] = OPEN_STATES,
    max_version: int = LIST_TRANSACTIONS_MAX_VERSION,
) -> Any:
    """Return a request for ids with a prefix, in some states; in any state if none is given."""
    # RE2J matches the whole id. Below version 2 the field does not exist and is not written.
    return ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=[],
        transactional_id_pattern=re.escape(prefix) + ".*",
        max_version=max_version,
    )


def offset_fetch(group: str, partitions: Sequence[str] | None, *, stable: bool = True) -> Any:
    """Return a request for offsets of ``topic-partition`` names; None means all of them."""
    topics: dict[str, list[int]] = collections.defaultdict(list)
    for name in partitions or ():
        topic, _, number = name.rpartition("-")
        topics[topic].append(int(number))
    return OffsetFetchRequest(
        group_id=group,
        topics=[
            OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=numbers)
            for topic, numbers in topics.items()
        ]
        if partitions is not None
        else None,
        require_stable=stable,
        min_version=OFFSET_FETCH_VERSION,
        max_version=OFFSET_FETCH_VERSION,
    )


def describe_configs(node: int, name: str) -> Any:
    """Return a request for one setting of one broker."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_RESOURCE_BROKER, resource_name=str(node), configuration_keys=[name]
    )
    return DescribeConfigsRequest(resources=[resource], max_version=4)


def one_setting(name: str, configs: Sequence[Any]) -> str:
    """Return the value from an answer.

    Raises:
        ConfigurationError: the broker has no such setting, or hides it.
    """
    for config in configs:
        if config.name == name and config.value is not None:
            return str(config.value)
    raise ConfigurationError(f"The broker has no setting {name!r}.", where="DescribeConfigs")


def offset_errors(group: str, response: Any) -> list[tuple[int, str]]:
    """Return every error code of an OffsetFetch answer, with the name of its subject."""
    rows = [
        (row.error_code, f"{topic.name}-{row.partition_index}")
        for topic in response.topics
        for row in topic.partitions
    ]
    return [(response.error_code, group), *rows]


def offsets(response: Any) -> dict[str, tuple[int, str]]:
    """Return (offset, metadata) of the partitions that have a committed offset."""
    return {
        # librdkafka stores the metadata with C's trailing NUL.
        f"{topic.name}-{row.partition_index}": (
            row.committed_offset,
            (row.metadata or "").rstrip("\0"),
        )
        for topic in response.topics
        for row in topic.partitions
        if row.committed_offset >= 0
    }
