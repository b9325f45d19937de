"""The driver's verbs towards transaction coordinators: commit, describe, list, fence, read.

librdkafka can neither finish a transaction of another process nor describe one, so these are raw
requests. Three rules of the protocol live here:

- **EndTxn at version 4 at most.** Version 5 bumps the epoch and fences the live producer for good.
- **A lost answer is unknown**, and its id is `doubtful`: a late EndTxn could still arrive, so the
  caller retires the id. Only a NONE at the first try leaves the id usable.
- **The driver never sends EndTxn(abort).** It aborts by InitProducerId, whose epoch bump also
  stops whatever request of the dead writer is still on its way.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Mapping as Map
from types import TracebackType
from typing import Any, Final, TypeVar

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from connectors.kafka import broker_answers
from connectors.kafka.broker_answers import Answer, Meaning, Request
from connectors.kafka.wire_client import (
    GROUP,
    TRANSACTION,
    AnswerLostError,
    Backoff,
    NotSentError,
    WireClient,
)
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import ConfigurationError

#: Version 5 is KIP-890's: it would fence the producer that librdkafka still holds.
END_TXN_MAX_VERSION: Final = 4
#: Version 6 (KIP-939) is unstable on the broker, which drops the connection.
INIT_PRODUCER_ID_VERSIONS: Final = (2, 5)
#: One group per request, with require_stable (KIP-447); every broker since 2.5 has it.
OFFSET_FETCH_VERSION: Final = 7
#: Version 2 (Kafka 4.1) filters by pattern on the broker; older ones send all, we filter here.
LIST_TRANSACTIONS_MAX_VERSION = 2

#: States in which a transaction holds readers back.
OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")

_RESOURCE_BROKER: Final = 4

K = TypeVar("K")
V = TypeVar("V")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """What a coordinator knows of one transactional id.

    Attributes:
        transactional_id: the id asked for.
        state: Kafka's name (Empty, Ongoing, PrepareCommit, ...); "" with an error.
        producer_id: its present producer id, -1 with an error.
        producer_epoch: its present epoch, -1 with an error.
        timeout_ms: the transaction timeout.
        start_time_ms: when the last transaction began; it survives its end; -1 when unknown.
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
    """One row of `CoordinatorWire.list_open`."""

    transactional_id: str
    producer_id: int
    state: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Ending:
    transactional_id: str
    outcome: Outcome
    doubtful: bool
    answer: Answer | str


class CoordinatorWire:
    """Raw requests to the coordinators of one cluster; for the driver, from any thread.

    Connects at the first verb. Every verb returns or raises before its deadline, give or take
    one scheduling of the I/O thread.

    Args:
        kafka: the user's client settings, without the ``kafka.`` prefix.
        clock: unused while waiting for sockets; deadlines carry their own.
        request_timeout_s: longest wait for one answer.

    Attributes:
        doubtful: ids of which an EndTxn ever met a timeout, a lost connection, a retry or a
            refusal. Their producers and the ids themselves must never be used again.
    """

    def __init__(
        self,
        kafka: Map[str, str],
        *,
        clock: Clock = SYSTEM_CLOCK,
        request_timeout_s: float = 10.0,
    ) -> None:
        self.doubtful: set[str] = set()
        self._clock = clock
        self._answers: dict[str, str] = {}
        self._lock = threading.Lock()
        self._wire = WireClient(kafka, request_timeout_s)

    def __enter__(self) -> CoordinatorWire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        self._wire.close()

    # -- commit -----------------------------------------------------------------------------

    def commit(self, committables: Sequence[Committable], deadline: Deadline) -> dict[str, Outcome]:
        """End every transaction with commit, all at the same time.

        Call it only when the decision is durable. Safe to repeat: a transaction that is already
        committed answers COMMITTED again (version 4 cannot tell the two apart).

        - COMMITTED: the decision is in the coordinator's log; readers see it within milliseconds.
        - UNKNOWN and in `doubtful`: the answer was lost, or the broker's answer proves nothing
          (`answer_of` says which). Describe it; never take it as a success or as a loss.
        - UNKNOWN and not in `doubtful`: nothing was ever sent (no coordinator until the deadline).

        Never ABORTED: an error code is no proof.

        Raises:
            AuthenticationError: a right is missing; everything that could be ended was.
            BrokerUnavailableError: no broker was reachable at all, nothing was sent.
        """
        by_id = {one.transactional_id: one for one in committables}
        assert len(by_id) == len(committables), "two transactions on one id cannot be pending"
        if not by_id:
            return {}
        endings: list[_Ending] = self._wire.run(
            self._commit_all, list(by_id.values()), deadline, deadline=deadline
        )
        with self._lock:
            for ending in endings:
                self._answers[ending.transactional_id] = str(ending.answer)
                if ending.doubtful:
                    self.doubtful.add(ending.transactional_id)
        for ending in endings:
            if isinstance(ending.answer, Answer):
                answer = ending.answer
                if answer.meaning in (Meaning.AUTHORIZATION, Meaning.CONFIGURATION, Meaning.BUG):
                    self._wire.raise_permanent(Request.END_TXN, answer, ending.transactional_id)
        return {ending.transactional_id: ending.outcome for ending in endings}

    def answer_of(self, transactional_id: str) -> str:
        """Return the last answer to an EndTxn for the id as a sentence; "" when there is none."""
        with self._lock:
            return self._answers.get(transactional_id, "")

    async def _commit_all(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> list[_Ending]:
        # One batched look-up first: hundreds of single ones would follow otherwise.
        try:
            ids = [one.transactional_id for one in committables]
            await self._wire.coordinators(TRANSACTION, ids, deadline)
        except (NotSentError, AnswerLostError):
            pass  # each commit looks for its own coordinator again
        return await self._wire.together(lambda one: self._commit_one(one, deadline), committables)

    async def _commit_one(self, one: Committable, deadline: Deadline) -> _Ending:
        name = one.transactional_id
        backoff = Backoff(self._wire, deadline)
        answered: Answer | None = None
        reason = "no coordinator was found"
        while True:
            try:
                node = await self._coordinator(TRANSACTION, name, deadline)
            except AnswerLostError as error:  # of FindCoordinator, which changes nothing
                node, reason = None, str(error)
            except NotSentError as error:
                node, reason = None, str(error)
            if node is not None:
                try:
                    response = await self._wire.send(node, _end_txn(one), deadline)
                except AnswerLostError as error:
                    self._wire.forget(TRANSACTION, [name])
                    return _Ending(name, Outcome.UNKNOWN, True, f"the answer was lost: {error}")
                except NotSentError as error:
                    self._wire.forget(TRANSACTION, [name])
                    reason = str(error)
                else:
                    answer = broker_answers.read(Request.END_TXN, response.error_code)
                    if answer.meaning is Meaning.DONE:
                        return _Ending(name, Outcome.COMMITTED, answered is not None, answer)
                    if answer.meaning not in (Meaning.RETRY, Meaning.REFIND):
                        return _Ending(name, Outcome.UNKNOWN, True, answer)
                    answered = answer
                    if answer.meaning is Meaning.REFIND:
                        self._wire.forget(TRANSACTION, [name])
            if not await backoff.again():
                return _Ending(name, Outcome.UNKNOWN, answered is not None, answered or reason)

    async def _coordinator(self, kind: int, key: str, deadline: Deadline) -> int | None:
        return (await self._wire.coordinators(kind, [key], deadline)).get(key)

    # -- describe ---------------------------------------------------------------------------

    def describe(
        self, transactional_ids: Sequence[str], deadline: Deadline
    ) -> dict[str, TransactionDescription]:
        """Ask the coordinators for every id: one request per coordinator broker.

        An id that the broker does not know comes back with an error text and hides no other.

        Raises:
            BrokerUnavailableError: an id has no answer at the deadline.
            AuthenticationError: a right is missing.
        """
        if not transactional_ids:
            return {}
        return self._wire.run(
            self._describe_all, list(dict.fromkeys(transactional_ids)), deadline, deadline=deadline
        )

    async def _describe_all(
        self, ids: Sequence[str], deadline: Deadline
    ) -> dict[str, TransactionDescription]:
        async def ask(node_and_ids: tuple[int, list[str]]) -> dict[str, TransactionDescription]:
            node, names = node_and_ids
            request = DescribeTransactionsRequest(transactional_ids=names)
            response = await self._wire.send(node, request, deadline)
            return self._read_descriptions(response)

        done = await self._until_all(TRANSACTION, ids, ask, deadline)
        return {name: done[name] for name in ids}

    def _read_descriptions(self, response: Any) -> dict[str, TransactionDescription]:
        found: dict[str, TransactionDescription] = {}
        for row in response.transaction_states:
            name = row.transactional_id
            answer = broker_answers.read(Request.DESCRIBE_TRANSACTIONS, row.error_code)
            if answer.meaning is Meaning.DONE:
                found[name] = TransactionDescription(
                    transactional_id=name,
                    state=row.transaction_state,
                    producer_id=row.producer_id,
                    producer_epoch=row.producer_epoch,
                    timeout_ms=row.transaction_timeout_ms,
                    start_time_ms=row.transaction_start_time_ms,
                    partitions=frozenset(
                        f"{topic.topic}-{number}"
                        for topic in row.topics
                        for number in topic.partitions
                    ),
                )
            elif answer.meaning is Meaning.ABSENT:
                found[name] = TransactionDescription(transactional_id=name, error=answer.name)
            else:
                self._wire.raise_permanent(Request.DESCRIBE_TRANSACTIONS, answer, name)
        return found

    async def _until_all(
        self,
        kind: int,
        keys: Sequence[str],
        ask: Callable[[tuple[int, list[str]]], Awaitable[dict[str, V]]],
        deadline: Deadline,
    ) -> dict[str, V]:
        """Ask each coordinator for its keys, again for what is missing, until the deadline.

        `ask` leaves a key out of its result when the answer was to try again.
        """
        done: dict[str, V] = {}
        backoff = Backoff(self._wire, deadline)
        reason = "the coordinator was not available or kept saying: try again"

        async def guarded(item: tuple[int, list[str]]) -> dict[str, V]:
            nonlocal reason
            try:
                return await ask(item)
            except (NotSentError, AnswerLostError) as error:
                reason = str(error)
                return {}

        while True:
            missing = [key for key in keys if key not in done]
            try:
                nodes = await self._wire.coordinators(kind, missing, deadline)
            except (NotSentError, AnswerLostError) as error:
                nodes, reason = {}, str(error)
            groups: dict[int, list[str]] = collections.defaultdict(list)
            for key, node in nodes.items():
                groups[node].append(key)
            for part in await self._wire.together(guarded, list(groups.items())):
                done.update(part)
            missing = [key for key in keys if key not in done]
            if not missing:
                return done
            self._wire.forget(kind, missing)
            if not await backoff.again():
                raise self._wire.unavailable(f"{missing[0]!r} ({len(missing)} in all): {reason}")

    # -- list -------------------------------------------------------------------------------

    def list_open(
        self, application_id: str, log_id: str | None, deadline: Deadline
    ) -> list[OpenTransaction]:
        """List the transactions of an application that hold readers back, sorted by id.

        Asks every broker of fresh metadata. A coordinator that moves between two answers can be
        missed; the next call sees it (the sweeper runs again and again).

        Args:
            application_id: first part of the ids; compared as a whole, never as a prefix.
            log_id: second part, or None for every log of the application.
            deadline: when to give up.

        Raises:
            BrokerUnavailableError: a broker of the cluster did not answer.
            AuthenticationError: a right is missing.
        """
        prefix = f"{application_id}." if log_id is None else f"{application_id}.{log_id}."
        rows: list[OpenTransaction] = self._wire.run(
            self._list_all, prefix, deadline, deadline=deadline
        )
        return sorted(rows, key=lambda row: row.transactional_id)

    async def _list_all(self, prefix: str, deadline: Deadline) -> list[OpenTransaction]:
        backoff = Backoff(self._wire, deadline)
        reason = "no broker is known"

        async def ask(node: int) -> list[OpenTransaction] | None:
            nonlocal reason
            try:
                response = await self._wire.send(node, _list_transactions(prefix), deadline)
            except (NotSentError, AnswerLostError) as error:
                reason = str(error)
                return None
            answer = broker_answers.read(Request.LIST_TRANSACTIONS, response.error_code)
            if answer.meaning is Meaning.DONE:
                return [
                    OpenTransaction(row.transactional_id, row.producer_id, row.transaction_state)
                    for row in response.transaction_states
                    if row.transactional_id.startswith(prefix)
                    if row.transaction_state in OPEN_STATES
                ]
            self._wire.raise_permanent(Request.LIST_TRANSACTIONS, answer, prefix)
            reason = f"broker {node}: {answer}"
            return None

        while True:
            await self._wire.refresh(deadline)
            parts = await self._wire.together(ask, self._wire.brokers())
            if parts and all(part is not None for part in parts):
                return [row for part in parts for row in part or ()]
            if not await backoff.again():
                raise self._wire.unavailable(reason)

    # -- fence ------------------------------------------------------------------------------

    def fence(self, transactional_id: str, timeout_ms: int, deadline: Deadline) -> None:
        """Abort whatever is open under the id and fence its producer, by InitProducerId.

        Unconditional, so never call it for an id whose decided transaction is not settled. An
        unknown id is created by it. Returns when the abort is written to all partitions.

        Raises:
            BrokerUnavailableError: not confirmed before the deadline; calling again is safe.
            AuthenticationError: a right is missing.
            ConfigurationError: the timeout is above the broker's `transaction.max.timeout.ms`.
        """

        async def ask(node_and_ids: tuple[int, list[str]]) -> dict[str, bool]:
            node, _ = node_and_ids
            low, high = INIT_PRODUCER_ID_VERSIONS
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
                min_version=low,
                max_version=high,
            )
            response = await self._wire.send(node, request, deadline)
            answer = broker_answers.read(Request.INIT_PRODUCER_ID, response.error_code)
            if answer.meaning is Meaning.DONE:
                return {transactional_id: True}
            self._wire.raise_permanent(Request.INIT_PRODUCER_ID, answer, transactional_id)
            return {}

        self._wire.run(
            self._until_all, TRANSACTION, [transactional_id], ask, deadline, deadline=deadline
        )

    # -- markers and settings ---------------------------------------------------------------

    def read_markers(
        self, group: str, partitions: Sequence[str], deadline: Deadline
    ) -> dict[str, tuple[int, str]]:
        """Read committed offsets with their metadata, never a value that a transaction may change.

        Args:
            group: the consumer group.
            partitions: ``topic-partition`` names.
            deadline: when to give up; an open transaction on a key is waited for until then.

        Returns:
            (offset, metadata) per partition; a partition without a committed offset is missing.

        Raises:
            BrokerUnavailableError: no answer, or the offsets stayed unstable.
            AuthenticationError: a right is missing.
        """
        if not partitions:
            return {}

        async def ask(node_and_keys: tuple[int, list[str]]) -> dict[str, dict[str, Any]]:
            request = _offset_fetch(group, partitions)
            found = self._read_offsets(
                group, await self._wire.send(node_and_keys[0], request, deadline)
            )
            return {} if found is None else {group: found}

        done: dict[str, dict[str, tuple[int, str]]] = self._wire.run(
            self._until_all, GROUP, [group], ask, deadline, deadline=deadline
        )
        return done[group]

    def _read_offsets(self, group: str, response: Any) -> dict[str, tuple[int, str]] | None:
        rows = [
            (f"{topic.name}-{row.partition_index}", row)
            for topic in response.topics
            for row in topic.partitions
        ]
        for code, name in [(response.error_code, group), *((row.error_code, n) for n, row in rows)]:
            answer = broker_answers.read(Request.OFFSET_FETCH, code)
            if answer.meaning is not Meaning.DONE:
                self._wire.raise_permanent(Request.OFFSET_FETCH, answer, name)
                return None
        # librdkafka stores the metadata with C's trailing NUL.
        return {
            name: (row.committed_offset, (row.metadata or "").rstrip("\0"))
            for name, row in rows
            if row.committed_offset >= 0
        }

    def broker_setting(self, name: str, deadline: Deadline) -> str:
        """Return one setting of a broker (`DescribeConfigs`), as the broker prints it.

        Raises:
            ConfigurationError: the broker has no such setting.
            BrokerUnavailableError: no answer before the deadline.
            AuthenticationError: DESCRIBE_CONFIGS on the cluster is missing.
        """
        value: str = self._wire.run(self._broker_setting, name, deadline, deadline=deadline)
        return value

    async def _broker_setting(self, name: str, deadline: Deadline) -> str:
        backoff = Backoff(self._wire, deadline)
        while True:
            try:
                node = await self._wire.any_broker()
                response = await self._wire.send(node, _describe_configs(node, name), deadline)
            except (NotSentError, AnswerLostError) as error:
                reason = str(error)
            else:
                result = response.results[0]
                answer = broker_answers.read(Request.DESCRIBE_CONFIGS, result.error_code)
                self._wire.raise_permanent(Request.DESCRIBE_CONFIGS, answer, name)
                if answer.meaning is Meaning.DONE:
                    return _one_setting(name, result.configs)
                reason = str(answer)
            if not await backoff.again():
                raise self._wire.unavailable(reason)


def _end_txn(one: Committable) -> Any:
    return EndTxnRequest(
        transactional_id=one.transactional_id,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        committed=True,
        max_version=END_TXN_MAX_VERSION,
    )


def _list_transactions(prefix: str) -> Any:
    # RE2J matches the whole id. Below version 2 the field does not exist and is not written.
    return ListTransactionsRequest(
        state_filters=list(OPEN_STATES),
        producer_id_filters=[],
        transactional_id_pattern=re.escape(prefix) + ".*",
        max_version=LIST_TRANSACTIONS_MAX_VERSION,
    )


def _offset_fetch(group: str, partitions: Sequence[str]) -> Any:
    topics: dict[str, list[int]] = collections.defaultdict(list)
    for name in partitions:
        topic, _, number = name.rpartition("-")
        topics[topic].append(int(number))
    return OffsetFetchRequest(
        group_id=group,
        topics=[
            OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=numbers)
            for topic, numbers in topics.items()
        ],
        require_stable=True,
        min_version=OFFSET_FETCH_VERSION,
        max_version=OFFSET_FETCH_VERSION,
    )


def _describe_configs(node: int, name: str) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_RESOURCE_BROKER, resource_name=str(node), configuration_keys=[name]
    )
    return DescribeConfigsRequest(resources=[resource], max_version=4)


def _one_setting(name: str, configs: Sequence[Any]) -> str:
    for config in configs:
        if config.name == name and config.value is not None:
            return str(config.value)
    raise ConfigurationError(f"The broker has no setting {name!r}.", where="DescribeConfigs")
