"""The transactional ids that a cluster knows, by prefix: asks each broker for its own ids."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.wire import broker_answers, wire_requests
from connectors.wire.backoff import Backoff
from connectors.wire.broker_answers import Meaning, Request
from connectors.wire.wire_client import AnswerLostError, NotSentError, WireClient
from connectors.wire.wire_requests import OpenTransaction
from transactions.clock import Deadline


async def list_ids(
    wire: WireClient, prefix: str, states: Sequence[str], deadline: Deadline
) -> list[OpenTransaction]:
    """List ids with their states, sorted.

    Args:
        wire: the connections.
        prefix: the beginning of the ids.
        states: only ids in one of these states; if empty, ids in any state.
        deadline: when to give up.

    Raises:
        BrokerUnavailableError: a broker of the cluster did not answer.
        AuthenticationError: a right is missing.
    """
    backoff = Backoff(wire, deadline)
    reason = "no broker is known"

    async def ask(node: int) -> list[OpenTransaction] | None:
        nonlocal reason
        try:
            response = await wire.send(
                node, wire_requests.list_transactions(prefix, states=states), deadline
            )
        except (NotSentError, AnswerLostError) as error:
            reason = str(error)
            return None
        answer = broker_answers.read(Request.LIST_TRANSACTIONS, response.error_code)
        if answer.meaning is Meaning.DONE:
            return [
                OpenTransaction(row.transactional_id, row.producer_id, row.transaction_state)
                for row in response.transaction_states
                if row.transactional_id.startswith(prefix)
                if not states or row.transaction_state in states
            ]
        wire.raise_permanent(Request.LIST_TRANSACTIONS, answer, prefix)
        reason = f"broker {node}: {answer}"
        return None

    while True:
        await wire.refresh(deadline)
        parts = await wire.together(ask, wire.brokers())
        if parts and all(part is not None for part in parts):
            rows = [row for part in parts for row in part or ()]
            return sorted(rows, key=lambda row: row.transactional_id)
        if not await backoff.again():
            raise wire.unavailable(reason)
