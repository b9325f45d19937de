"""The benchmark's topics: they have unique names, and the benchmark deletes them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from connectors.clients.client_errors import ErrorWatch, is_refused
from connectors.clients.client_settings import admin_client
from connectors.clients.topic_leaders import has_leaders
from connectors.wire.coordinator_wire import CoordinatorWire
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ConfigurationError,
    SparkOnceError,
)

_ASK_S: Final = 10.0
_LOOK_S: Final = 5.0
_REMOVE_S: Final = 30.0
#: Timeout that fencing sets for the transactions of a killed job: nobody continues them.
_FENCED_MS: Final = 10_000
_BROKERS_DEFAULT: Final = -1


class BenchTopics:
    """The topics of one run, and the application ids of its jobs.

    Args:
        kafka: client settings in Java naming.
        replication_factor: of every topic; None takes the brokers' default.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        *,
        replication_factor: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._kafka = kafka
        self._brokers = kafka.get("bootstrap.servers", "")
        self._replication_factor = replication_factor
        self._clock = clock
        self._errors = ErrorWatch()
        self._admin = admin_client(kafka, error_cb=self._errors)
        self._names: list[str] = []
        self._made: list[str] = []

    def create(self, what: str, partitions: int) -> str:
        """Make a topic with a unique name; return the name when its partitions have leaders.

        Raises:
            ConfigurationError: the brokers refuse the partitions or the replicas.
            AuthenticationError: a right is missing.
            BrokerUnavailableError: no answer.
        """
        name = f"sparkonce-bench-{uuid.uuid4().hex[:8]}-{what}"
        replicas = self._replication_factor or _BROKERS_DEFAULT
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas)
        deadline = Deadline(_ASK_S, self._clock)
        self._names.append(name)  # first: a request without an answer may have made the topic
        try:
            made = self._admin.create_topics([topic], request_timeout=_ASK_S)
            made[name].result()
            self._made.append(name)
        except KafkaException as error:
            raise self._not_made(error.args[0], partitions) from error
        while not has_leaders(self._admin, name, partitions):
            if deadline.expired():
                raise BrokerUnavailableError(
                    "A new topic has no leaders.",
                    where=name,
                    cause="a broker is down",
                    option=f"kafka.bootstrap.servers={self._brokers}",
                )
            deadline.pause(0.1)
        return name

    def remove(self) -> list[str]:
        """Delete the topics, and abort and delete the jobs' open transactions and consumer groups.

        This is best effort: perhaps the run has ended because the brokers are gone.

        Returns:
            The topics that could not be deleted.
        """
        left = self._still_there()
        if left is None:  # no broker answers: all further requests would only wait
            return list(self._made)
        deadline = Deadline(_REMOVE_S, self._clock)
        self._end_transactions(deadline)
        self._forget_groups()
        while left and not deadline.expired():
            with contextlib.suppress(KafkaException):
                for done in self._admin.delete_topics(left, request_timeout=_ASK_S).values():
                    done.result()
            # Look again: an interrupted request may have made its topic only now.
            left = self._still_there()
            if left is None:
                return list(self._made)
            if left:
                deadline.pause(0.2)
        return left

    def _still_there(self) -> list[str] | None:
        try:
            known = self._admin.list_topics(timeout=_LOOK_S).topics
        except KafkaException:
            return None
        return [name for name in self._names if name in known]

    def _end_transactions(self, deadline: Deadline) -> None:
        """Abort what a killed job left open; without this it stays open until its timeout."""
        with contextlib.suppress(SparkOnceError), CoordinatorWire(self._kafka) as wire:
            for name in self._names:  # a job's application id is the name of its output
                for one in wire.list_open(name, None, deadline):
                    wire.fence(one.transactional_id, _FENCED_MS, deadline)

    def _forget_groups(self) -> None:
        with contextlib.suppress(KafkaException):
            listed = self._admin.list_consumer_groups(request_timeout=_ASK_S).result()
            groups = [one.group_id for one in listed.valid if self._is_ours(one.group_id)]
            if groups:
                for done in self._admin.delete_consumer_groups(groups).values():
                    done.result()

    def _is_ours(self, group: str) -> bool:
        return any(group == name or group.startswith(f"{name}.") for name in self._names)

    def _not_made(self, error: KafkaError, partitions: int) -> SparkOnceError:
        replicas = self._replication_factor or "(the brokers' default)"
        if is_refused(error):
            return AuthenticationError(
                "The benchmark has no right to create topics.",
                where=self._brokers,
                cause=error.str(),
                option="a principal with the rights Create and Delete on sparkonce-bench-*",
            )
        refused = {
            KafkaError.INVALID_REPLICATION_FACTOR: f"--replication-factor={replicas}",
            KafkaError.INVALID_PARTITIONS: f"--partitions={partitions}",
            KafkaError.POLICY_VIOLATION: f"--partitions={partitions}, "
            f"--replication-factor={replicas}",
        }
        if error.code() in refused:
            return ConfigurationError(
                "The brokers refuse the benchmark's topic.",
                where=self._brokers,
                cause=error.str(),
                option=refused[error.code()],
            )
        return BrokerUnavailableError(
            "The benchmark's topic could not be made.",
            where=self._brokers,
            cause=f"{error.str()}; {self._errors.describe()}",
            option=f"--bootstrap={self._brokers}",
        )
