"""Where a consumer group stands: the start of a pipeline that takes over from another client."""

from __future__ import annotations

from collections.abc import Iterable

from connectors.options.kafka_source import KafkaSource
from connectors.options.read_place import Place
from transactions.clock import Deadline
from transactions.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    OutcomeUnknownError,
)


def committed_offsets(
    source: KafkaSource, group: str, keys: Iterable[str], deadline: Deadline
) -> dict[str, int]:
    """Return what a group has committed, per ``topic-partition``. Offsets in a transaction count
    when it has ended, so the question is repeated until then.

    A raw request: librdkafka's admin client ends its whole process with a segmentation fault when a
    coordinator that moves, or a new broker, answers NOT_COORDINATOR (its issue 5040; seen).

    Args:
        source: has the brokers.
        group: its name.
        keys: the partitions that are read. The group's transactions in others may stay open.
        deadline: when to give up.

    Raises:
        AuthenticationError: the principal may not describe the group.
        BrokerUnavailableError: no answer, or a transaction of the group is still open.
    """
    # kafka-python takes a quarter of a second of CPU to import, and four processes of each query
    # import the planner.
    from connectors.wire.coordinator_wire import CoordinatorWire  # noqa: PLC0415

    with CoordinatorWire(source.client_settings) as wire:
        try:
            found = wire.read_markers(group, [*keys], deadline)
        except OutcomeUnknownError as error:
            raise BrokerUnavailableError(
                "The offsets of a consumer group are unstable: a transaction holds them.",
                where=f"the consumer group {group}",
                cause=f"a client of the group has not ended its transaction ({error.cause})",
                option=f"startingGroupId={group}; pollTimeoutMs={source.poll_timeout_ms}",
            ) from error
    return {key: offset for key, (offset, _) in found.items()}


def nothing_committed(place: Place, keys: Iterable[str]) -> ConfigurationError:
    """Return the error for partitions of which the group has no offset."""
    return ConfigurationError(
        "The consumer group has committed no offset in a partition.",
        where=", ".join(sorted(keys)),
        cause="the name of the group is wrong, its offsets have expired "
        "(offsets.retention.minutes), or it has never read this partition",
        option=f"{place}; with startingOffsets=earliest or latest such a partition begins there",
    )
