"""Asks coordinators what they know of transactional ids (DescribeTransactions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectors.wire import broker_answers, wire_requests
from connectors.wire.broker_answers import Meaning, Request
from connectors.wire.direct_questions import DirectQuestions
from connectors.wire.wire_client import TRANSACTION, WireClient
from connectors.wire.wire_requests import TransactionDescription
from connectors.wire.wire_rounds import by_node, until_all
from transactions.clock import Deadline


def describe(
    wire: WireClient, direct: DirectQuestions, ids: Sequence[str], deadline: Deadline
) -> dict[str, TransactionDescription]:
    """Ask for every id: one request per coordinator broker.

    Args:
        wire: the connections.
        direct: asks the coordinators that are known.
        ids: without repetitions.
        deadline: when to give up.

    Raises:
        BrokerUnavailableError: an id has no answer at the deadline.
        AuthenticationError: a right is missing.
    """
    known = by_node(wire.known_coordinators(TRANSACTION, ids))
    requests = {node: [wire_requests.describe_transactions(known[node])] for node in known}
    found: dict[str, TransactionDescription] = {}
    for (answer,) in direct.ask(requests, deadline).values():
        found.update(_read(wire, answer))
    if missing := [name for name in ids if name not in found]:
        found.update(wire.run(_describe_all, wire, missing, deadline, deadline=deadline))
    return {name: found[name] for name in ids}


async def _describe_all(
    wire: WireClient, ids: Sequence[str], deadline: Deadline
) -> dict[str, TransactionDescription]:
    async def ask(node_and_ids: tuple[int, list[str]]) -> dict[str, TransactionDescription]:
        node, names = node_and_ids
        request = wire_requests.describe_transactions(names)
        return _read(wire, await wire.send(node, request, deadline))

    return await until_all(wire, TRANSACTION, ids, ask, deadline)


def _read(wire: WireClient, response: Any) -> dict[str, TransactionDescription]:
    """Return what was answered; an id that is to be asked for again is missing."""
    found: dict[str, TransactionDescription] = {}
    for row in response.transaction_states:
        name = row.transactional_id
        answer = broker_answers.read(Request.DESCRIBE_TRANSACTIONS, row.error_code)
        if answer.meaning is Meaning.DONE:
            found[name] = wire_requests.description(row)
        elif answer.meaning is Meaning.ABSENT:
            found[name] = TransactionDescription(transactional_id=name, error=answer.name)
        else:
            wire.raise_permanent(Request.DESCRIBE_TRANSACTIONS, answer, name)
    return found
