"""Threads that run one at a time, in an order that a seed decides.

Every actor (a driver, a zombie task) is a thread with a baton; `point` is where it may have to
give the baton back or dies. Between two points nothing else happens, so a run is the same each
time it is repeated.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable


class Crash(BaseException):
    """SIGKILL: nothing below may catch it."""


class Actor:
    """One thread."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.killed = False
        self.done = False
        self.error: BaseException | None = None
        self.waits_for: Callable[[], bool] | None = None
        self.baton = threading.Semaphore(0)
        self._body = body
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.release: Callable[[], None] = lambda: None

    def _run(self) -> None:
        self.baton.acquire()
        try:
            if not self.killed:
                self._body()
        except BaseException as error:
            self.error = error
        self.done = True
        self.release()


class Scheduler:
    """Hands the baton to one actor at a time.

    Args:
        rng: decides who is next.
        switch_rate: how often a point gives the baton away.
    """

    def __init__(self, rng: random.Random, switch_rate: float) -> None:
        self._rng = rng
        self.switch_rate = switch_rate
        self._main = threading.Semaphore(0)
        self.current: Actor | None = None
        self.actors: list[Actor] = []

    def spawn(self, name: str, body: Callable[[], None]) -> Actor:
        """Make an actor; it runs when `step` chooses it."""
        actor = Actor(name, body)
        actor.release = self._main.release
        self.actors.append(actor)
        actor.thread.start()
        return actor

    def step(self) -> bool:
        """Let one actor run to its next switch; False when there is none that can."""
        ready = [
            one for one in self.actors if one.killed or one.waits_for is None or one.waits_for()
        ]
        if not ready:
            return False
        chosen = self._rng.choice(ready)
        chosen.waits_for = None
        self.current = chosen
        chosen.baton.release()
        self._main.acquire()
        self.current = None
        if chosen.done:
            chosen.thread.join()
            self.actors.remove(chosen)
        return True

    def point(self, *, switch: bool | None = None) -> None:
        """Be a place where the running actor may stop for a while, or for ever."""
        me = self.current
        if me is None:
            return  # the main thread itself
        if switch or (switch is None and self._rng.random() < self.switch_rate):
            self._main.release()
            me.baton.acquire()
        if me.killed:
            raise Crash(me.name)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Give the baton away until the condition holds."""
        me = self.current
        assert me is not None
        me.waits_for = condition
        self.point(switch=True)

    def kill_all(self) -> None:
        """End every actor that is left."""
        for one in self.actors:
            one.killed = True
        while self.step():
            pass
