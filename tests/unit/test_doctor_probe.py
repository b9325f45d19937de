"""What the probe makes of answers that a real broker gives rarely; the rest is in
integration/test_doctor.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from connectors.doctor import probe
from connectors.doctor.facts import ClusterFacts, Wanted
from connectors.doctor.verdict import Level
from connectors.doctor.verdicts import judge
from connectors.wire.wire_client import NotSentError
from transactions.clock import Deadline

SILENT = None
LEVELS = ApiVersionsResponse(
    finalized_features_epoch=7,
    finalized_features=[SimpleNamespace(name="transaction.version", max_version_level=2)],
)
NO_FEATURE = ApiVersionsResponse(finalized_features_epoch=0)
NOT_KNOWN = ApiVersionsResponse(finalized_features_epoch=-1)


class Wire:
    """Brokers that say only which versions and features they have."""

    def __init__(self, answers: Sequence[ApiVersionsResponse | None]) -> None:
        self._answers = answers

    def run(self, step: Callable[..., Awaitable[Any]], *args: Any, deadline: Deadline) -> Any:
        async def result() -> Any:
            return await step(*args)

        return asyncio.run(result())

    def close(self) -> None:
        pass

    def brokers(self) -> list[int]:
        return list(range(len(self._answers)))

    async def refresh(self, deadline: Deadline) -> None:
        pass

    async def any_broker(self) -> int:
        return 0

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def together(self, step: Callable[[int], Awaitable[Any]], items: list[int]) -> list[Any]:
        return [await step(item) for item in items]

    async def send(self, node: int, request: Any, deadline: Deadline) -> Any:
        if isinstance(request, DescribeConfigsRequest):
            return SimpleNamespace(results=[])
        answer = self._answers[node] if isinstance(request, ApiVersionsRequest) else SILENT
        if answer is SILENT:
            raise NotSentError(f"broker {node}: timed out")
        return answer


class OneTransaction(Wire):
    """A broker with a transaction that is open since 1970.

    Args:
        code: of its answer when it is asked about this one.
    """

    def __init__(self, code: int) -> None:
        super().__init__([LEVELS])
        self._row = SimpleNamespace(
            error_code=code,
            transactional_id="x.1",
            transaction_state="Ongoing",
            transaction_start_time_ms=1,
            transaction_timeout_ms=60_000,
        )

    async def send(self, node: int, request: Any, deadline: Deadline) -> Any:
        if isinstance(request, (ListTransactionsRequest, DescribeTransactionsRequest)):
            return SimpleNamespace(error_code=0, transaction_states=[self._row])
        return await super().send(node, request, deadline)


@pytest.mark.parametrize(
    ("code", "level", "found"),
    [
        (0, Level.WARN, "x.1"),
        (14, Level.WARN, "COORDINATOR_LOAD_IN_PROGRESS"),
        (16, Level.WARN, "NOT_COORDINATOR"),
        (105, Level.OK, "0 open"),  # it has ended and was forgotten since the list
    ],
)
def test_a_transaction_that_cannot_be_described_now_is_not_taken_for_none(
    monkeypatch, code, level, found
):
    facts = gathered(monkeypatch, wire=OneTransaction(code))
    (row,) = (one for one in judge(facts, Wanted()) if one.check == "open transactions")
    assert row.level is level
    assert found in f"{row}"


def gathered(
    monkeypatch: pytest.MonkeyPatch, *answers: ApiVersionsResponse | None, wire: Wire | None = None
) -> ClusterFacts:
    monkeypatch.setattr(probe, "WireClient", lambda *_: wire or Wire(answers))
    wanted = Wanted(strangers=wire is not None, transactions=False)
    return probe.gather({"bootstrap.servers": "b:1"}, wanted, Deadline(0.05))


@pytest.mark.parametrize("answers", [(SILENT,), (NOT_KNOWN,), (SILENT, NOT_KNOWN)])
def test_levels_that_no_broker_gives_are_not_taken_for_none(monkeypatch, answers):
    facts = gathered(monkeypatch, *answers)
    verdicts = {one.check: one for one in judge(facts, Wanted())}
    assert verdicts["features"].level is Level.WARN
    assert "transaction.version" not in verdicts["features"].found


@pytest.mark.parametrize(
    ("answers", "found"),
    [((SILENT, LEVELS, NOT_KNOWN), {"transaction.version": 2}), ((NO_FEATURE,), {})],
)
def test_one_broker_that_gives_the_levels_is_enough(monkeypatch, answers, found):
    facts = gathered(monkeypatch, *answers)
    assert facts.features == found
    assert "features" not in facts.unread
