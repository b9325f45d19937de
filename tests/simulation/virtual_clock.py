"""A clock that jumps: no simulated second costs a real one."""


class VirtualClock:
    """See `transactions.clock.Clock`."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def now_ms(self) -> int:
        return int(self.time * 1000)

    def sleep(self, seconds: float) -> None:
        self.time += seconds
