"""Where a consumer group stands: the start of a pipeline that takes over from another client."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from connectors.kafka.source.offsets import partition_key, split_key
from connectors.kafka.source.source_questions import SourceQuestions
from connectors.options.read_place import Place
from transactions.errors import ConfigurationError


def committed_offsets(
    questions: SourceQuestions, group: str, keys: Iterable[str]
) -> dict[str, int]:
    """Return what a group has committed, per ``topic-partition``. Offsets in a transaction count
    when it has ended, so the question is repeated until then.

    Args:
        questions: to the brokers.
        group: its name.
        keys: the partitions that are read. The group's transactions in others may stay open.

    Raises:
        AuthorizationError: the principal may not describe the group.
        SparkOnceError: no answer.
    """
    places = [TopicPartition(*split_key(key)) for key in keys]
    if not places:
        return {}
    found = questions.ask(
        f"the consumer group {group}",
        lambda admin, timeout: admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)],
            require_stable=True,
            request_timeout=timeout,
        ),
        # An open transaction is the error of a partition, in an answer that is a good one.
        trouble_in=lambda answers: next(
            (each.error for each in answers[group].topic_partitions if each.error is not None), None
        ),
    )[group]
    return {
        partition_key(each.topic, each.partition): each.offset
        for each in found.topic_partitions
        if each.offset >= 0
    }


def nothing_committed(place: Place, keys: Iterable[str]) -> ConfigurationError:
    """Return the error for partitions of which the group has no offset."""
    return ConfigurationError(
        "The consumer group has committed no offset in a partition.",
        where=", ".join(sorted(keys)),
        cause="the name of the group is wrong, its offsets have expired "
        "(offsets.retention.minutes), or it has never read this partition",
        option=f"{place}; with startingOffsets=earliest or latest such a partition begins there",
    )
