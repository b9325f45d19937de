"""One ListOffsets for many partitions, whose leaders may be silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from connectors.clients.client_errors import silence_in
from connectors.kafka.source.offsets import partition_key, split_key
from connectors.kafka.source.source_questions import SourceQuestions

#: Kafka's answer where a partition has no record of a time or later.
_NO_RECORD_SINCE: Final = -1


def listed_offsets(
    questions: SourceQuestions, specs: Mapping[str, OffsetSpec], isolation: str
) -> dict[str, int]:
    """Return an offset of each ``topic-partition``; -1 where no record is since a time.

    Where a leader is silent, librdkafka says -1001 and no error: it does not read the error of a
    part (rd_kafka_ListOffsets_response_merge). Such an answer is none: the question is repeated.

    Args:
        questions: to the brokers.
        specs: which offset of each partition is asked for.
        isolation: read_committed or read_uncommitted.

    Raises:
        MissingTopicError: a leader does not know a partition.
        SparkOnceError: see `SourceQuestions.ask`.
    """
    question = {TopicPartition(*split_key(key)): spec for key, spec in specs.items()}
    if not question:
        return {}
    committed = isolation == "read_committed"
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    words = (OffsetSpec.earliest(), OffsetSpec.latest())
    by_word = all(spec in words for spec in specs.values())
    lowest = 0 if by_word else _NO_RECORD_SINCE
    found: dict[TopicPartition, ListOffsetsResultInfo] = questions.ask(
        ", ".join(sorted(specs)),
        lambda admin, timeout: admin.list_offsets(
            question, isolation_level=level, request_timeout=timeout
        ),
        trouble_in=lambda answers: silence_in((each.offset for each in answers.values()), lowest),
    )
    return {partition_key(each.topic, each.partition): r.offset for each, r in found.items()}
