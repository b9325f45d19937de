"""What goes wrong, how often, and when: everything here is decided by one seeded generator.

Each seed picks its own mixture (most kinds of fault are off in most seeds), because faults that
are always all on hide each other.

What it never does: repeat a request whose answer was received. A TCP connection delivers a
request once; a copy can only be late when its connection broke, and then the answer was lost.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from connectors.wire.wire_client import AnswerLostError, NotSentError
from tests.simulation import end_txn_table as table
from tests.simulation.fake_cluster import FakeCluster
from tests.simulation.virtual_clock import VirtualClock

REQUEST_TIMEOUT_S = 10.0
_CLOSED_S = 0.01
#: Some before the repetition of the request, most of them behind it: a checkpoint or a few later.
_HELD_BACK_S = 0.5
_RATES = (0.0, 0.0, 0.0, 0.01, 0.04, 0.12)


@dataclasses.dataclass(slots=True)
class Profile:
    """Rates per opportunity, 0 to 1."""

    not_sent: float
    request_dropped: float
    answer_dropped: float
    request_delayed: float
    held_back: float
    repeated_late: float
    repeated_at_once: float
    refused_for_now: float
    slow_markers: float
    driver_crash: float
    killed_anywhere: float
    worker_crash: float
    zombie: float
    second_driver: float
    stop: float
    pause: float
    log_error: float
    past_the_timeout: float
    ids_expire: float
    switch: float
    log_slow: float
    log_late: float
    log_twice: float

    @classmethod
    def drawn(cls, rng: random.Random) -> Profile:
        """Draw a mixture."""
        rates = {field.name: rng.choice(_RATES) for field in dataclasses.fields(cls)}
        rates["driver_crash"] = rng.choice((0.0, 0.01, 0.03, 0.06))
        rates["killed_anywhere"] /= 40
        rates["zombie"] = rng.choice((0.0, 0.1, 0.3))
        rates["stop"] /= 4
        rates["pause"] /= 4
        rates["second_driver"] = rng.choice((0.0, 0.002, 0.01))
        rates["past_the_timeout"] = rng.choice((0.0, 0.0, 0.15, 0.4))
        rates["ids_expire"] = rng.choice((0.0, 0.0, 0.2))
        rates["switch"] = rng.choice((0.02, 0.1, 0.3))
        return cls(**rates)

    @classmethod
    def quiet(cls) -> Profile:
        """Return a mixture without any fault."""
        return cls(**dict.fromkeys((field.name for field in dataclasses.fields(cls)), 0.0))


class Network:
    """Between a client and the fake cluster.

    Attributes:
        late: requests that are still on their way: (when they arrive in ms, sender, request).
        carrying: what the cluster is working on, for those who judge its effects.
        counts: faults injected by kind.
    """

    def __init__(
        self, rng: random.Random, clock: VirtualClock, cluster: FakeCluster, profile: Profile
    ) -> None:
        self._rng = rng
        self._clock = clock
        self._cluster = cluster
        self.profile = profile
        self.late: list[tuple[int, str, Any]] = []
        self.carrying = ""
        self.counts: dict[str, int] = {}
        self.on_late: Callable[[str], None] = lambda _: None

    def happens(self, kind: str) -> bool:
        """Decide whether a kind of fault happens now."""
        rate: float = getattr(self.profile, kind)
        if rate and self._rng.random() < rate:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            return True
        return False

    def exchange(self, request: Any, sender: str) -> Any:
        """Carry a request to the cluster and its answer back, or not.

        Raises:
            NotSentError: it was never sent.
            AnswerLostError: it arrived, or arrives later, or never does.
        """
        self._clock.sleep(self._rng.randint(1, 5) / 1000)
        self.carrying = f"{type(request).__name__} of {sender}"
        if self.happens("not_sent"):
            raise NotSentError("injected: no connection")
        if self.happens("refused_for_now"):
            return self._cluster.handle(request, refuse_with=self._rng.choice(table.NOT_NOW))
        if self.happens("request_dropped"):
            self._lose()
        if self.happens("request_delayed"):
            self._send_later(request, sender, self._rng.expovariate(1 / 20))
            self._lose()
        if self.happens("held_back"):
            self._send_later(request, sender, self._rng.uniform(0.0, _HELD_BACK_S))
            self._lose(_CLOSED_S)
        if self.happens("repeated_late"):
            self._cluster.handle(request)
            self._send_later(request, sender, self._rng.expovariate(1 / 20))
            self._lose()
        if self.happens("repeated_at_once"):
            self._cluster.handle(request)
        response = self._cluster.handle(request)
        if self.happens("answer_dropped"):
            self._lose()
        return response

    def arrive(self, *, everything: bool = False) -> None:
        """Let late requests arrive, in any order; nobody hears their answers."""
        now = self._clock.now_ms()
        due = [one for one in self.late if everything or one[0] <= now]
        self.late = [] if everything else [one for one in self.late if one[0] > now]
        self._rng.shuffle(due)
        for _, sender, request in due:
            self.carrying = f"late: {type(request).__name__.removesuffix('Request')} of {sender}"
            self.on_late(f"{self.carrying} {getattr(request, 'transactional_id', '')}")
            self._cluster.handle(request)

    def _send_later(self, request: Any, sender: str, delay_s: float) -> None:
        self.late.append((self._clock.now_ms() + int(delay_s * 1000), sender, request))

    def _lose(self, seconds: float | None = None) -> None:
        if seconds is None:
            seconds = REQUEST_TIMEOUT_S if self._rng.random() < 0.5 else _CLOSED_S
        self._clock.sleep(seconds)
        raise AnswerLostError("injected: the connection broke")
