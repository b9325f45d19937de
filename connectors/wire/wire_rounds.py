"""Asks coordinators for many keys, round after round, until every key has its answer."""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from connectors.wire.backoff import Backoff
from connectors.wire.wire_client import AnswerLostError, NotSentError, WireClient
from transactions.clock import Deadline

V = TypeVar("V")


def by_node(nodes: Mapping[str, int]) -> dict[int, list[str]]:
    """Return what each broker is asked for: the keys of which it is the coordinator or leader."""
    keys: dict[int, list[str]] = collections.defaultdict(list)
    for key, node in nodes.items():
        keys[node].append(key)
    return keys


async def until_all(
    wire: WireClient,
    kind: int,
    keys: Sequence[str],
    ask: Callable[[tuple[int, list[str]]], Awaitable[dict[str, V]]],
    deadline: Deadline,
) -> dict[str, V]:
    """Ask each coordinator for its keys; ask again for missing ones until the deadline.

    Only for requests that may be carried out twice: a lost answer causes a second request.

    Args:
        wire: the connections.
        kind: GROUP or TRANSACTION.
        keys: groups or transactional ids.
        ask: sends one request to one broker for its keys; its result lacks a key if the broker
            answered to try again.
        deadline: when to give up.

    Raises:
        BrokerUnavailableError: a key has no answer at the deadline.
    """
    done: dict[str, V] = {}
    backoff = Backoff(wire, deadline)
    reason = "the coordinator is not available, or keeps answering: try again"

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
            nodes = await wire.coordinators(kind, missing, deadline)
        except (NotSentError, AnswerLostError) as error:
            nodes, reason = {}, str(error)
        for part in await wire.together(guarded, list(by_node(nodes).items())):
            done.update(part)
        missing = [key for key in keys if key not in done]
        if not missing:
            return done
        wire.forget(kind, missing)
        if not await backoff.again():
            raise wire.unavailable(f"{missing[0]!r} ({len(missing)} in all): {reason}")
