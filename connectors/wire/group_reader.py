"""All committed offsets of many groups at once: asks their coordinators at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from connectors.wire import broker_answers, wire_requests
from connectors.wire.broker_answers import Meaning, Request
from connectors.wire.wire_client import GROUP, AnswerLostError, NotSentError, WireClient
from connectors.wire.wire_rounds import until_all
from transactions.clock import Deadline

_Offsets = Mapping[str, tuple[int, str]]


async def read_groups(
    wire: WireClient, groups: Sequence[str], deadline: Deadline
) -> dict[str, _Offsets]:
    """Return (offset, metadata) per group and partition.

    Args:
        wire: the connections.
        groups: their names.
        deadline: when to give up.

    Raises:
        BrokerUnavailableError: a group has no answer at the deadline.
        AuthenticationError: a right is missing.
    """

    async def ask(node_and_groups: tuple[int, list[str]]) -> dict[str, _Offsets]:
        node, names = node_and_groups

        async def one(group: str) -> _Offsets | None:
            request = wire_requests.offset_fetch(group, None, stable=False)
            try:
                response = await wire.send(node, request, deadline)
            except (NotSentError, AnswerLostError):
                return None
            for code, name in wire_requests.offset_errors(group, response):
                answer = broker_answers.read(Request.OFFSET_FETCH, code)
                if answer.meaning is not Meaning.DONE:
                    wire.raise_permanent(Request.OFFSET_FETCH, answer, name)
                    return None
            return wire_requests.offsets(response)

        found = await wire.together(one, names)
        return {name: read for name, read in zip(names, found, strict=True) if read is not None}

    return await until_all(wire, GROUP, groups, ask, deadline)
