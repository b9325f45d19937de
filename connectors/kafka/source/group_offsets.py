"""Source offsets under the application's consumer group, for lag tools; never read back.

Where a transaction exists, it carries the offsets. Without one the driver writes the decided
offsets, beside the pipeline and not in it: at most once a second, and once more at the end. A
failure costs a warning, not a checkpoint. (Flink: `commit.offsets.on.checkpoint`.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from connectors.clients.client_settings import admin_client
from connectors.kafka.source.offsets import split_key
from connectors.options.kafka_source import KafkaSource
from transactions.clock import Deadline

logger = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_ANSWER_S: Final = 5.0


class GroupOffsets:
    """Writes the offsets of one source. Lives on the driver, on one thread at a time.

    Args:
        source: says which cluster has the group, and which topics count.
        group: the application id, as in transactions.
    """

    def __init__(self, source: KafkaSource, group: str) -> None:
        self._admin = admin_client(source.client_settings)
        self._source = source
        self._group = group
        self._next = Deadline(0.0)
        self._latest: dict[str, int] = {}
        self._under_way: Future[Any] | None = None

    def decided(self, offsets: Mapping[str, int]) -> None:
        """Record decided offsets, per ``topic-partition``; return at once."""
        mine = {at: n for at, n in offsets.items() if self._source.reads_topic(split_key(at)[0])}
        self._latest |= mine
        idle = self._under_way is None or self._under_way.done()
        if self._latest and idle and self._next.expired():
            self._send()

    def close(self, *, write: bool) -> None:
        """Wait a few seconds for an answer; if `write`, first write the last decided offsets."""
        self._finish()
        if self._latest and write:
            self._send()
            self._finish()

    def _send(self) -> None:
        self._next = Deadline(_EVERY_S)
        self._finish()
        rows = [TopicPartition(*split_key(name), offset) for name, offset in self._latest.items()]
        self._latest = {}
        asked = ConsumerGroupTopicPartitions(self._group, rows)
        try:
            answers = self._admin.alter_consumer_group_offsets([asked], request_timeout=_ANSWER_S)
        except (KafkaException, ValueError) as error:
            self._warn(error)
        else:
            self._under_way = answers[self._group]

    def _finish(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        try:
            rows = under_way.result(_ANSWER_S + 1.0).topic_partitions
            refused = next((row.error for row in rows if row.error), None)
        except (KafkaException, TimeoutError) as error:
            refused = error
        if refused is not None:
            self._warn(refused)

    def _warn(self, reason: object) -> None:
        logger.warning("the offsets were not committed to the group %s: %s", self._group, reason)
