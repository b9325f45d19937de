"""The product's `WireClient` with the socket replaced: everything above one `send` is real."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from connectors.wire.wire_client import AnswerLostError, NotSentError, WireClient
from transactions.clock import Clock, Deadline

T = TypeVar("T")
R = TypeVar("R")


class FakeWire(WireClient):
    """Connections to a fake cluster.

    Args:
        exchange: takes a request and returns its answer; raises NotSentError or AnswerLostError.
        clock: for the pauses between two tries.
        order: the order in which requests that are started together leave.
        request_timeout_s: as the product's.
    """

    def __init__(
        self,
        exchange: Callable[[Any], Any],
        clock: Clock,
        *,
        order: Callable[[int], Sequence[int]] = range,
        request_timeout_s: float = 10.0,
    ) -> None:
        super().__init__({"bootstrap.servers": "fake:9092"}, request_timeout_s)
        self._exchange = exchange
        self._clock = clock
        self._order = order

    def run(self, step: Callable[..., Awaitable[T]], *args: Any, deadline: Deadline) -> T:
        """Run a coroutine that never really waits."""
        try:
            step(*args).send(None)  # type: ignore[attr-defined]
        except StopIteration as end:
            return end.value
        except (NotSentError, AnswerLostError) as error:
            raise self.unavailable(str(error)) from error
        raise AssertionError("a coroutine waited for something that the simulation does not own")

    def close(self) -> None:
        """Forget the coordinators."""
        self._coordinators = {}

    async def send(self, node: int, request: Any, deadline: Deadline) -> Any:
        """Hand the request to the network."""
        if deadline.remaining() <= 0.0:
            raise NotSentError("the deadline has passed")
        return self._exchange(request)

    async def _ready(self, node: int, deadline: Deadline) -> None:
        return

    def _version(self, request: Any) -> int:
        return 5

    async def pause(self, seconds: float) -> None:
        """Let the virtual clock jump."""
        self._clock.sleep(seconds)

    async def together(self, step: Callable[[R], Awaitable[T]], items: Sequence[R]) -> list[T]:
        """Run the steps one after another, in any order; all of them, even when one fails."""
        results: dict[int, T] = {}
        failures: list[Exception] = []
        for number in self._order(len(items)):
            try:
                results[number] = await step(items[number])
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return [results[number] for number in range(len(items))]

    async def refresh(self, deadline: Deadline) -> None:
        """Metadata never changes here."""

    def brokers(self) -> list[int]:
        """There is one."""
        return [0]

    def cluster_id(self) -> str:
        """It has one."""
        return "fake"

    async def any_broker(self) -> int:
        """It is this one."""
        return 0
