"""Marks of a write-ahead sink as committed offsets of consumer groups: no storage but Kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from connectors.clients.client_errors import translate
from connectors.clients.client_settings import admin_client
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
        self._admin: AdminClient | None = None

    def create_resource(self) -> None:
        """See `CheckpointCommitter.create_resource`: its first offset creates a group."""

    def open(self) -> None:
        """See `CheckpointCommitter.open`: the first mark makes the client."""

    def close(self) -> None:
        """See `CheckpointCommitter.close`."""
        self._admin = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the client: it belongs to this process."""
        return {**self.__dict__, "_admin": None}

    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        """See `CheckpointCommitter.commit_checkpoint`.

        Raises:
            SparkOnceError: the broker did not answer, or refused; the mark may be written.
        """
        with self._asking(subtask) as (admin, group):
            if self._marked(admin, group) < checkpoint_id:
                mark = TopicPartition(self._topic, 0, checkpoint_id)
                asked = [ConsumerGroupTopicPartitions(group, [mark])]
                patience = self._timeout_s
                _offset(admin.alter_consumer_group_offsets(asked, request_timeout=patience)[group])

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
        """See `CheckpointCommitter.is_checkpoint_committed`.

        Raises:
            SparkOnceError: the broker did not answer, or refused.
        """
        with self._asking(subtask) as (admin, group):
            return self._marked(admin, group) >= checkpoint_id

    def describe(self) -> str:
        """See `CheckpointCommitter.describe`."""
        return f"kafka:{self._settings['bootstrap.servers']}#{self._topic}"

    @contextlib.contextmanager
    def _asking(self, subtask: int) -> Iterator[tuple[AdminClient, str]]:
        """Give the client of all groups, which is a member of none, and a subtask's group. After an
        error comes another client: one keeps the coordinators that it knows.
        """
        if self._admin is None:
            self._admin = admin_client(self._settings)
        group = f"{self.job_id}.{self.operator_id}.{subtask}"
        try:
            yield self._admin, group
        except KafkaException as error:
            self._admin = None
            where = f"group {group}, {self._topic}-0"
            raise translate(error.args[0], where, self._settings) from error

    def _marked(self, admin: AdminClient, group: str) -> int:
        """Return the offset, negative if there is none; wait while the coordinator moves."""
        deadline = Deadline(self._timeout_s)
        asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(self._topic, 0)])]
        while True:
            left_s = max(_PAUSE_S, deadline.remaining())
            try:
                return _offset(
                    admin.list_consumer_group_offsets(asked, request_timeout=left_s)[group]
                )
            except KafkaException as error:
                if error.args[0].code() not in _MOVING or deadline.expired():
                    raise
            deadline.pause(_PAUSE_S)


def _offset(answer: Future[Any]) -> int:
    (found,) = answer.result().topic_partitions
    if found.error is not None:
        raise KafkaException(found.error)
    return int(found.offset)
