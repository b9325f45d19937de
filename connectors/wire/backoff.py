"""Growing pauses between the tries of a request."""

from __future__ import annotations

from typing import Final, Protocol

from transactions.clock import Deadline

FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.25


class Pausing(Protocol):
    """What waits; see `connectors.wire.wire_client.WireClient`."""

    async def pause(self, seconds: float) -> None:
        """Wait without holding the I/O thread."""


class Backoff:
    """Growing pauses between tries, never past the deadline."""

    def __init__(self, wire: Pausing, deadline: Deadline) -> None:
        self._wire = wire
        self._deadline = deadline
        self._next = FIRST_PAUSE_S

    async def again(self) -> bool:
        """Wait; return whether there is time for another try."""
        if self._deadline.expired():
            return False
        await self._wire.pause(min(self._next, self._deadline.remaining()))
        self._next = min(self._next * 2, _LONGEST_PAUSE_S)
        return not self._deadline.expired()
