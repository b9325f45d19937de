"""A transaction that begins and aborts at once: the only way to ask a coordinator for the time.

No answer of Kafka contains a broker's clock. But a coordinator records by its own clock when a
transaction began, and DescribeTransactions returns that time. The only write is an abort marker in
the group's partition of `__consumer_offsets`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from kafka.protocol.producer import AddOffsetsToTxnRequest

from connectors.wire import broker_answers, wire_requests
from connectors.wire.broker_answers import Answer, Meaning, Request
from connectors.wire.wire_client import TRANSACTION, WireClient
from connectors.wire.wire_requests import ProducerIdentity, TransactionDescription
from connectors.wire.wire_rounds import until_all
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline

#: Long enough for the requests, and short if the abort is lost.
_TIMEOUT_MS: Final = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The result.

    Attributes:
        answer: the answer to AddOffsetsToTxn, which begins the transaction.
        seen: the transaction while it was open; None if it could not begin, or if another process
            has taken the id.
        sent_ms: when the request was sent, by our clock.
        received_ms: when its answer came.
    """

    answer: Answer
    seen: TransactionDescription | None
    sent_ms: int
    received_ms: int


class EmptyTransaction:
    """The requests, in their order. On the wire's I/O thread.

    Args:
        wire: the connections.
        transactional_id: an id that nobody else uses.
        most_ms: the broker's `transaction.max.timeout.ms`.
        clock: our clock.
    """

    def __init__(
        self,
        wire: WireClient,
        transactional_id: str,
        *,
        most_ms: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._wire = wire
        self._id = transactional_id
        self._timeout_ms = min(most_ms, _TIMEOUT_MS)
        self._clock = clock

    async def init(self, deadline: Deadline) -> ProducerIdentity:
        """Initialise the id; this aborts what an earlier transaction left open.

        Raises:
            BrokerUnavailableError: not done before the deadline.
            AuthenticationError: WRITE on the id is missing.
        """

        async def ask(node_and_ids: tuple[int, list[str]]) -> dict[str, ProducerIdentity]:
            request = wire_requests.init_producer_id(self._id, self._timeout_ms)
            response = await self._wire.send(node_and_ids[0], request, deadline)
            answer = broker_answers.read(Request.INIT_PRODUCER_ID, response.error_code)
            self._wire.raise_permanent(Request.INIT_PRODUCER_ID, answer, self._id)
            done = answer.meaning is Meaning.DONE
            return {self._id: (response.producer_id, response.producer_epoch)} if done else {}

        return (await until_all(self._wire, TRANSACTION, [self._id], ask, deadline))[self._id]

    async def describe(self, deadline: Deadline) -> TransactionDescription:
        """Return the coordinator's description of the id.

        Raises:
            BrokerUnavailableError: no answer before the deadline.
            AuthenticationError: DESCRIBE on the id is missing.
        """

        async def ask(node_and_ids: tuple[int, list[str]]) -> dict[str, TransactionDescription]:
            request = wire_requests.describe_transactions([self._id])
            response = await self._wire.send(node_and_ids[0], request, deadline)
            row = response.transaction_states[0]
            answer = broker_answers.read(Request.DESCRIBE_TRANSACTIONS, row.error_code)
            self._wire.raise_permanent(Request.DESCRIBE_TRANSACTIONS, answer, self._id)
            done = answer.meaning is Meaning.DONE
            return {self._id: wire_requests.description(row)} if done else {}

        return (await until_all(self._wire, TRANSACTION, [self._id], ask, deadline))[self._id]

    async def begin_and_abort(self, group: str, deadline: Deadline) -> Begun:
        """Begin, describe, abort.

        Args:
            group: a group; no offset is written to it.
            deadline: when to give up.

        Raises:
            BrokerUnavailableError, AuthenticationError: see `init` and `describe`.
        """
        identity = await self.init(deadline)
        sent_ms = received_ms = 0

        async def ask(node_and_ids: tuple[int, list[str]]) -> dict[str, Answer]:
            nonlocal sent_ms, received_ms
            request = _add_offsets(self._id, identity, group)
            sent_ms = self._clock.now_ms()
            response = await self._wire.send(node_and_ids[0], request, deadline)
            received_ms = self._clock.now_ms()
            answer = broker_answers.read(Request.ADD_OFFSETS, response.error_code)
            again = answer.meaning in (Meaning.RETRY, Meaning.REFIND)
            return {} if again else {self._id: answer}

        answers = await until_all(self._wire, TRANSACTION, [self._id], ask, deadline)
        answer, seen = answers[self._id], None
        if answer.meaning is Meaning.DONE:
            try:
                now = await self.describe(deadline)
                # Another process may have taken the id meanwhile: then it owns the transaction.
                if now.state == "Ongoing" and (now.producer_id, now.producer_epoch) == identity:
                    seen = now
            finally:
                await self.init(deadline)
        return Begun(answer=answer, seen=seen, sent_ms=sent_ms, received_ms=received_ms)


def _add_offsets(transactional_id: str, identity: ProducerIdentity, group: str) -> Any:
    """Return the request that begins a transaction without any record or offset."""
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity[0],
        producer_epoch=identity[1],
        group_id=group,
        max_version=3,
    )
