"""Marks of a write-ahead sink as committed offsets of consumer groups: no storage but Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.clients.client_errors import translate
from connectors.clients.client_settings import admin_client
from connectors.wal.checkpoint_committer import CheckpointCommitter
from connectors.wire.coordinator_wire import CoordinatorWire
from transactions.clock import Deadline


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
        self._wire: CoordinatorWire | None = None

    def create_resource(self) -> None:
        """See `CheckpointCommitter.create_resource`: its first offset creates a group."""

    def open(self) -> None:
        """See `CheckpointCommitter.open`: the first question makes the client."""

    def close(self) -> None:
        """See `CheckpointCommitter.close`."""
        self._admin = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the clients: they belong to this process."""
        return {**self.__dict__, "_admin": None, "_wire": None}

    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        """See `CheckpointCommitter.commit_checkpoint`.

        Raises:
            SparkOnceError: the broker did not answer, or refused; the mark may be written.
        """
        if self.is_checkpoint_committed(subtask, checkpoint_id):
            return
        if self._admin is None:
            self._admin = admin_client(self._settings)
        group = self._group(subtask)
        mark = ConsumerGroupTopicPartitions(group, [TopicPartition(self._topic, 0, checkpoint_id)])
        try:
            answers = self._admin.alter_consumer_group_offsets(
                [mark], request_timeout=self._timeout_s
            )
            (written,) = answers[group].result().topic_partitions
            if written.error is not None:
                raise KafkaException(written.error)  # noqa: TRY301 - one way to translate
        except KafkaException as error:
            self._admin = None  # a client keeps the coordinators that it knows
            where = f"group {group}, {self._topic}-0"
            raise translate(error.args[0], where, self._settings) from error

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
        """See `CheckpointCommitter.is_checkpoint_committed`.

        Raises:
            SparkOnceError: the broker did not answer, or refused.
        """
        if self._wire is None:
            self._wire = CoordinatorWire(self._settings)
        place = f"{self._topic}-0"
        # A raw request, which waits while the coordinator moves: librdkafka's admin client then
        # ends its whole process with a segmentation fault (its issue 5040; seen).
        found = self._wire.read_markers(
            self._group(subtask), [place], Deadline(self._timeout_s), stable=False
        )
        return place in found and found[place][0] >= checkpoint_id

    def describe(self) -> str:
        """See `CheckpointCommitter.describe`."""
        return f"kafka:{self._settings['bootstrap.servers']}#{self._topic}"

    def _group(self, subtask: int) -> str:
        return f"{self.job_id}.{self.operator_id}.{subtask}"
