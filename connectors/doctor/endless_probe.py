"""Finds transactions that have ended for the coordinator but not in a partition.

`kafka-transactions.sh find-hanging` looks for *old* transactions. This module compares both sides,
so it finds such a transaction as soon as it is there, and knows whether it was committed or
aborted: the remedy depends on that.
"""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from connectors.clients.offsets_topic import OFFSETS_TOPIC
from connectors.doctor import doctor_requests
from connectors.doctor.facts import Endless
from connectors.wire import broker_answers, partition_leaders, wire_requests
from connectors.wire.broker_answers import Answer, Meaning, Request
from connectors.wire.partition_leaders import Unended
from connectors.wire.wire_client import NotSentError, WireClient
from connectors.wire.wire_requests import TransactionDescription
from transactions.clock import Deadline

Ask = Callable[[Any, int], Awaitable[Any]]

_ENDED: Final = ("CompleteCommit", "CompleteAbort")


async def find_endless(
    wire: WireClient, outputs: Sequence[str], ask: Ask, deadline: Deadline
) -> tuple[tuple[Endless, ...], dict[str, str]]:
    """Compare partitions with coordinators.

    Most of the time one look at the offsets shows that nothing is held back. Otherwise the leaders
    are asked for their producers before *and* after the coordinators: a transaction without an end
    in both answers had none while its coordinator called it complete.

    Args:
        wire: connections.
        outputs: topics, in addition to the one with the offsets of groups.
        ask: sends a request that may be repeated to one broker.
        deadline: when to give up.

    Returns:
        What was found; and for `ClusterFacts.unread`, what could not be examined.

    Raises:
        NotSentError, AnswerLostError: no answer, or one to ask again later.
    """
    topics = [*outputs, OFFSETS_TOPIC]
    partitions = (await partition_leaders.find_leaders(wire, topics, deadline)).existing
    lags = await partition_leaders.stable_lags(wire, sorted(partitions), deadline)
    unread: dict[str, Answer | None] = dict.fromkeys(partitions - lags.keys())
    held = sorted(name for name, lag in lags.items() if lag)
    if not held:
        return (), _reasons(unread)
    before, more = await partition_leaders.find_unended(wire, held, deadline)
    unread |= more
    if not before:
        return (), _reasons(unread)
    owners = await _owners(wire, ask, before)
    after, more = await partition_leaders.find_unended(wire, held, deadline)
    unread |= more
    still = set(before) & set(after)
    found = (_endless(one, owners.get(one.producer_id)) for one in sorted(still))
    return tuple(one for one in found if one is not None), _reasons(unread)


async def _owners(
    wire: WireClient, ask: Ask, unended: Sequence[Unended]
) -> dict[int, TransactionDescription]:
    """Return what the coordinator says, by producer id."""
    request = doctor_requests.transactions_of(one.producer_id for one in unended)
    found: dict[int, TransactionDescription] = {}

    async def of_broker(node: int) -> None:
        rows = await described(request, ask, node)
        found.update((row.producer_id, wire_requests.description(row)) for row in rows)

    await wire.together(of_broker, wire.brokers())
    return found


async def described(listing: Any, ask: Ask, node: int) -> list[Any]:
    """Ask one broker for a list of transactions, and describe those that are still there.

    Raises:
        NotSentError: it cannot tell them now; left out, a living one would look like none.
    """
    listed = await ask(listing, node)
    answer = broker_answers.read(Request.LIST_TRANSACTIONS, listed.error_code)
    if answer.meaning is not Meaning.DONE:
        raise NotSentError(f"broker {node}: {answer}")
    names = [row.transactional_id for row in listed.transaction_states]
    if not names:
        return []
    found = []
    for row in (await ask(wire_requests.describe_transactions(names), node)).transaction_states:
        answer = broker_answers.read(Request.DESCRIBE_TRANSACTIONS, row.error_code)
        if answer.meaning is Meaning.DONE:
            found.append(row)
        elif answer.meaning is not Meaning.ABSENT:
            raise NotSentError(f"broker {node}: {row.transactional_id}: {answer}")
    return found


def _endless(one: Unended, owner: TransactionDescription | None) -> Endless | None:
    """Return None for a transaction that is simply open, or is about to end. Its producer begins a
    later one, of a higher epoch, only after the end.
    """
    if owner is not None and owner.state in wire_requests.OPEN_STATES:
        is_later = owner.state == "Ongoing" and owner.producer_epoch > one.producer_epoch
        if not is_later:
            return None
    return Endless(
        partition=one.partition,
        start_offset=one.start_offset,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        transactional_id="" if owner is None else owner.transactional_id,
        state="" if owner is None else _state(one, owner),
    )


def _state(one: Unended, owner: TransactionDescription) -> str:
    """Return the coordinator's word for the transaction; "" if it is about another one.

    Since KIP-890 the end of a transaction raises the epoch by one: the coordinator has the new
    epoch, and a leader without the marker has the old one. An id that was initialised again says
    nothing about the writes of the epoch before.
    """
    raised = owner.producer_epoch - one.producer_epoch
    return owner.state if raised == 0 or (raised == 1 and owner.state in _ENDED) else ""


def _reasons(unread: Mapping[str, Answer | None]) -> dict[str, str]:
    """Tell topics that we may not read from partitions whose leaders gave no answer."""
    refused: set[str] = set()
    silent: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for name, answer in unread.items():
        topic, _, number = name.rpartition("-")
        why = "no answer" if answer is None else answer.name
        if answer is not None and answer.meaning is Meaning.AUTHORIZATION:
            refused.add(f"{topic} ({why})")
        else:
            silent[topic, why].append(int(number))
    texts = {
        "producers": sorted(refused),
        "leaders": [
            f"{topic}: {', '.join(map(str, sorted(numbers)))} ({why})"
            for (topic, why), numbers in sorted(silent.items())
        ],
    }
    return {step: "; ".join(text) for step, text in texts.items() if text}
