"""Marks of a write-ahead sink as committed offsets of consumer groups: no storage but Kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connectors.clients.client_errors import translate
from connectors.clients.client_log import log_settings
from connectors.clients.client_settings import librdkafka_settings
from connectors.wal.checkpoint_committer import CheckpointCommitter
from transactions.clock import Deadline

_PAUSE_S: Final = 0.2
_MOVING: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)


class KafkaGroupCheckpointCommitter(CheckpointCommitter):
    """One group per job, operator and subtask; its offset in partition 0 of a topic is the id of
    the checkpoint. Only the driver connects to brokers.

    A broker forgets the offsets of an idle group after its ``offsets.retention.minutes`` (a week by
    default). If a pipeline was killed between its mark and the end of its checkpoint, and starts
    again only after that time, it sends those records once more.

    Args:
        bootstrap_servers: ``host:port`` list.
        topic: any topic that exists and is kept; nothing is written to it.
        kafka: further client settings, with Kafka's own names.
        timeout_s: how long a broker may take for one answer.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        kafka: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self._settings = {**(kafka or {}), "bootstrap.servers": bootstrap_servers}
        self._topic = topic
        self._timeout_s = timeout_s

    def create_resource(self) -> None:
        """See `CheckpointCommitter.create_resource`: its first offset creates a group."""

    def open(self) -> None:
        """See `CheckpointCommitter.open`: each mark has its own group, and so its own client."""

    def close(self) -> None:
        """See `CheckpointCommitter.close`: it holds nothing open."""

    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        """See `CheckpointCommitter.commit_checkpoint`.

        Raises:
            SparkOnceError: the broker did not answer, or refused; the mark may be written.
        """
        with self._member(subtask) as consumer:
            if self._marked(consumer) < checkpoint_id:
                mark = TopicPartition(self._topic, 0, checkpoint_id)
                consumer.commit(offsets=[mark], asynchronous=False)

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
        """See `CheckpointCommitter.is_checkpoint_committed`.

        Raises:
            SparkOnceError: the broker did not answer, or refused.
        """
        with self._member(subtask) as consumer:
            return self._marked(consumer) >= checkpoint_id

    def describe(self) -> str:
        """See `CheckpointCommitter.describe`."""
        return f"kafka:{self._settings['bootstrap.servers']}#{self._topic}"

    @contextlib.contextmanager
    def _member(self, subtask: int) -> Iterator[Consumer]:
        """Make a client for a subtask's group. It never subscribes, so it joins nothing."""
        group = f"{self.job_id}.{self.operator_id}.{subtask}"
        own = {"group.id": group, "enable.auto.commit": False}
        consumer = Consumer({**log_settings(), **librdkafka_settings(self._settings), **own})
        try:
            yield consumer
        except KafkaException as error:
            where = f"group {group}, {self._topic}-0"
            raise translate(error.args[0], where, self._settings) from error
        finally:
            consumer.close()

    def _marked(self, consumer: Consumer) -> int:
        """Return the offset, negative if there is none; wait while the coordinator moves."""
        deadline = Deadline(self._timeout_s)
        place = TopicPartition(self._topic, 0)
        while True:
            try:
                (found,) = consumer.committed([place], timeout=deadline.remaining())
                break
            except KafkaException as error:
                if error.args[0].code() not in _MOVING or deadline.expired():
                    raise
            deadline.pause(_PAUSE_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return int(found.offset)
